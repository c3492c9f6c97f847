"""``qa-arch train`` and ``qa_arch.train``: run folders, refusals, resuming, suggested next steps."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from kills import contents, killed_at_each_step, killed_at_sizes
from terminals import ROOT

import qa_arch as qa_arch_in_python
import qa_arch.training.run as training
from qa_arch.cli.main import main
from qa_arch.cli.runs import next_steps
from qa_arch.config.compose import compose
from qa_arch.config.machine import lost_logger, with_machine
from qa_arch.config.schema import validate
from qa_arch.errors import ConfigError, RunError
from qa_arch.files import read_yaml, write_atomic
from qa_arch.provenance import identify
from qa_arch.records import RECORD, RunRecord, read_record, write_record
from qa_arch.training import jobs
from qa_arch.training.checkpoint import LAST


@pytest.fixture
def stub_training(monkeypatch):
    """Replace training: take over the folder and write a record; models in ``stub.failing`` raise."""
    stub = SimpleNamespace(calls=[], failing=())

    def train(config, *, folder, resume=False, trusted=(), options=(), take_over=None):
        name = str(config.model["name"])
        if take_over is not None:
            take_over()
        stub.calls.append((name, resume))
        about = {"name": config.name, "model": name, "seed": config.seed, "config": asdict(config)}
        record = RunRecord(status="ok", settings_hash="-", run_hash="-", **about)
        if name in stub.failing:
            write_record(folder, replace(record, status="failed", error="ValueError: no"))
            raise ValueError("no")
        write_record(folder, record)
        return record

    monkeypatch.setattr(training, "train", train)
    return stub


def test_contents_of_a_run_folder(trained):
    files = {"config.yaml", "run.json", "questions.parquet", "predictions.json", "null_odds.json", "model"}
    present = {path.name for path in trained.iterdir()}
    assert files <= present
    assert "nbest_predictions.json" not in present  # most of a run's size; qa-arch predict writes it
    assert trained.name == f"bert-s13-{read_record(trained).settings_hash[:8]}"
    assert not [path for path in trained.rglob("*") if path.suffix in {".pkl", ".bin", ".pt"}]


def test_finished_run_is_refused_or_replaced(qa_arch, run_folder, stub_training):
    again = ("train", "--config-from", run_folder, "--folder", run_folder)
    code, _, err = qa_arch(*again)
    assert (code, "is finished; --if-exists replace" in err) == (5, True)
    write_record(run_folder, replace(read_record(run_folder), status="failed"))
    assert "failed before its first checkpoint; --if-exists replace" in qa_arch(*again)[2]
    (run_folder / "last.ckpt").touch()
    assert "already exists; --if-exists resume continues it, --if-exists replace" in qa_arch(*again)[2]
    assert not stub_training.calls
    assert qa_arch(*again, "--if-exists", "replace")[0] == 0
    assert stub_training.calls == [("bert", False)]
    assert {path.name for path in run_folder.iterdir()} == {"config.yaml", "run.json"}


def test_run_killed_while_it_is_replaced_is_no_result(run_folder, qa_arch, stub_training, tmp_path):
    """Checkpoints go first, then the record, then the model; the folder still passes for a run."""
    for path in ("predictions.json", "null_odds.json"):
        (run_folder / path).unlink()
    for path in ("model/tokenizer", "sets"):
        shutil.rmtree(run_folder / path)
    (run_folder / LAST).touch()
    again = ("train", "--config-from", run_folder, "--folder", run_folder, "--if-exists", "replace")
    before, kept = contents(run_folder), shutil.copytree(run_folder, tmp_path / "kept")
    left = set()
    for _ in killed_at_each_step(lambda: main([*map(str, again)]), run_folder):
        files = contents(run_folder)
        state = LAST in files, files.get(RECORD) == before[RECORD]
        assert not state[1] or before.keys() - files.keys() <= {LAST}
        assert state in left or qa_arch(*again)[0] == 0
        left.add(state)
        shutil.rmtree(run_folder)
        shutil.copytree(kept, run_folder)
    assert left == {(True, True), (False, True), (False, False)}


def test_replaced_run_stays_until_the_new_one_has_read_what_it_needs(
    run_folder, few_questions, qa_arch, caplog
):
    """A faulty file, found when the data is read or the model is built, must not cost the trained weights."""
    write_atomic(run_folder / "notes.txt", "of the old run")
    before = contents(run_folder)
    train, calibration, dev = few_questions
    shared = train.replace("data.train", "data.calibration")
    again = ("train", "data=files", "debug=fast", "--folder", run_folder, "--if-exists", "replace")
    for changes, message in {
        (shared, dev): "train and calibration share",
        (calibration, dev, "loss=twins", "data.train_questions=1"): "loss.twin_likeness: no two",
    }.items():
        code, _, err = qa_arch(*again, train, *changes)
        assert (code, message in err) == (2 if "twin" in message else 4, True)
        assert contents(run_folder) == before
        assert "the run in it is unchanged" in caplog.messages[-1]
    assert qa_arch(*again, train, calibration, dev, "features.cache_dir=null", "seed=7")[0] == 0
    assert read_record(run_folder).seed == read_yaml(run_folder / "config.yaml")["seed"] == 7
    assert not (run_folder / "notes.txt").exists()


OF_ITSELF = {
    "init_from": "init_from={}",
    "distillation.teacher": "debug=fast distillation=soft_targets distillation.teacher={}",
    "encoder.name": "model=bert data=demo encoder.name={}/model/tokenizer",
    "encoder.tokenizer": "debug=fast encoder.tokenizer={}/model/tokenizer encoder.vocabulary=null",
    "glove.path": "model=proposed data=demo glove=file glove.path={}/words.txt",
    "data.train": "debug=fast data=files data.train={}/train.json",
    "data.calibration": "debug=fast data=files data.train=synthetic:train data.calibration={}/*.json",
    "data.dev": "debug=fast data=files data.train=synthetic:train data.dev={}/train.json data.open_dev=false",
}


@pytest.mark.parametrize("setting", OF_ITSELF)
def test_run_does_not_replace_what_it_reads(qa_arch, run_folder, few_questions, setting, stub_training):
    shutil.copy(few_questions[0].partition("=")[2], run_folder)
    (run_folder / "words.txt").write_text("word 1 2 3\n")
    before = contents(run_folder)
    words = OF_ITSELF[setting].format(run_folder).split()
    code, _, err = qa_arch("train", *words, "--folder", run_folder, "--if-exists", "replace")
    assert (code, f"{run_folder}: {setting}: {run_folder}" in err) == (5, True), err
    assert (contents(run_folder), stub_training.calls) == (before, [])


@pytest.mark.parametrize("below", ["nested/ens/run.json", "hf/config.json"])
def test_replace_keeps_runs_and_exports_below_a_run(qa_arch, run_folder, stub_training, below):
    write_atomic(run_folder / below, "{}")
    before = contents(run_folder)
    again = ("train", "--config-from", run_folder, "--folder", run_folder, "--if-exists", "replace")
    for dry in (["--dry-run"], []):
        code, _, err = qa_arch(*again, *dry)
        assert (code, stub_training.calls, contents(run_folder) == before) == (5, [], True)
    assert f"{(run_folder / below).parent} would be deleted with the run; move it elsewhere first" in err
    (run_folder / below).rename(run_folder / "model" / "run.json")  # of the run's own model
    assert qa_arch(*again)[0] == 0


def test_run_killed_before_its_config_was_written_starts_over(qa_arch, settings, tmp_path, stub_training):
    """Otherwise every --if-exists would refuse the folder, which exists but is not a run."""
    folder = tmp_path / "run"
    (died,) = killed_at_sizes(lambda: write_atomic(folder / "config.yaml", "x" * 99), [9])
    assert died
    assert len(list(folder.iterdir())) == 1
    assert qa_arch("train", "model=bert", *settings, "--folder", folder)[0] == 0
    assert stub_training.calls == [("bert", False)]
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "run.json"}


def test_replace_keeps_folders_that_are_not_runs(qa_arch, settings, tmp_path, stub_training):
    chapter = write_atomic(tmp_path / "thesis" / "chapter.tex", "years of work")
    for if_exists in ("fail", "replace"):
        arguments = ("--folder", tmp_path / "thesis", "--if-exists", if_exists)
        code, _, err = qa_arch("train", "model=bert", *settings, *arguments)
        assert (code, stub_training.calls, "is not a run" in err) == (5, [], True)
        assert chapter.exists()
        (tmp_path / "thesis" / "config.yaml").write_text("theme: minima")  # of another program


def test_resume(qa_arch, run_folder, stub_training, caplog):
    again = ("train", "--config-from", run_folder, "--folder", run_folder)
    assert qa_arch(*again, "--resume")[0] == 0
    assert qa_arch(*again, "--dry-run")[0] == 5
    assert caplog.messages[-1].startswith(f"training on this machine would fail: {run_folder}: is finished")
    assert stub_training.calls == []
    write_record(run_folder, replace(read_record(run_folder), status="killed"))
    assert qa_arch(*again, "--if-exists", "resume")[0] == 0
    assert stub_training.calls == [("bert", True)]
    assert (run_folder / "predictions.json").exists()
    code, _, err = qa_arch(*again, "--resume", "optim.lr=0.5")
    assert (code, "another config" in err) == (5, True)


def test_config_from_repeats_a_run_with_changed_settings(qa_arch, trained, tmp_path, stub_training):
    repeat = ("train", "--config-from", trained, "--dry-run")
    code, out, _ = qa_arch(*repeat, "model.dropout=0.3", "--folder", tmp_path / "dry")
    assert code == 0
    changed, record = validate(yaml.safe_load(out)), read_record(trained)
    assert (changed.model["dropout"], record.config["model"]["dropout"]) == (0.3, 0.1)
    assert not (tmp_path / "dry").exists()
    config = asdict(validate(yaml.safe_load(qa_arch(*repeat)[1])))
    assert (identify(config).settings_hash, config["logger"]) == (record.settings_hash, {"_target_": None})
    for override, message in {
        "model=albert": "model.KEY=VALUE",
        "optim.lrr=1": "did you mean 'optim.lr'",
    }.items():
        code, _, err = qa_arch(*repeat, override)
        assert (code, message in err) == (2, True)
    assert not stub_training.calls


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("encoder.name=./nothing experiment=squad2", 2, "encoder.name: ./nothing is not a folder"),
        ("data=squad2 data.train=hub:me/none:train", 6, "bert-base-uncased, me/none"),
        ("data=files data.train=/nope.json data.dev=/no.json", 4, "data.train: /nope.json: no such file"),
        ("debug=fast trainer=fsdp trainer.accelerator=cpu", 2, "trainer.strategy: fsdp shards a model"),
        ("data=demo features.max_length=1024", 2, "features.max_length: 1024 is more than the 512 tokens"),
        ("debug=fast encoder.freeze=3", 2, "encoder.freeze=3: none, all, or how many top layers to train"),
        ("debug=fast encoder.family=xlnet", 2, "encoder.family=xlnet: The model xlnet is one of the few"),
        (
            "debug=fast encoder.family=squeezebert",
            2,
            "encoder.family=squeezebert: If you want embedding_size",
        ),
    ],
)
def test_refusals_leave_no_folder_and_a_dry_run_warns_of_them(
    qa_arch, tmp_path, monkeypatch, caplog, words, code, message
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if code != 6:
        monkeypatch.setattr("qa_arch.training.jobs.require_hub", lambda configs: None)
    call = ("train", "model=bert", "logger=none", f"runs_dir={tmp_path}", *words.split())
    refused, _, err = qa_arch(*call)
    assert (refused, message in err, [*tmp_path.iterdir()]) == (code, True, [])
    caplog.clear()
    assert qa_arch(*call, "--dry-run")[0] == code
    assert caplog.messages[-1].startswith("training on this machine would fail")
    assert f"training on this machine would fail: {message}" in caplog.text


def test_config_from_accepts_a_published_record(qa_arch, trained, tmp_path, monkeypatch):
    """Published records have no config.yaml or weights and refer to data by $QA_ARCH_DATA."""
    record = read_record(trained)
    data = {**record.config["data"], "train": "$QA_ARCH_DATA/train.json"}
    write_record(tmp_path / "published", replace(record, config={**record.config, "data": data}))
    monkeypatch.setenv("QA_ARCH_DATA", "/here")
    code, out, _ = qa_arch("train", "--config-from", tmp_path / "published", "optim.lr=0.5", "--dry-run")
    assert code == 4, "there is no /here/train.json"
    config = yaml.safe_load(out)
    assert (config["data"]["train"], config["optim"]["lr"]) == ("/here/train.json", 0.5)
    assert config["model"] == record.config["model"]
    (tmp_path / "deep.yaml").write_text("[" * 600 + "]" * 600)
    code, _, err = qa_arch("train", "--config-from", tmp_path / "deep.yaml", "--dry-run")
    assert (code, err.count("\n"), "deep.yaml: is not valid YAML: maximum recursion" in err) == (2, 1, True)


FOREIGN = {
    "logger": {
        "_target_": "qa_arch.training.loggers.WandbLogger",
        "project": "p",
        "settings": {"base_url": "http://elsewhere"},
    },
    "runs_dir": "/elsewhere",
    "features": {"cache_dir": "/elsewhere"},
}


def with_foreign_settings(folder: Path, **changes) -> Path:
    """Give the run in ``folder`` the settings of another machine."""
    record = read_record(folder)
    features = {**record.config["features"], **FOREIGN["features"]}
    config = {**record.config, **FOREIGN, "features": features}
    write_record(folder, replace(record, config=config, **changes))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize("file", ["config.yaml", "run.json"])
def test_config_from_takes_loggers_and_folders_from_the_command_line(qa_arch, run_folder, caplog, file):
    source = with_foreign_settings(run_folder) / file
    caplog.set_level("INFO", "qa_arch")
    code, out, _ = qa_arch("train", "--config-from", source, "--dry-run")
    config, own = yaml.safe_load(out), compose([])
    assert (code, config["logger"], config["runs_dir"]) == (0, own["logger"], "runs")
    assert config["features"]["cache_dir"] == ".cache/features"
    assert "elsewhere" not in out
    assert f"{source}: its logger settings (wandb) are not taken from a file" in caplog.text
    caplog.clear()
    typed = ("logger=csv", "logger.save_dir=here", "runs_dir=here", "features.cache_dir=null")
    config = yaml.safe_load(qa_arch("train", "--config-from", source, "--dry-run", *typed)[1])
    assert (config["logger"]["save_dir"], config["runs_dir"]) == ("here", "here")
    assert (config["features"]["cache_dir"], "settings" in config["logger"]) == (None, False)
    assert "logger settings" not in caplog.text


def test_several_loggers_of_a_file_are_replaced_and_named():
    several = {name: compose([f"logger={name}"])["logger"] for name in ("wandb", "none")}
    before, now = {**compose([]), "logger": several}, compose([])
    assert with_machine(before, now)["logger"] == now["logger"]
    assert "such as logger=[wandb,none], or" in str(lost_logger(before, now, []))
    none = {**before, "logger": {"none": {"_target_": None}}}
    assert (with_machine(none, now)["logger"], lost_logger(none, now, [])) == (none["logger"], None)
    of_a_user = str(lost_logger({"logger": {"_target_": "mine.Logger"}}, now, []))
    assert (of_a_user.count("mine.Logger"), "or choose with logger=csv" in of_a_user) == (1, True)


def test_logger_is_never_lost_silently(qa_arch, run_folder, settings, stub_training):
    folder = with_foreign_settings(run_folder, status="killed")
    again = ("train", "--config-from", folder, "--folder", folder, "--resume")
    same = ("train", "model=bert", *settings, "--folder", folder, "--resume")
    for command, expected in ((again, 2), (same, 5)):
        code, _, err = qa_arch(*command)
        assert (code, "repeat those it was started with, such as logger=wandb, or" in err) == (expected, True)
        assert not stub_training.calls
    assert qa_arch(*again, "logger=none")[0] == 0
    assert stub_training.calls == [("bert", True)]
    with_foreign_settings(folder)  # which is finished by now
    assert qa_arch(*same)[0] == 0


def test_one_failing_model_does_not_stop_the_others(qa_arch, settings, tmp_path, stub_training, read_json):
    stub_training.failing = ("albert",)
    code, _, _ = qa_arch("train", "--models", "albert,bert", *settings)
    assert code == 1
    assert stub_training.calls == [("albert", False), ("bert", False)]
    statuses = {row["model"]: row["status"] for row in read_json(tmp_path / "debug" / "table.json")["rows"]}
    assert statuses == {"albert": "failed", "bert": "ok"}
    of_one_run = ["--models", "albert,bert", "logger=wandb", "logger.id=x"]
    for refused in (["--models", "bert,bert"], ["--models", "bert", "--folder", "x"], of_one_run):
        assert qa_arch("train", *refused, *settings)[0] == 2
    assert len(stub_training.calls) == 2


@pytest.mark.parametrize("step", ["hold", "write_atomic"])
def test_model_that_cannot_begin_does_not_stop_the_others(
    qa_arch, settings, tmp_path, stub_training, monkeypatch, read_json, step
):
    """Its folder is in use, or the disk is full; an earlier record is not its result."""
    train, begin = ("train", "--models", "albert,bert", *settings), getattr(jobs, step)
    assert qa_arch(*train)[0] == 0

    def refuse(path, *rest, **options):
        if "albert" in str(path):
            raise RunError(f"{path}: no")
        return begin(path, *rest, **options)

    monkeypatch.setattr(jobs, step, refuse)
    assert qa_arch(*train, "--if-exists", "replace")[0] == 1
    assert stub_training.calls[2:] == [("bert", False)]
    statuses = {row["model"]: row["status"] for row in read_json(tmp_path / "debug" / "table.json")["rows"]}
    assert statuses == {"albert": "failed", "bert": "ok"}


def test_dry_run_ends_with_the_settings_that_matter_and_warnings(
    qa_arch, settings, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("qa_arch.config.compose.to_yaml", lambda raw: f"after {caplog.messages}")
    code, out, _ = qa_arch(
        "train", "model=bert", *settings, "trainer.epochs=2", "optim.head_lr=0.01", "--dry-run"
    )
    assert (code, out) == (0, "after []")
    brief, warning = caplog.messages
    assert brief.startswith(f"{tmp_path}/debug/bert-s13-")
    assert "2 epochs of batch 4" in brief
    assert "synthetic:dev, calibrated on synthetic:calibration, " in brief
    assert brief.endswith("optim.lr=3e-05 optim.head_lr=0.01 seed=13")
    assert warning.startswith("trainer.max_steps=3 may end training before epoch 2")


def test_finetuning_is_named_after_its_data_and_has_a_rate_for_the_head(qa_arch, tmp_path):
    call = ("train", "experiment=finetune", f"runs_dir={tmp_path}", "--dry-run")
    names = {
        "[b.csv,c.csv]": "b",
        "hub:me/squad_de:train": "squad_de_train",
        "'my-set/*.json'": "my_set",
        "here/train-v2.0.json": "here",
    }
    for source, name in names.items():
        config = validate(yaml.safe_load(qa_arch(*call, f"data.train={source}")[1]))
        assert (config.name, config.optim.lr, config.optim.head_lr) == (name, 3e-5, 1e-3)
    code, _, err = qa_arch(*call)
    assert (code, "setting 'data.train' has no value; give data.train=..." in err) == (2, True)


def test_training_from_python_matches_the_command(trained, run_folder, settings, tmp_path):
    arguments, before = ["model=bert", *settings], (run_folder / RECORD).stat().st_mtime_ns
    with pytest.raises(RunError, match="is finished"):
        qa_arch_in_python.train(arguments, folder=run_folder)
    run = qa_arch_in_python.train(arguments, folder=run_folder, if_exists="resume")
    assert (run.folder, (run_folder / RECORD).stat().st_mtime_ns) == (run_folder, before)
    run = qa_arch_in_python.train(arguments, folder=tmp_path / "again")
    other = read_record(trained)
    assert (run.record.run_hash, run.record.scores) == (other.run_hash, other.scores)
    assert len(run.questions) == run.record.facts("dev").questions
    assert qa_arch_in_python.load(run)("Who wrote it?", "The song was written by Ada Stone.") is not None


def test_next_steps_compare_with_the_first_model():
    records = sorted((ROOT / "experiments/real_part/records/v2").iterdir())
    runs = [(run, read_record(run)) for run in records]
    show, ask, compare = next_steps(runs)
    assert show.startswith("qa-arch show ")
    assert ask.startswith("qa-arch ask ")
    assert compare == f"qa-arch compare {records[0].parent} --baseline bert"
    assert next_steps(runs, ["--trust", "mine"])[1] == f"{ask} --trust mine"
    assert next_steps([(run, replace(record, status="oom")) for run, record in runs]) == []


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ("model=bert seed=1", {}, r"must be a list of settings, such as \['model=bert', 'seed=1'\]"),
        (["model=bert", "model._target_=near.Near"], {"trust": "far"}, "outside qa_arch, baselines, far and"),
        (["experiment=sqad2"], {}, r"experiment=sqad2 does not exist \(did you mean 'squad2'"),
        (["model=bert"], {"if_exists": "overwrite"}, "'overwrite' is not one of fail, replace, resume"),
    ],
)
def test_wrong_settings_raise_a_single_error_in_python(tmp_path, overrides, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        qa_arch_in_python.train(overrides, folder=tmp_path / "run", **options)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert not (tmp_path / "run").exists()


def test_dry_run_fails_where_the_run_is_finished(qa_arch, run_folder, caplog):
    code, _, _ = qa_arch("train", "--config-from", run_folder, "--folder", run_folder, "--dry-run")
    assert code == RunError.exit_code
    assert caplog.messages[-1].startswith(f"training on this machine would fail: {run_folder}: is finished")


@pytest.mark.parametrize("model", ["match_lstm/boundary", "proposed"])
def test_dry_run_fails_where_the_kernel_cannot_run(qa_arch, tmp_path, caplog, model):
    settings = ["experiment=demo", f"model={model}", "model.kernel=fused", "trainer.accelerator=cpu"]
    code, _, err = qa_arch("train", *settings, f"runs_dir={tmp_path}")
    assert (code, "model.kernel=fused: needs a GPU" in err, [*tmp_path.iterdir()]) == (6, True, [])
    assert qa_arch("train", *settings, f"runs_dir={tmp_path}", "--dry-run")[0] == 6
    assert "training on this machine would fail: model.kernel=fused: needs a GPU" in caplog.text


def test_max_steps_that_cut_training_short_are_logged(qa_arch, settings, stub_training, caplog):
    qa_arch("train", "model=bert", *settings, "trainer.epochs=2")
    assert "trainer.max_steps=3 may end training before epoch 2" in caplog.text

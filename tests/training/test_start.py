"""What a run starts from: a pretrained encoder, the model of another run (``init_from``), rows in memory."""

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stops import results_of
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import qa_arch as package
from qa_arch.api import train
from qa_arch.config.compose import multirun
from qa_arch.config.schema import Distillation, refuse_without_effect
from qa_arch.data.memory import FOLDER, given
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, DataError, QaArchError, RunError, UnavailableError
from qa_arch.files import read_yaml, write_json
from qa_arch.provenance import encoder_run, system_hash
from qa_arch.qa import start, task
from qa_arch.records import EncoderRun, InitialWeights, SplitFacts, TeacherFacts, read_record, write_record
from qa_arch.results.systems import group_by_system
from qa_arch.sweep import point_key
from qa_arch.training import jobs
from qa_arch.training.inputs import require_same_inputs
from qa_arch.training.jobs import Job


@pytest.fixture
def save_pretrained(configure, tmp_path):
    """Save a tiny pretrained BERT with a tokenizer; returns the folder and parts with that tokenizer."""

    def save(vocab_size: int | None = None):
        parts = task.new_parts(configure())
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=vocab_size or len(parts.tokenizer), **sizes)
        BertModel(config).save_pretrained(tmp_path)
        parts.tokenizer.save_pretrained(tmp_path)
        return tmp_path, parts

    return save


def pretrained_from(folder) -> list[str]:
    """Overrides that load the encoder from ``folder``."""
    sizes = ("family", "layers", "width", "heads", "vocabulary", "initializer_range")
    return ["encoder.init=pretrained", f"encoder.name={folder}", *(f"encoder.{size}=null" for size in sizes)]


def test_pretrained_folder_with_its_tokenizer(configure, save_pretrained):
    """Parameters are counted as they are built."""
    path, parts = save_pretrained()
    loaded = task.new_parts(configure(*pretrained_from(path)))
    assert (loaded.tables["train"].ids == parts.tables["train"].ids).all()
    assert loaded.encoder.vocab_size == len(parts.tokenizer)
    config = configure(f"encoder.tokenizer={path}", "encoder.vocabulary=null")
    built = sum(parameter.numel() for parameter in task.new_parts(config).model.parameters())
    assert task.count_parameters(config).total == built


def test_encoder_folder_counts_by_what_it_holds(configure, run_training, save_pretrained, tmp_path):
    """For runs, systems and points of a sweep; not by where it lies."""

    def configured(folder):
        return configure(*pretrained_from(folder), "trainer.max_steps=1")

    path, _ = save_pretrained()
    config, moved = configured(path), configured(shutil.copytree(path, tmp_path / "moved"))
    record = run_training(*pretrained_from(path), "trainer.max_steps=1").record
    for same in (config, moved):
        require_same_inputs(tmp_path / "run", same, record)
    assert point_key(config) == point_key(moved)
    save_pretrained()
    with pytest.raises(RunError, match=r"encoder\.name: \S+ is not what the run has read"):
        require_same_inputs(tmp_path / "run", config, record)
    assert point_key(config) != point_key(moved)
    other = replace(record, encoder=encoder_run(str(path)))
    assert system_hash(other) != system_hash(record)
    further = replace(record, data={**record.data, "further": SplitFacts(fingerprint="f")})
    assert system_hash(further) == system_hash(record)


def test_token_id_without_embedding_is_refused(configure, save_pretrained):
    """The largest id in the texts counts, not the tokenizer's size: published tokenizers have unused ids."""
    _, parts = save_pretrained()
    largest = max(table.largest_id for table in parts.tables.values())
    path, _ = save_pretrained(largest + 1)
    task.new_parts(configure(*pretrained_from(path)))
    path, _ = save_pretrained(largest)
    with pytest.raises(ConfigError, match=rf"{largest} token embeddings, .* produces id {largest}"):
        task.new_parts(configure(*pretrained_from(path)))


def test_decoder_is_refused_as_an_encoder(configure, save_pretrained):
    """Adding the padding token that decoders lack would not make them encoders."""
    path, parts = save_pretrained()
    PreTrainedTokenizerFast(tokenizer_object=parts.tokenizer.backend_tokenizer).save_pretrained(path)
    with pytest.raises(ConfigError, match=r"encoder\.name=.*do not begin with a \[CLS\] token.*decoders"):
        task.new_parts(configure(*pretrained_from(path)))
    (path / "tokenizer.json").unlink()
    with pytest.raises(UnavailableError, match=r"no tokenizer for .*tokenizer\.json"):
        task.new_parts(configure(*pretrained_from(path)))


@pytest.fixture(scope="session")
def parent(tiny_run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parents") / "parent"
    return train(tiny_run("encoder.layers=2", "model.dropout=0.1"), folder=folder).folder


@pytest.fixture
def copied(parent, tmp_path) -> Path:
    """A copy of the parent that a test may change."""
    return Path(shutil.copytree(parent, tmp_path / "copied"))


@pytest.fixture
def started(parent, tmp_path):
    """``started(*overrides, run=..., name=...)``: the record of a run that starts from the parent."""

    def run(*overrides: str, run: Path = parent, name: str = "started", **options):
        return train([f"init_from={run}", *overrides], folder=tmp_path / name, **options).record

    return run


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def plan(*overrides: str):
    return jobs.plan(overrides).config


def test_model_and_settings_are_those_of_the_run_but_for_what_is_chosen(parent, tmp_path):
    config, before = (
        plan(f"init_from={parent}", "trainer=cpu", "optim.lr=5e-4", "seed=3"),
        read_record(parent),
    )
    assert (config.optim.lr, config.seed, config.init_from) == (5e-4, 3, str(parent))
    assert config.trainer == plan("trainer=cpu").trainer, "a choice is a whole section"
    assert replace(config.optim, lr=before.config["optim"]["lr"]) == plan(f"init_from={parent}").optim
    assert config.encoder.layers == 2
    assert config.runs_dir == plan().runs_dir
    with multirun([f"init_from={parent}", "seed=3,4", "sweep.n_jobs=2"]) as given:
        points = [given.compose(own) for own in given.grid()]
    assert [(point["seed"], point["encoder"]["layers"]) for point in points] == [(3, 2), (4, 2)]


def test_logger_and_folders_are_not_taken_from_the_run(copied):
    config = read_yaml(copied / "config.yaml")
    others = {"runs_dir": "/anywhere", "logger": {"_target_": "pytorch_lightning.loggers.CometLogger"}}
    write_json(copied / "config.yaml", config | others)
    planned, usual = plan(f"init_from={copied}"), plan()
    assert (planned.runs_dir, planned.logger) == (usual.runs_dir, usual.logger)


def test_no_epochs_score_the_model_as_it_is_and_more_train_it(parent, started, tmp_path):
    before = read_record(parent)
    same = started("trainer.epochs=0", f"features.cache_dir={tmp_path / 'cache'}", name="same")
    more = started("optim.lr=1e-2", name="more")
    assert [*(tmp_path / "cache").iterdir()], "windows are kept where the run says"
    assert (same.status, same.epochs, same.best_epoch) == ("ok", (), None)
    first, second, third = (weights(folder) for folder in (parent, tmp_path / "same", tmp_path / "more"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)
    assert (same.scores, same.threshold) == (before.scores, before.threshold)
    assert len(more.epochs) == len(before.epochs)
    assert more.epochs[0].train_loss < before.epochs[0].train_loss
    assert (same.parent.run, same.parent.run_hash) == (parent.name, before.run_hash)
    assert same.run_hash != more.run_hash != before.run_hash


def test_model_is_trained_with_dropout_and_gradient_checkpointing(parent, renamed_encoder):
    """Whatever its encoder is called."""
    parts = start.assemble(plan(f"init_from={parent}", "trainer.gradient_checkpointing=true"))
    assert parts.encoder is parts.model[0].encoder
    assert all(module.training for module in parts.model.modules())
    assert any(getattr(module, "gradient_checkpointing", False) for module in parts.model.modules())


def test_run_may_learn_from_a_teacher_unless_nothing_is_trained(parent, started, copied):
    distilled = ("distillation=soft_targets", f"distillation.teacher={parent}")
    record = started(*distilled)
    assert record.teacher.run_hash == read_record(parent).run_hash
    assert record.epochs[0].value("train_soft_targets") > 0
    assert record.config["distillation"]["layers"] == "none", "the encoder is the parent's"
    with pytest.raises(ConfigError, match=r"^distillation.teacher: trainer.epochs=0 .*add distillation=none"):
        plan(f"init_from={parent}", *distilled, "trainer.epochs=0")
    with pytest.raises(ConfigError, match=r"^distillation.layers: .*; set distillation.layers=none"):
        plan(f"init_from={parent}", f"distillation.teacher={parent}", "distillation=layers")
    config = read_yaml(copied / "config.yaml")
    settings = config["distillation"] | {"teacher": str(parent), "layers": "first"}
    write_json(copied / "config.yaml", config | {"distillation": settings})
    assert plan(f"init_from={copied}").distillation == Distillation()


def test_record_keeps_where_the_weights_came_from(copied, started):
    """Also the articles of its teacher, on which the run may not be scored either."""
    facts = {"name": "t", "run_hash": "h", "fingerprint": "f", "precision": "fp32", "titles": ("Unseen",)}
    sources = {
        "encoder": EncoderRun(model="mlm", seed=3, run_hash="c", system="s"),
        "initial": InitialWeights(weights="w"),
    }
    write_record(copied, replace(read_record(copied), teacher=TeacherFacts(**facts), **sources))
    record = started("trainer.epochs=0", run=copied)
    assert {name: getattr(record, name) for name in sources} == sources
    assert record.parent.titles == ("Unseen",)
    assert record.trained_titles == read_record(copied).trained_titles


def test_runs_of_other_parents_are_other_systems_and_seeds_of_a_parent_are_not(
    copied, parent, started, tmp_path
):
    """Whatever else a parent was scored on; the teacher of a parent counts."""

    def runs(about=(), **changes):
        config = {**read_record(copied).config, **changes}
        whole = {"config": config, "run_hash": str(changes), **dict(about)}
        write_record(copied, replace(read_record(copied), **whole))
        name = "-".join(changes)
        return tmp_path / name, replace(started("trainer.epochs=0", run=copied, name=name), seed=len(name))

    record = read_record(parent)
    optim, distillation = (record.config[section] for section in ("optim", "distillation"))
    more = {"data": {**record.data, "further": SplitFacts(fingerprint="f")}}
    one, other = (TeacherFacts(name="t", run_hash=h, fingerprint=h, precision="fp32") for h in "ab")
    taught = {"optim": optim, "distillation": {**distillation, "teacher": "t", "layers": "embeddings"}}
    systems = group_by_system(
        [
            *(runs(seed=7), runs(more, seed=8, runs_dir="x"), runs(optim={**optim, "lr": 0.5})),
            *(runs({"teacher": one}, **taught), runs({"teacher": other}, **taught, seed=9)),
        ]
    )
    assert [len(system.runs) for system in systems] == [2, 1, 1, 1]
    assert all("init_from=" in system.label for system in systems)


def test_changed_parent_is_refused_on_resuming(copied, started):
    started("trainer.epochs=0", run=copied)
    started("trainer.epochs=0", run=copied, if_exists="resume")
    write_record(copied, replace(read_record(copied), run_hash="0" * 64))
    with pytest.raises(RunError, match=r"init_from: \S+copied is not what the run has read"):
        started("trainer.epochs=0", run=copied, if_exists="resume")


def test_run_that_saw_the_calibration_articles_is_refused(started, few_questions):
    seen, _, dev = (word.partition("=")[2] for word in few_questions)
    with pytest.raises(DataError, match="the training data of init_from parent and calibration share"):
        started(f"data.train={dev}", f"data.calibration={seen}", "data.dev=null")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["encoder.layers=1"], "encoder.layers: is 2 in the model of .*; leave it out"),
        (["experiment=demo"], "experiment=demo: is for new models; with init_from, settings are those of"),
        (["model=albert"], "model=albert: is for new models; with init_from, settings are those of"),
        (["~optim.lr"], "~optim.lr: is for new models"),
    ],
)
def test_settings_of_another_model_are_refused(parent, overrides, message):
    with pytest.raises(ConfigError, match=message):
        plan(f"init_from={parent}", *overrides)


@pytest.mark.parametrize("word", ["optim.lr=0.5", "optim=adamax", "callbacks=timer", "trainer.patience=2"])
def test_settings_of_training_are_refused_without_any(parent, word):
    typed = [f"init_from={parent}", "trainer.epochs=0", word]
    with pytest.raises(ConfigError, match=f"^{word}: has no effect, as trainer.epochs=0 trains nothing"):
        refuse_without_effect(typed, [plan(*typed)])


def test_sources_that_are_not_finished_runs_with_weights_are_refused(copied):
    config = read_yaml(copied / "config.yaml")
    write_json(copied / "config.yaml", {**config, "name": "${oc.env:HOME}"})
    with pytest.raises(ConfigError, match=r"config\.name: .* contains \$\{"):
        plan(f"init_from={copied}")
    write_json(copied / "config.yaml", {**config, "seed": "a"})
    with pytest.raises(ConfigError, match=r"^init_from: \S+config\.yaml: seed: expected an integer"):
        plan(f"init_from={copied}")
    write_json(copied / "config.yaml", {**config, "features": {**config["features"], "max_length": 99}})
    with pytest.raises(
        ConfigError, match=r"^features\.max_length: is .* \(run\.json\), .*/config\.yaml if that was"
    ):
        plan(f"init_from={copied}")
    write_json(copied / "config.yaml", config)
    write_record(copied, replace(read_record(copied), status="failed"))
    with pytest.raises(RunError, match=r"init_from: .* status is 'failed'"):
        plan(f"init_from={copied}")
    write_record(copied, replace(read_record(copied), status="ok"))
    shutil.rmtree(copied / "model")
    with pytest.raises(RunError, match=r"init_from: .* has no folder model with weights"):
        plan(f"init_from={copied}")


@pytest.fixture
def sets(few_questions):
    """Split -> articles of a file of ``few_questions``."""
    paths = (setting.removeprefix("data.").split("=") for setting in few_questions)
    return {split: json.loads(Path(path).read_text())["data"] for split, path in paths}


@pytest.fixture
def settings(tiny_run, few_questions):
    return [word for word in tiny_run("data.train_questions=0") if word not in few_questions]


# Rows in memory: a run from Python is the run that files give, and resumes with the same rows.
def test_rows_train_the_run_that_files_train(sets, settings, train_once, tmp_path):
    rows = package.train(settings, data=sets, folder=tmp_path / "rows").record
    files = train_once("data=files", "data.train_questions=0").record
    assert (rows.run_hash, results_of(rows)) == (files.run_hash, results_of(files))
    assert all(rows.config["data"][split].startswith("memory:") for split in sets)


def test_resuming_needs_the_same_rows(sets, settings, qa_arch, tmp_path):
    """While the run is unfinished and when it has ended."""
    folder, rows = tmp_path / "run", [*sets["train"], *sets["calibration"]]
    record = package.train(settings, data=rows, folder=folder).record
    assert record.facts("calibration").questions, "held out"
    command = ("train", "--config-from", folder, "--folder", folder, "--resume")
    for status, code in (("killed", 4), ("ok", 0)):
        write_record(folder, replace(record, status=status))
        said = qa_arch(*command)
        assert (said[0], "data=...)), or name a file of them" in said[2]) == (code, status == "killed")
        for data, message in (
            (None, r"^data\.train: memory:\w+: are rows that were given from Python and not kept"),
            ([*rows, *sets["dev"]], r"data\.train: memory:\w+ is not what the run has read"),
        ):
            with pytest.raises(QaArchError, match=message):
                package.train(settings, data=data, folder=folder, if_exists="resume")
        again = package.train(settings, data=rows, folder=folder, if_exists="resume").record
        assert (again.status, again.scores) == ("ok", record.scores)


def test_threads_train_in_turn_each_on_its_rows(monkeypatch, sets, tmp_path):
    """Also within a block that names other rows, which it finds again."""
    active, read = [], []

    def train(job):
        active.append(job)
        time.sleep(0.05)  # long enough for another thread to begin
        read.append((len(active), len(open_passages(job.config.data.train))))
        active.remove(job)

    monkeypatch.setattr("qa_arch.training.jobs.check", lambda jobs: None)
    monkeypatch.setattr("qa_arch.training.jobs.train", train)

    def call(split):
        with pytest.raises(RunError, match="no such run"):
            package.train(["model=bert"], data=sets[split], folder=tmp_path / split)

    with given(sets["train"]) as (outer,), ThreadPoolExecutor(2) as pool:
        list(pool.map(call, ["train", "dev"]))
        counts = [sum(len(p["qas"]) for a in sets[s] for p in a["paragraphs"]) for s in ("train", "dev")]
        assert sorted(read) == sorted((1, count) for count in counts)
        assert len(open_passages(outer.partition("=")[2])) == counts[0]
    assert FOLDER not in os.environ


@pytest.mark.parametrize(
    ("choice", "expected"), [([], ["memory", None]), (["data=demo"], ["memory", "synthetic"])]
)
def test_rows_are_all_of_the_data_unless_a_choice_has_more(monkeypatch, sets, choice, expected):
    jobs: list[Job] = []
    monkeypatch.setattr("qa_arch.training.jobs.check", jobs.extend)
    monkeypatch.setattr("qa_arch.training.jobs.train", lambda job: None)
    with pytest.raises(RunError, match="no such run"):
        package.train(["model=bert", *choice], data={"train": sets["train"]})
    with pytest.raises(DataError, match=r"^data: holds no set; name train, calibration, dev"):
        package.train(["model=bert", *choice], data={})
    data = jobs[0].config.data
    assert [source and source.partition(":")[0] for source in (data.train, data.dev)] == expected

"""``train -m`` and ``sweep``: grids as Hydra reads them, resuming, and errors before any point starts."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from kills import contents

from qa_arch import sweep
from qa_arch.config.schema import RANDOM_ONLY
from qa_arch.errors import ConfigError
from qa_arch.files import read_yaml, write_atomic
from qa_arch.records import RECORD, find_runs
from qa_arch.sweep import MANIFEST, read_manifest
from qa_arch.training.jobs import CONFIG

RELOADED = ("encoder.init=pretrained", *(f"encoder.{key}=null" for key in RANDOM_ONLY))


def test_repeated_grid_runs_only_failed_and_new_points(stubbed, train_m):
    """With the settings that it now has; a finished point keeps its own, which its record is of."""
    stubbed.set_actions(seed2="failed")
    code, out, _ = train_m("seed=1,2", "trainer.eval_batch_size=4")
    assert code == 1
    assert re.search(r"seed=2 +│ failed .*ValueError: no", out)
    assert "2 points: 1 ok, 1 failed" in out
    assert f"qa-arch sweep resume {stubbed.folder}" in out
    stubbed.set_actions()
    code, out, _ = train_m("seed=1,2,3", "trainer.eval_batch_size=8", "--trust", "mine")
    assert code == 0
    assert "3 points: 3 ok" in out
    assert re.search(r"qa-arch ask .* --trust mine$", out, re.MULTILINE)
    assert stubbed.started() == ["seed1", "seed2", "seed2", "seed3"]
    configs = (read_yaml(stubbed.point(seed) / CONFIG) for seed in (1, 2))
    assert [config["trainer"]["eval_batch_size"] for config in configs] == [4, 8]


@pytest.mark.usefixtures("checked")
def test_unavailable_checkpoint_is_refused_before_any_point_starts(
    stubbed, train_m, qa_arch, jobs_to_run, monkeypatch
):
    """Also when a sweep is resumed."""
    queries, here = [], ["here/already"]
    monkeypatch.setattr("qa_arch.hub.state", lambda: queries.append(1) or "the hub does not answer")
    monkeypatch.setattr("qa_arch.hub.cached", lambda kind, name, _: name in here)
    monkeypatch.setattr("qa_arch.hub.go_offline", lambda: None)
    arguments = ("seed=1,2", "encoder.tokenizer=not/here,here/already")
    missing = "not/here: no such folder, not downloaded before, and the hub does not answer"
    code, out, err = train_m(*arguments)
    assert (code, out, len(queries), missing in err) == (6, "", 1, True)
    assert train_m(*arguments, "--dry-run")[0] == 6
    assert not stubbed.folder.exists()
    here.append("not/here")
    train_m(*arguments)
    assert len(jobs_to_run) == 4
    here.remove("not/here")
    code, _, err = qa_arch("sweep", "resume", stubbed.folder)
    assert (code, missing in err, len(jobs_to_run)) == (6, True, 4)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["encoder.name=./nowhere", *RELOADED], 2, "encoder.name: ./nowhere is not a folder"),
        (["model=proposed", "glove=file", "glove.path=words.txt"], 4, "words.txt: line 1: "),
    ],
)
def test_unusable_files_are_refused_before_any_point_starts(
    stubbed, train_m, monkeypatch, caplog, tmp_path, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("no vectors")
    actual, out, err = train_m("seed=1,2", *arguments)
    assert (actual, out) == (code, "")
    assert f"seed=1: {message}" in err
    assert train_m("seed=1,2", *arguments, "--dry-run")[0] == code
    assert f"training on this machine would fail: seed=1: {message}" in caplog.text
    assert not stubbed.folder.exists()


def test_setting_that_no_point_of_a_grid_reads_is_refused(stubbed, qa_arch):
    sweep_of = partial(qa_arch, "train", "-m", "data=demo", f"sweep.folder={stubbed.folder}", "glove.keep=9")
    code, out, err = sweep_of("seed=1,2")
    assert (code, out, stubbed.folder.exists()) == (2, "", False)
    assert "glove.keep=9: has no effect, as no word vectors are read" in err
    both = ("experiment=squad2", "glove.name=6B.50d", "--dry-run")
    for some_do in (["-m", "model=bert,proposed"], ["--models", "bert,proposed"]):
        assert "has no effect" not in "".join(qa_arch("train", *some_do, *both)[1:])


def test_interrupted_checks_leave_no_sweep_to_resume(stubbed, train_m, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "check", interrupted)
    code, out, err = train_m("seed=1,2")
    assert (code, "resume" in out + err, stubbed.folder.exists()) == (130, False, False)


def test_refused_sweep_folder_is_unchanged(ended, train_m):
    """Not even the files that Hydra writes before points are checked remain."""
    for content in ("another sweep", "other files"):
        if content == "other files":
            shutil.rmtree(ended.folder)
            write_atomic(ended.folder / "chapter.tex", "years of work")
        before = contents(ended.folder)
        code, out, err = train_m("optim.lr=1e-3,1e-4")
        assert (code, out, "sweep.folder=DIR" in err) == (5, "", True)
        assert contents(ended.folder) == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["optim.lrr=1,2"], 2, "did you mean 'optim.lr'"),
        (["seed=range(5,5)"], 2, "grid is empty"),
        (["seed=1,1"], 2, "the same point, given twice"),
        (["loss=null,span"], 2, "loss=null,span: null names no choice; leave it out"),
        (["seed=1,2", "sweep.job=1"], 2, "did you mean 'sweep.n_jobs'"),
        (["seed=1,2", "hydra.sweep.dir=x"], 2, "sweep.folder=DIR"),
        (["seed=1,2", "hydra/launcher=basic"], 2, "hydra/launcher=isolated"),
        (["seed=1,2", "seed=3"], 2, "seed=1,2 and seed=3: give seed once (in a sweep: seed=A,B)"),
        (["seed=1,2", "logger=[wandb]", "logger.wandb.id=x"], 2, "logger.wandb.id: x names a single run"),
        (["optim.lr=interval(1e-5,1e-3)"], 2, "add hydra/sweeper=qa_optuna"),
        (["seed=1,2", "--if-exists", "replace"], 2, "keeps its results"),
        (["seed=1,2", "encoder=minilm"], 2, "encoder=minilm: would not be loaded"),
        (["seed=1,2", "data.train=nowhere.json"], 2, "add data=files"),
        (["seed=1,2", "data=files", "data.train=nowhere.json"], 4, "seed=1: data.train: nowhere.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_sweep_is_refused_before_any_point_starts(stubbed, train_m, arguments, code, message):
    actual, out, err = train_m(*arguments)
    assert (actual, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not stubbed.folder.exists()


@pytest.fixture
def with_yaml(tmp_path):
    """``with_yaml(text, group)``: arguments that choose a file of the group with this text."""

    def write(text: str, group: str = "experiment") -> list[str]:
        path = tmp_path / "conf" / group / "mine.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# @package _global_\n{text}\n")
        return [f"{group}=mine", "--config-dir", str(tmp_path / "conf")]

    return write


def choosing(**choices: str) -> str:
    return "defaults:" + "".join(f"\n  - override /hydra/{name}: {choices[name]}" for name in choices)


@pytest.mark.parametrize(
    ("text", "in_sweep", "in_run"),
    [
        (choosing(launcher="basic"), "hydra/launcher=basic: .* hydra/launcher=isolated", "has no effect"),
        (
            choosing(launcher="submitit_slurm"),
            "there is no srun on this machine|is not installed",
            "has no effect; a sweep",
        ),
        (choosing(sweeper="optuna"), "does not exist; .* hydra/sweeper=qa_optuna", "does not exist"),
        (choosing(sweeper="qa_optuna"), "nothing to search", "sweeper=qa_optuna: has no effect"),
        ("hydra: {run: {dir: x}}", "hydra.run.dir=x: .* sweep.folder=DIR", "hydra.run.dir=x: .*--folder DIR"),
        (
            "hydra: {job: {chdir: true}}",
            "/mine.yaml: hydra.job.chdir=True: has no",
            "chdir=True: has no effect",
        ),
        ("hydra: {mode: RUN}", "hydra.mode=RUN: leave out -m", None),
        ("hydra: {mode: MULTIRUN}", None, "hydra.mode=MULTIRUN: add -m"),
        (
            "hydra: {sweeper: {params: {seed: '3,4', sweep.seeds: 2}}}",
            "sweeper.params: sweep.seeds is no setting of a run; .* section sweep",
            "has no effect",
        ),
        ("hydra: {sweeper: {_target_: a.B}}", "hydra/sweeper=grid: a.B is not supported", "has no effect"),
        ("hydra: {launcher: {n_jobs: 2}}", "hydra.launcher.n_jobs", "hydra.launcher.n_jobs"),
    ],
)
def test_yaml_counts_as_what_is_typed(
    stubbed, train_m, qa_arch, with_yaml, monkeypatch, text, in_sweep, in_run
):
    """Refused with the name of the file, before anything is written, unless it is honoured (``None``)."""
    monkeypatch.setattr("shutil.which", lambda _: None)
    chosen = with_yaml(text)
    swept = [] if "params" in text or "qa_optuna" in text else ["seed=1,2"]
    dry = [] if in_sweep else ["--dry-run"]
    for run, arguments, message in (
        (train_m, [*swept, *dry], in_sweep),
        (qa_arch, ["train", "debug=fast", "--dry-run"], in_run),
    ):
        code, out, err = run(*arguments, *chosen)
        if message is None:
            assert code == 0, err
        else:
            assert (code in (2, 6), out, len(err.splitlines())) == (True, "", 1), err
            assert re.search(message, err), err
    assert not stubbed.folder.exists()


def test_launcher_of_some_points_is_refused(stubbed, train_m, with_yaml):
    """Hydra leaves a swept file out when it chooses the launcher."""
    chosen = with_yaml(choosing(launcher="submitit_slurm"))
    code, _, err = train_m(*chosen[1:], "experiment=mine,demo")
    assert (code, "hydra/launcher=submitit_slurm: is set by a YAML file of some points" in err) == (2, True)
    assert not stubbed.folder.exists()


@pytest.mark.parametrize(
    ("typed", "points"),
    [
        (("++seed=5", "optim.lr=1,2"), [["optim.lr=1"], ["optim.lr=2"]]),
        (("optim.lr=1,2",), [["seed=3", "optim.lr=1"], ["seed=3", "optim.lr=2"], ["seed=4", "optim.lr=1"]]),
    ],
)
@pytest.mark.usefixtures("jobs_to_run")
def test_sweep_in_a_yaml(stubbed, train_m, with_yaml, typed, points):
    """Typed settings replace those of ``hydra.sweeper.params``, or add to the grid."""
    train_m(*with_yaml("hydra: {mode: MULTIRUN, sweeper: {params: {seed: '3,4'}}}"), *typed)
    manifest = read_manifest(stubbed.folder)
    assert [list(point.overrides) for point in manifest.points][:3] == points
    assert manifest.grid.count("=...") == len(points[0])


FLAGS = {
    "--cfg job": "--dry-run",
    "-cn train": "experiment=NAME",
    "-cd conf": "--config-dir DIR",
    "--info": "qa-arch doctor",
    "--hydra-help": "qa-arch train --help",
    "--shell-completion install=bash": "register-python-argcomplete qa-arch",
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flag_of_hydra_names_its_equivalent(train_m, flag):
    code, out, err = train_m("seed=1,2", *flag.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"unrecognized argument '{flag.split()[0]}' of Hydra; " in err
    assert FLAGS[flag] in err


def test_dry_run_writes_nothing_and_lists_what_would_run(ended, train_m):
    (ended.point(1) / "last.ckpt").write_text("")
    before = contents(ended.folder)
    code, out, _ = train_m("seed=1,2,3,4", "--dry-run")
    actions = ("resume from its checkpoint", "skip: done", "skip: out of memory", "run")
    for seed, action in enumerate(actions, 1):
        assert re.search(rf"seed={seed} +│ {action} ", out), out
    assert (code, contents(ended.folder)) == (0, before)
    shutil.rmtree(ended.folder)
    assert train_m("seed=1,2", "--dry-run")[0] == 0
    assert not ended.folder.exists()


def test_suggested_comparison_has_the_first_model_as_baseline(stubbed, train_m):
    _, out, _ = train_m("model=bert,proposed", "glove=none")
    assert f"qa-arch compare {stubbed.folder} --baseline bert --split calibration\n" in out


def test_status_and_retry(ended, qa_arch):
    """``resume`` runs failed points, ``retry`` also those that ran out of memory, from the beginning."""
    code, out, _ = qa_arch("sweep", "status", ended.folder, "--json")
    status = json.loads(out)
    assert (code, status["counts"]) == (0, {"failed": 1, "ok": 1, "oom": 1})
    ok = status["points"][1]
    assert (ok["point"], ok["status"], ok["f1"]) == ("seed=2", "ok", 52.0)
    checkpoint = ended.point(1) / "last.ckpt"
    checkpoint.write_text("old")
    ended.set_actions(seed1="failed")
    assert qa_arch("sweep", "resume", ended.folder)[0] == 1
    assert ended.started() == ["seed1", "seed2", "seed3", "seed1"]
    assert checkpoint.exists()
    assert qa_arch("sweep", "retry", ended.folder, "--n-jobs", "0")[0] == 2
    ended.set_actions()
    code, out, _ = qa_arch("sweep", "retry", ended.folder, "--n-jobs", "2", "--json")
    assert (code, json.loads(out)["counts"]) == (0, {"ok": 3})
    assert not checkpoint.exists()


def test_folder_without_a_sweep_is_refused(tmp_path, qa_arch):
    for action in ("status", "resume", "retry"):
        code, _, err = qa_arch("sweep", action, tmp_path)
        assert (code, "contains no sweep" in err) == (5, True)
        assert not list(tmp_path.iterdir())


def test_sweep_whose_data_has_changed_is_refused(stubbed, train_m, qa_arch, few_questions, tmp_path):
    """Also if only a finished point read it; data that is gone is needed by unfinished points alone."""
    train = tmp_path / "train.json"
    content = Path(few_questions[0].partition("=")[2]).read_text()
    train.write_text(content)
    stubbed.set_actions(seed2="failed")
    assert train_m("data=files", *few_questions[1:], f"data.train={train}", "seed=1,2")[0] == 1
    train.write_text(content.replace("was", "wos"))
    for action in ("resume", "retry"):
        code, _, err = qa_arch("sweep", action, stubbed.folder)
        assert (code, f"what it reads ({train}, " in err) == (5, True)
    assert stubbed.started() == ["seed1", "seed2"]
    train.write_text(content)
    stubbed.set_actions()
    assert qa_arch("sweep", "resume", stubbed.folder)[0] == 0
    train.unlink()
    assert qa_arch("sweep", "resume", stubbed.folder)[0] == 0


@pytest.mark.parametrize("action", ["resume", "retry"])
def test_point_with_a_damaged_or_missing_record_runs_again(ended, qa_arch, action):
    (ended.point(2) / RECORD).write_text("{")
    (ended.point(2) / "last.ckpt").write_text("")
    moved = {f"damaged/{ended.point(2).name}-1/{name}" for name in ("run.json.damaged", "last.ckpt")}
    (ended.point(3) / RECORD).unlink()
    code, out, _ = qa_arch("sweep", "status", ended.folder)
    assert (code, out.count("its run.json is missing or damaged")) == (0, 2)
    assert "3 failed" in out
    assert qa_arch("sweep", action, ended.folder)[0] == 0
    assert not (ended.point(2) / "last.ckpt").exists(), "the run cannot go on without its record"
    assert moved <= contents(ended.folder).keys()
    assert len(find_runs([ended.folder])) == 3
    assert sorted(ended.started()[3:]) == ["seed1", "seed2", "seed3"]


def planted(name=None, **changes):
    def plant(stubbed) -> None:
        manifest = json.loads((stubbed.folder / MANIFEST).read_text())
        first = manifest["points"][0]
        first["name"] = first["name"] if name is None else name
        (stubbed.folder / MANIFEST).write_text(json.dumps(manifest | changes))

    return plant


def replaced(content: bytes | None):
    """With None, the record of the finished point becomes a folder."""

    def replace(stubbed) -> None:
        path = stubbed.point(2) / RECORD
        path.unlink()
        path.mkdir() if content is None else path.write_bytes(content)

    return replace


SPOILED = {
    "package": (
        planted(trusted=["evil"]),
        2,
        "was started with --trust evil, which is not taken",
    ),
    "configs": (planted(config_dir="/a b"), 2, "was started with --config-dir '/a b', which is not"),
    "place": (
        planted(cwd="/"),
        2,
        "was started in /, where its relative paths begin",
    ),
    **{
        f"name {name!r}": (planted(name=name), 5, f"points[0].name: {name!r} cannot be the name of a folder")
        for name in ("../victim", "/etc", "..", "seed1/..", "a/b", "", "a\0", "a\nb")
    },
    "later record": (replaced(b'{"schema": 9}'), 5, "run.json: "),
    "unknown field": (replaced(b'{"schema": 2, "surprise": 1}'), 5, "run.json: "),
    "binary record": (replaced(b"\xff"), 5, "run.json: "),
    "deep record": (replaced(b"[" * 99 + b"]" * 99), 5, "run.json: "),
    "folder for a record": (replaced(None), 5, "run.json: "),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_spoiled_sweep_is_refused_and_left_alone(ended, train_m, qa_arch, spoiled):
    """A manifest cannot choose what is imported or where points are, and a finished point is never cleared
    because its record cannot be read."""
    spoil, code, message = SPOILED[spoiled]
    write_atomic(ended.base / "victim" / "config.yaml", "years of work")
    write_atomic(ended.base / "victim" / RECORD, "{")
    spoil(ended)
    before = contents(ended.base)
    for action in ("resume", "retry"):
        actual, out, err = qa_arch("sweep", action, ended.folder)
        assert (actual, out, err.count("\n"), message in err) == (code, "", 1, True)
    if code == 5:
        assert train_m("seed=1,2")[0] == 5
        _, out, err = qa_arch("sweep", "status", ended.folder)
        assert message in out + err
    assert contents(ended.base) == before


def test_link_in_place_of_a_point_is_not_emptied(ended, qa_arch):
    point, victim = ended.point(1), ended.base / "victim"
    point.rename(victim)
    point.symlink_to(victim)
    before = contents(victim)
    code, _, err = qa_arch("sweep", "retry", ended.folder)
    assert (code, f"{point.name}: is a link" in err) == (5, True)
    assert contents(victim) == before


def test_retried_point_keeps_the_runs_below_it(ended, qa_arch):
    write_atomic(ended.point(1) / "ens" / RECORD, "{}")
    before = contents(ended.point(1))
    code, _, err = qa_arch("sweep", "retry", ended.folder)
    assert (code, f"{ended.point(1) / 'ens'} would be deleted with the run" in err) == (5, True)
    assert contents(ended.point(1)) == before


def test_resumed_sweep_needs_and_repeats_its_options(
    stubbed, train_m, qa_arch, jobs_to_run, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    write_atomic(tmp_path / "conf" / "optim" / "slow.yaml", "lr: 1e-5\n")
    options = ("--config-dir", "conf", "--trust", "mine")
    line = f"resume:  qa-arch sweep resume {stubbed.folder} {' '.join(options)}\n"
    assert line in train_m("seed=1,2", *options)[1]
    assert "--trust mine, which" in qa_arch("sweep", "resume", stubbed.folder, *options[:2])[2]
    assert len(jobs_to_run) == 2
    assert line in qa_arch("sweep", "resume", stubbed.folder, *options)[1]


def test_points_keep_the_logger_of_the_command_line_alone(stubbed, train_m, qa_arch, jobs_to_run):
    code, out, _ = train_m("seed=1,2", "logger=csv", "logger.save_dir=here")
    line = f"resume:  qa-arch sweep resume {stubbed.folder} logger=csv logger.save_dir=here\n"
    assert (code, line in out) == (1, True)
    config = stubbed.point(1) / "config.yaml"
    assert config.read_text().count("save_dir: here") == 1
    config.write_text(config.read_text().replace("save_dir: here", "save_dir: /elsewhere"))
    jobs_to_run.clear()
    for settings, message in (
        ([], "config.yaml: its logger settings (csv) are not taken from a file"),
        (["optim.lr=1"], "optim.lr=1: points keep their settings"),
        (["logger=wandb", "logger.id=x"], "logger.id: x names a single run"),
    ):
        code, _, err = qa_arch("sweep", "resume", stubbed.folder, *settings)
        assert (code, message in err) == (2, True), err
    assert not jobs_to_run
    code, out, _ = qa_arch("sweep", "resume", stubbed.folder, "logger=csv", "logger.save_dir=here")
    assert (code, line in out) == (1, True)
    job = jobs_to_run[0]
    assert (job.machine, job.raw["logger"]["save_dir"]) == (["logger=csv", "logger.save_dir=here"], "here")


@pytest.mark.usefixtures("jobs_to_run")
def test_resume_names_a_file_of_the_sweep_that_was_damaged(stubbed, train_m, qa_arch):
    train_m("seed=1,2")
    for file, old, new, message in (
        (stubbed.point(1) / "config.yaml", "\nseed: 1", "\nseed: a", "seed: expected an integer, got 'a'"),
        (stubbed.folder / MANIFEST, '"seeds": 1', '"seeds": 0', "sweep.seeds: 0 is out of range"),
    ):
        file.write_text(file.read_text().replace(old, new))
        code, _, err = qa_arch("sweep", "resume", stubbed.folder)
        assert (code in (2, 5), f"{file}: {message}" in err) == (True, True), err


def test_resume_checks_the_given_devices(stubbed, train_m, monkeypatch, qa_arch, jobs_to_run):
    """Before a point is cleared or started."""
    checked = []

    def refuse(planned, pool, **options):
        checked.append(pool)
        if pool:
            raise ConfigError("sweep.devices: torch sees no device 9")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    train_m("seed=1", "optim.lr=1,2", "trainer.accelerator=auto")
    monkeypatch.setattr(sweep, "check", refuse)
    jobs_to_run.clear()
    (point,) = stubbed.folder.glob("lr1-*")
    for name in ("log.txt", "last.ckpt"):  # it began, and left no record
        (point / name).touch()
    code, _, err = qa_arch("sweep", "retry", stubbed.folder, "--devices", "0,9")
    assert (code, "no device 9" in err) == (2, True)
    assert (jobs_to_run, (point / "last.ckpt").exists()) == ([], True)
    qa_arch("sweep", "retry", stubbed.folder)
    assert (len(jobs_to_run), checked) == (1, [["0", "9"], None])


@pytest.mark.slow
def test_sweep_process_never_imports_torch(tmp_path):
    """Errors that only torch can find are still reported, by the check in another process."""
    program = """
import sys
from functools import partial
from qa_arch.cli.main import main
code = main(["train", "-m", "model=bert", "debug=fast", "seed=1,2", *sys.argv[1:], "--dry-run"])
assert "torch" not in sys.modules
sys.exit(code)
"""
    where = f"runs_dir={tmp_path}"
    command = [sys.executable, "-c", program, where, "+model.dropuot=0.1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("qa-arch: seed=1: unknown setting 'model.dropuot'")
    assert not list(tmp_path.iterdir())

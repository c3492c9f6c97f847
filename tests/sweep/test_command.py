"""``train -m`` and ``sweep``: grids through Hydra's sweeper, resuming, and errors before any point starts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kills import contents

from qa_arch.config.schema import RANDOM_ONLY
from qa_arch.errors import ConfigError
from qa_arch.records import RECORD

RELOADED = ("encoder.init=pretrained", *(f"encoder.{key}=null" for key in RANDOM_ONLY))


def test_repeated_grid_runs_only_failed_and_new_points(stubbed, train_m):
    stubbed.set_actions(seed2="failed")
    code, out, _ = train_m("seed=1,2,3")
    assert code == 1
    assert re.search(r"seed=2 +│ failed .*ValueError: no", out)
    assert "3 points: 2 ok, 1 failed" in out
    assert f"qa-arch sweep resume {stubbed.folder}" in out
    stubbed.set_actions()
    code, out, _ = train_m("seed=1,2,3,4", "--trust", "mine")
    assert code == 0
    assert "4 points: 4 ok" in out
    assert re.search(r"qa-arch ask .* --trust mine$", out, re.MULTILINE)
    assert stubbed.started() == ["seed1", "seed2", "seed3", "seed2", "seed4"]


def test_unavailable_checkpoint_is_refused_before_any_point_starts(stubbed, train_m, monkeypatch):
    queries = []
    monkeypatch.setattr("qa_arch.system.hub.state", lambda: queries.append(1) or "the hub does not answer")
    monkeypatch.setattr("qa_arch.system.hub.cached", lambda kind, name: name == "here/already")
    arguments = ("seed=1,2", "encoder.tokenizer=not/here,here/already")
    code, out, err = train_m(*arguments)
    assert (code, out, len(queries)) == (6, "", 1)
    assert "not/here: no such folder, not downloaded before, and the hub does not answer" in err
    assert not stubbed.folder.exists()
    assert train_m(*arguments, "--dry-run")[0] == 0
    assert len(queries) == 1


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
    assert train_m("seed=1,2", *arguments, "--dry-run")[0] == 0
    assert f"training on this machine would fail: seed=1: {message}" in caplog.text
    assert not stubbed.folder.exists()


@pytest.mark.parametrize("content", ["other files", "another sweep"])
def test_refused_sweep_folder_is_unchanged(stubbed, train_m, content):
    """Not even the files that Hydra writes before points are checked remain."""
    stubbed.folder.mkdir()
    (stubbed.folder / "chapter.tex").write_text("years of work")
    if content == "another sweep":
        (stubbed.folder / "chapter.tex").unlink()
        assert train_m("seed=1,2")[0] == 0
    before = contents(stubbed.folder)
    code, out, err = train_m("optim.lr=1e-3,1e-4")
    assert (code, out) == (5, "")
    assert "sweep.folder=DIR" in err
    assert contents(stubbed.folder) == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["optim.lrr=1,2"], 2, "did you mean 'optim.lr'"),
        (["seed=range(5,5)"], 2, "grid is empty"),
        (["seed=1,1"], 2, "the same point, given twice"),
        (["loss=null,span"], 2, "loss=null,span: null names no choice; leave it out"),
        (["seed=1,2", "sweep.job=1"], 2, "did you mean 'sweep.n_jobs'"),
        (["seed=1,2", "hydra.sweep.dir=x"], 2, "sweep.folder=DIR"),
        (["seed=1,2", "hydra.sweeper.max_batch_size=1"], 2, "sweep.n_jobs=N runs N at a time"),
        (["+hydra.sweeper.params.seed='1,2'"], 2, "as an argument, such as seed=1,2"),
        (["seed=1,2", "hydra/launcher=basic"], 2, "hydra/launcher=isolated"),
        (["seed=1,2", "hydra/sweeper=optuna"], 2, "hydra/sweeper=qa_optuna"),
        (["optim.lr=interval(1e-5,1e-3)"], 2, "add hydra/sweeper=qa_optuna"),
        (["seed=1,2", "--if-exists", "replace"], 2, "keeps its results"),
        (["seed=1,2", "encoder=minilm"], 2, "encoder=minilm: would not be loaded"),
        (["seed=1,2", "data=files", "data.train=nowhere.json"], 4, "seed=1: nowhere.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_sweep_is_refused_before_any_point_starts(stubbed, train_m, arguments, code, message):
    actual, out, err = train_m(*arguments)
    assert (actual, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not stubbed.folder.exists()


def test_dry_run_writes_nothing_and_lists_what_would_run(stubbed, train_m):
    code, out, _ = train_m("seed=1,2", "--dry-run")
    assert (code, out.count(" run ")) == (0, 2)
    assert not stubbed.folder.exists()
    stubbed.set_actions(seed1="failed", seed3="oom")
    train_m("seed=1,2,3")
    (stubbed.point(1) / "last.ckpt").write_text("")
    _, out, _ = train_m("seed=1,2,3", "--dry-run")
    for seed, action in enumerate(("resume from its checkpoint", "skip: done", "skip: out of"), 1):
        assert re.search(rf"seed={seed} .*{action}", out), out


def test_suggested_comparison_has_the_first_model_as_baseline(stubbed, train_m):
    _, out, _ = train_m("model=bert,proposed", "glove=none")
    assert f"qa-arch compare {stubbed.folder} --baseline bert --split calibration\n" in out


def test_sweep_status(stubbed, train_m, qa_arch):
    train_m("seed=1,2")
    code, out, _ = qa_arch("sweep", "status", stubbed.folder, "--json")
    assert code == 0
    status = json.loads(out)
    assert status["counts"] == {"ok": 2}
    first = status["points"][0]
    assert (first["point"], first["status"], first["f1"], first["attempts"]) == ("seed=1", "ok", 51.0, 1)


def test_folder_without_a_sweep_is_refused(tmp_path, qa_arch):
    for action in ("status", "resume", "retry"):
        code, _, err = qa_arch("sweep", action, tmp_path)
        assert (code, "contains no sweep" in err) == (5, True)
        assert not list(tmp_path.iterdir())


def test_resume_finishes_a_sweep(stubbed, train_m, qa_arch):
    stubbed.set_actions(seed1="signal", seed2="failed")
    assert train_m("seed=1,2,3", "sweep.fail_fast=true")[0] == 1
    stubbed.set_actions()
    assert qa_arch("sweep", "resume", stubbed.folder, "--n-jobs", "0")[0] == 2
    code, out, _ = qa_arch("sweep", "resume", stubbed.folder, "--n-jobs", "2", "--devices", "0,1")
    assert (code, "3 points: 3 ok" in out) == (0, True)
    assert sorted(stubbed.started()) == ["seed1", "seed1", "seed2", "seed2", "seed3"]


@pytest.mark.parametrize("action", ["resume", "retry"])
def test_sweep_whose_data_has_changed_is_refused(stubbed, train_m, qa_arch, few_questions, tmp_path, action):
    """Also if only a finished point read it; data that is gone is needed by unfinished points alone."""
    train = tmp_path / "train.json"
    content = Path(few_questions[0].partition("=")[2]).read_text()
    train.write_text(content)
    stubbed.set_actions(seed2="failed")
    assert train_m("data=files", *few_questions[1:], f"data.train={train}", "seed=1,2")[0] == 1
    train.write_text(content.replace("was", "wos"))
    code, _, err = qa_arch("sweep", action, stubbed.folder)
    assert (code, f"what it reads ({train}, " in err) == (5, True)
    assert stubbed.started() == ["seed1", "seed2"]
    train.write_text(content)
    stubbed.set_actions()
    assert qa_arch("sweep", action, stubbed.folder)[0] == 0
    train.unlink()
    assert qa_arch("sweep", action, stubbed.folder)[0] == 0


@pytest.mark.parametrize("action", ["resume", "retry"])
def test_point_with_a_damaged_or_missing_record_runs_again(stubbed, train_m, qa_arch, action):
    assert train_m("seed=1,2,3")[0] == 0
    (stubbed.point(1) / RECORD).write_text("{")
    (stubbed.point(1) / "last.ckpt").write_text("")
    (stubbed.point(2) / RECORD).unlink()
    code, out, _ = qa_arch("sweep", "status", stubbed.folder)
    assert (code, out.count("its run.json is missing or cannot be read")) == (0, 2)
    assert "1 ok, 2 failed" in out
    assert qa_arch("sweep", action, stubbed.folder)[0] == 0
    assert not (stubbed.point(1) / "last.ckpt").exists(), "the run cannot go on without its record"
    assert sorted(stubbed.started()) == ["seed1", "seed1", "seed2", "seed2", "seed3"]


@pytest.mark.parametrize("action", ["resume", "retry"])
def test_checkpoint_gone_from_the_hub_is_refused_before_any_point_resumes(
    stubbed, train_m, monkeypatch, qa_arch, tmp_path, action
):
    monkeypatch.setattr("qa_arch.system.hub.cached", lambda kind, name: False)
    monkeypatch.setattr("qa_arch.system.hub.state", lambda: "")
    stubbed.set_actions(seed1="failed")
    train_m("seed=1,2", "encoder.tokenizer=not/here")
    before = stubbed.started()
    monkeypatch.setattr("qa_arch.system.hub.state", lambda: "the hub does not answer")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, err = qa_arch("sweep", action, stubbed.folder)
    assert (code, "not/here: no such folder, not downloaded before" in err) == (6, True)
    assert stubbed.started() == before


def test_resume_checks_the_given_devices(stubbed, train_m, monkeypatch, qa_arch):
    """Before a point is cleared or started; without ``--devices`` there is nothing to check."""
    checked = []

    def refuse(points, trusted, pool, local):
        checked.append(pool)
        if pool:
            raise ConfigError("sweep.devices: torch sees no device 9")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stubbed.set_actions(seed1="failed")
    train_m("seed=1,2", "trainer.accelerator=auto")
    monkeypatch.setattr("qa_arch.sweep.points.preflight", refuse)
    (stubbed.point(1) / "last.ckpt").write_text("")
    before = stubbed.started()
    code, _, err = qa_arch("sweep", "resume", stubbed.folder, "--devices", "0,9")
    assert (code, "no device 9" in err) == (2, True)
    assert checked == [["0", "9"]]
    assert stubbed.started() == before
    assert (stubbed.point(1) / "last.ckpt").exists()
    assert qa_arch("sweep", "resume", stubbed.folder)[0] == 1
    assert checked == [["0", "9"], None]


@pytest.mark.slow
def test_sweep_process_never_imports_torch(tmp_path):
    """Errors that only torch can find are still reported, by the check in another process."""
    program = """
import sys
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


@pytest.mark.slow
def test_points_are_checked_without_transformers():
    """Importing transformers takes longer than the rest of the check."""
    program = """
import sys
from qa_arch.models.check import check_model
for target in ("baselines.transformer.TransformerSpan", "qa_arch.models.bert_match.BertMatch"):
    check_model({"_target_": target, "task": "span"})
assert "transformers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

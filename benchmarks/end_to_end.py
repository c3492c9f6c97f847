"""A whole experiment (fine-tune MiniLM, predict, score) as a user runs it, against the common script."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks import common_script, inputs
from benchmarks.processes import QA_ARCH, output_of
from benchmarks.targets import Measure, Measurement, speedup
from benchmarks.timing import Pairs, once
from qa_arch.data.splits import by_article, subset
from qa_arch.data.squad import write
from qa_arch.files import write_json
from qa_arch.nn.encoder_configs import resolve
from qa_arch.nn.precision import bf16_is_faster
from qa_arch.records import DEV, THRESHOLD_0, read_record

TRAIN, SCORED, CALIBRATION = 128, 128, 32
"""Numbers of questions. We fit the null threshold on calibration; the script leaves it at 0."""


def experiment(quick: bool) -> Measurement:
    """Run each once, on other articles for each set, ours in bf16 if the CPU supports it."""
    sizes = {"train": TRAIN, "calibration": CALIBRATION, "dev": SCORED}
    articles = by_article(
        inputs.questions(quick), {"train": 0.4, "calibration": 0.2, "dev": 0.4}, inputs.SEED
    )
    precision = "bf16" if bf16_is_faster() else "fp32"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, size in sizes.items():
            part = subset(articles[name], size // 8 if quick else size, inputs.SEED)
            write_json(folder / f"{name}.json", write(part))
        ours = once(lambda: output_of(our_command(folder, precision)))
        theirs = once(lambda: output_of(script_command(folder, Path(resolve("minilm")))))
        own_f1 = read_record(folder / "run").scores[DEV][THRESHOLD_0].metric("f1")
        peer_f1 = json.loads((folder / "script.json").read_text(encoding="utf-8"))["scores"]["f1"]
    note = f"ours in {precision}; F1 (null threshold 0) {own_f1:.1f}, peer {peer_f1:.1f}"
    return speedup(Pairs((ours,), (theirs,)), note)


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


ROWS: dict[str, Measure] = {"end-to-end": experiment}

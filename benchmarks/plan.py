"""What ``qa-arch plan`` says beside what a run then takes: ``python -m benchmarks.plan [--quick]``.

Each row is one epoch of a real run on this machine's CPU, planned and trained in processes of their own.
Memory is the peak of the training process's resident memory; time is that of the epoch's training.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from qa_arch.results.record import read_record

TINY = ["experiment=demo", "data.train_questions=3000"]
MINILM = [*TINY, "encoder=minilm", "encoder.init=pretrained", "data.train_questions=100", "optim.lr=3e-5"]
SIZES = ["layers", "width", "heads", "vocabulary", "initializer_range", "hidden_dropout", "attention_dropout"]
OWN = [f"encoder.{size}=null" for size in SIZES]
"""The encoder's own sizes and dropout, in place of the demo's."""
CASES: dict[str, list[str]] = {
    "bert, demo width, batch 8": [*TINY, "model=bert", "trainer.batch_size=8"],
    "bert, demo width, batch 64": [*TINY, "model=bert", "trainer.batch_size=64"],
    "proposed, demo width, batch 8": [*TINY, "model=proposed", "trainer.batch_size=8"],
    "proposed, demo width, batch 64": [*TINY, "model=proposed", "trainer.batch_size=64"],
    "bert, MiniLM, batch 4": [*MINILM, *OWN, "model=bert", "trainer.batch_size=4"],
    "bert, MiniLM, batch 32": [*MINILM, *OWN, "model=bert", "trainer.batch_size=32"],
    "proposed, MiniLM, batch 16": [*MINILM, *OWN, "model=proposed", "trainer.batch_size=16"],
}


def compare(overrides: list[str]) -> list[str]:
    """Predicted and measured MiB with their difference, then the same for seconds."""
    with tempfile.TemporaryDirectory() as folder:
        cache = f"features.cache_dir={folder}/cache"
        planned = json.loads(_qa_arch("plan", *overrides, cache, "--json"))
        _qa_arch("train", *overrides, cache, "trainer.progress=false", "--folder", f"{folder}/run")
        record = read_record(Path(folder) / "run")
    cells = []
    for predicted, measured in (
        (planned["total"], record.peak_memory_mb or 0.0),
        (planned["epoch"]["seconds"], record.seconds.fit or 0.0),
    ):
        cells += [f"{predicted:,.0f}", f"{measured:,.0f}", f"{100 * (predicted / measured - 1):+.0f}%"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the demo width alone")
    quick = parser.parse_args().quick
    print("| model | MiB planned | peak MiB | error | s planned | s an epoch | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, overrides in CASES.items():
        if not (quick and "MiniLM" in name):
            print(f"| {' | '.join([name, *compare(overrides)])} |", flush=True)


def _qa_arch(*arguments: str) -> str:
    command = [sys.executable, "-m", "qa_arch.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()

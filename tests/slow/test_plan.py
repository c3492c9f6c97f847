"""``qa-arch plan`` against the run that it plans, each in a process of its own, on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from qa_arch.results.record import read_record

LARGER = [
    *("debug=fast", "data.train_questions=0", "trainer.max_steps=12", "trainer.batch_size=32", "logger=none"),
    *("encoder.layers=4", "encoder.width=256", "encoder.heads=4", "trainer.progress=false"),
]


def qa_arch(*arguments: str) -> str:
    command = [sys.executable, "-m", "qa_arch.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "model",
    [
        ["model=bert"],
        ["model=bert", "encoder.attention_dropout=0.0", "trainer.gradient_checkpointing=true"],
        ["model=proposed", "trainer.batch_size=8", "trainer.accumulate=2"],
    ],
)
def test_peak_memory_is_as_predicted(tmp_path, model):
    """Of the peak of the run's resident memory the plan tells four fifths, what a proposal fills, or more."""
    overrides = [*LARGER, *model, f"features.cache_dir={tmp_path}/cache"]
    predicted = json.loads(qa_arch("plan", *overrides, "--no-time", "--json"))
    qa_arch("train", *overrides, "--folder", f"{tmp_path}/run")
    measured = read_record(tmp_path / "run").peak_memory_mb
    assert 0.8 <= predicted["total"] / measured <= 1.05

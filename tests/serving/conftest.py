"""A run of seconds that every way of asking is tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_arch.cli.main import main

SMALL = ("model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null")


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """A finished run with records, predictions and weights; not to be changed."""
    runs = tmp_path_factory.mktemp("asked-runs")
    assert main(["train", *SMALL, f"runs_dir={runs}", "trainer.progress=false"]) == 0
    (folder,) = (runs / "debug").glob("bert-*")
    return folder

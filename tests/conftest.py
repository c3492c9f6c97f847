"""Fixtures shared by all tests. No test reaches the network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Triton interprets or compiles in the whole process; only tests on a GPU want it to compile."""
    if "not gpu" in config.option.markexpr or "gpu" not in config.option.markexpr:
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets that ``QA_ARCH_DATA`` names; the test skips where there is none."""
    folder = Path(os.environ.get("QA_ARCH_DATA", "")).expanduser()
    if not os.environ.get("QA_ARCH_DATA") or not (folder / "squad").is_dir():
        pytest.skip("real data not at hand: set QA_ARCH_DATA to the folder that holds squad/ and glove/")
    return folder

"""Tiny parent runs of several models, and smaller runs made of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import shapes
from cli.conftest import read_json  # noqa: F401

from qa_arch.api import train

TINY = [
    *("debug=fast", "encoder.initializer_range=0.2", "trainer.progress=false", "trainer.max_steps=4"),
    *("features.max_length=64", "features.stride=16", "features.max_question=24", "features.cache_dir=null"),
]
TRAINING = {"epochs": "trainer.epochs", "lr": "optim.lr"}


@pytest.fixture(scope="session")
def parent(few_questions, tmp_path_factory) -> Path:
    """Folder of a run of BERT with four layers of four heads."""
    folder = tmp_path_factory.mktemp("parent") / "bert-run"
    train(["model=bert", "encoder.layers=4", "encoder.heads=4", *TINY, *few_questions], folder=folder)
    return folder


def compress(source: Path, folder: Path, method: str, *overrides: str, **settings) -> Path:
    """Folder of ``source`` compressed, without training unless ``epochs`` are given; resumed if it exists."""
    given = {"epochs": 0, **settings}.items()
    words = [f"{TRAINING.get(key, f'compression.{key}')}={value}" for key, value in given]
    started = [f"init_from={source}", f"compression={method}", "trainer.max_steps=-1"]
    return train([*started, *words, *overrides], folder=folder, if_exists="resume").folder


@pytest.fixture(scope="session")
def sparse(parent, tmp_path_factory) -> Path:
    """The parent with half of its weights."""
    return compress(parent, tmp_path_factory.mktemp("sparse") / "half", "magnitude", sparsity=0.5)


@pytest.fixture
def smaller(tmp_path) -> Callable[..., Path]:
    """``smaller(source, method, *overrides, name=..., **settings)``: see ``compress``."""

    def make(source: Path, method: str, *overrides: str, name: str = "smaller", **settings) -> Path:
        return compress(source, tmp_path / name, method, *overrides, **settings)

    return make


@pytest.fixture
def unchecked_shapes():
    """Turn off shape checks, which reject the symbolic sizes of a trace."""
    with shapes.unchecked_shapes():
        yield

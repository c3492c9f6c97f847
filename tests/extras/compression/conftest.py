"""Tiny parent runs of several models, and smaller runs made of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import shapes
from cli.conftest import read_json  # noqa: F401

from qa_arch.api import train
from qa_arch.contract import write_vectors
from qa_arch.data.sources import open_passages

TINY = [
    *("debug=fast", "encoder.initializer_range=0.2", "trainer.progress=false", "trainer.max_steps=4"),
    *("features.max_length=64", "features.stride=16", "features.max_question=24", "features.cache_dir=null"),
]
MODELS = {
    "bert": ["model=bert", "encoder.layers=4", "encoder.heads=4"],
    "proposed": ["model=proposed", "glove=file", "model.hidden=8", "encoder.layers=2", "encoder.heads=4"],
    "match_lstm": ["model=match_lstm/boundary", "glove=file", "model.hidden=8"],
}
TRAINING = {"epochs": "trainer.epochs", "lr": "optim.lr"}


@pytest.fixture(scope="session")
def sources(few_questions) -> Path:
    """A folder with train.json, calibration.json, dev.json and glove.txt."""
    files = [Path(override.partition("=")[2]) for override in few_questions]
    examples = [example for file in files for example in open_passages(str(file)).examples]
    write_vectors(files[0].parent / "glove.txt", (text for e in examples for text in (e.context, e.question)))
    return files[0].parent


@pytest.fixture(scope="session")
def parents(few_questions, sources, tmp_path_factory) -> Callable[..., Path]:
    """``parents(model, *overrides)`` -> the folder of its run, trained once."""
    folders: dict[tuple[str, ...], Path] = {}

    def build(model: str, *overrides: str) -> Path:
        key = (model, *overrides)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("parent") / f"{model}-run"
            vectors = f"glove.path={sources}/glove.txt"
            train([*MODELS[model], *TINY, *few_questions, vectors, *overrides], folder=folders[key])
        return folders[key]

    return build


@pytest.fixture(scope="session")
def parent(parents) -> Path:
    return parents("bert")


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

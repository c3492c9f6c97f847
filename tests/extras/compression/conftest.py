"""Tiny parent runs of several models, and the runs compressed from them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import shapes
from cli.conftest import read_json  # noqa: F401
from steps import step

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.contract import write_vectors
from qa_arch.data.sources import open_passages
from qa_arch.extras.compression.runs import compress
from qa_arch.records import read_record, write_record
from qa_arch.training.run import train

TINY = [
    "debug=fast",
    "encoder.initializer_range=0.2",
    "features.cache_dir=null",
    "features.max_length=64",
    "features.stride=16",
    "features.max_question=24",
    "trainer.progress=false",
    "trainer.max_steps=4",
]
MODELS = {
    "bert": ["model=bert", "encoder.layers=4", "encoder.heads=4"],
    "proposed": ["model=proposed", "glove=file", "model.hidden=8", "encoder.layers=2", "encoder.heads=4"],
    "match_lstm": ["model=match_lstm/boundary", "glove=file", "model.hidden=8"],
}


@pytest.fixture(scope="session")
def sources(few_questions) -> Path:
    """A folder with train.json, calibration.json, dev.json and glove.txt."""
    files = [Path(override.partition("=")[2]) for override in few_questions]
    examples = [example for file in files for example in open_passages(str(file)).examples]
    write_vectors(files[0].parent / "glove.txt", (text for e in examples for text in (e.context, e.question)))
    return files[0].parent


@pytest.fixture(scope="session")
def configure(few_questions, sources) -> Callable[..., Config]:
    def build(model: str, *overrides: str) -> Config:
        vectors = f"glove.path={sources}/glove.txt"
        return validate(compose([*MODELS[model], *TINY, *few_questions, vectors, *overrides]))

    return build


@pytest.fixture(scope="session")
def parents(configure, tmp_path_factory) -> Callable[..., Path]:
    """``parents(model, *overrides)`` -> the folder of its run, trained once."""
    folders: dict[tuple[str, ...], Path] = {}

    def build(model: str, *overrides: str) -> Path:
        key = (model, *overrides)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("parent") / f"{model}-run"
            folders[key].mkdir()
            train(configure(model, *overrides), folder=folders[key])
        return folders[key]

    return build


@pytest.fixture(scope="session")
def parent(parents) -> Path:
    return parents("bert")


@pytest.fixture
def run_folder(parent, tmp_path) -> Path:
    """A copy of the parent that a test may change."""
    return Path(shutil.copytree(parent, tmp_path / parent.name))


@pytest.fixture
def altered(parent, tmp_path) -> Callable[..., Path]:
    """``altered(section, **changes)`` -> a copy of the parent, named "altered", with other settings there."""

    def make(section: str, **changes) -> Path:
        folder = shutil.copytree(parent, tmp_path / "altered")
        record = read_record(folder)
        settings = {**record.config[section], **changes}
        write_record(folder, replace(record, config={**record.config, section: settings}))
        return folder

    return make


@pytest.fixture
def smaller(tmp_path) -> Callable[..., Path]:
    """``smaller(source, method, name=..., **settings)`` -> the folder of ``source`` compressed."""

    def make(source: Path, method: str, *, name: str = "smaller", **settings):
        compress(source, tmp_path / name, step(method, **settings))
        return tmp_path / name

    return make


@pytest.fixture
def unchecked_shapes():
    """Turn off shape checks, which reject the symbolic sizes of a trace."""
    with shapes.unchecked_shapes():
        yield

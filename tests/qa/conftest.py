"""A trained run of a tiny model, shared by all prediction tests."""

from pathlib import Path

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.qa.loading import load
from qa_arch.qa.reader import Reader
from qa_arch.training.run import train


@pytest.fixture(scope="session")
def tiny_config(few_questions) -> Config:
    small = ["model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null"]
    return validate(compose([*small, *few_questions, "features.max_length=64", "features.max_question=24"]))


@pytest.fixture(scope="session")
def tiny_run(tiny_config, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(tiny_config, folder=folder)
    return folder


@pytest.fixture(scope="session")
def predictor(tiny_run) -> Reader:
    return load(tiny_run, device="cpu")

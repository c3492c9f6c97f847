"""One trained run of a tiny model that all tests of prediction read."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_arch.cli.compose import compose
from qa_arch.config.files import write_json
from qa_arch.config.schema import Config, validate
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.spans.predictor import SpanPredictor, load_predictor
from qa_arch.training.run import train


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("tiny")
    for split, articles in (("train", 2), ("calibration", 1), ("dev", 1)):
        write_json(folder / f"{split}.json", write(generate(articles, 3, 1, split)))
    sets = [f"data.{split}={folder}/{split}.json" for split in ("train", "calibration", "dev")]
    small = ["model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null"]
    return validate(compose([*small, *sets, "features.max_length=64", "features.max_question=24"]))


@pytest.fixture(scope="session")
def tiny_run(tiny_config, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(tiny_config, folder=folder)
    return folder


@pytest.fixture(scope="session")
def predictor(tiny_run) -> SpanPredictor:
    return load_predictor(tiny_run, device="cpu")

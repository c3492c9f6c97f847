"""Readers of tiny models, and questions about generated texts."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from qa_arch import Reader, load
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.synthetic import generate
from qa_arch.records import Confidence, Threshold, read_record, write_record
from qa_arch.training.run import train
from qa_arch.types import QuestionSet

SMALL = [
    "debug=fast",
    "features.cache_dir=null",
    "trainer.progress=false",
    "features.max_length=64",
    "features.max_question=24",
]
MODELS = {
    "span": ["model=bert", "encoder.initializer_range=0.2"],
    "sequence": ["model=match_lstm/sequence", "glove=none", "encoder.width=8", "model.hidden=6"],
}


@pytest.fixture(scope="session")
def question_set() -> QuestionSet:
    """Questions whose passages need one or several windows; no article is in the data of the runs."""
    return generate(2, 8, 1, "dev")


@pytest.fixture(scope="session")
def make_run(tmp_path_factory, question_set, few_questions):
    """``make_run(name)`` -> the folder of a run whose threshold answers half of ``question_set``."""

    def build(name: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / name
        train(validate(compose([*MODELS[name], *SMALL, *few_questions])), folder=folder)
        odds = [
            load(folder)(example.question, example.context).null_odds for example in question_set.examples
        ]
        record = replace(
            read_record(folder),
            threshold=Threshold(value=statistics.median(odds), fitted_on="calibration"),
            confidence=Confidence(method="temperature", value=1.7, fitted_on="calibration"),
        )
        write_record(folder, record)
        return folder

    return build


@pytest.fixture(scope="session")
def span_run(make_run) -> Path:
    return make_run("span")


@pytest.fixture(scope="session")
def reader(span_run) -> Reader:
    return load(span_run, device="cpu")


@pytest.fixture(scope="session")
def sequence_run(make_run) -> Path:
    return make_run("sequence")

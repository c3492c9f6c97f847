"""Several run folders as one predictor."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from broken_records import change_record
from safetensors.torch import load_file, save_file

from qa_arch.errors import RunError
from qa_arch.features.vectors import WordVectors
from qa_arch.qa.loading import _row_mapping, _shared_words, load


@pytest.fixture
def second(span_run, tmp_path):
    """A copy of the run with perturbed weights."""
    folder = shutil.copytree(span_run, tmp_path / "second")
    path = folder / "model" / "model.safetensors"
    save_file({name: value + 0.05 * torch.randn_like(value) for name, value in load_file(path).items()}, path)
    return folder


QUESTION, CONTEXT = "Who wrote it?", "The song was written by Ada Stone in 1971, said Mr. Lund."


def test_null_odds_lie_between_those_of_the_members(span_run, second):
    loaded = [load(run, device="cpu") for run in (span_run, second)]
    first, other, both = (
        p.predict([(QUESTION, CONTEXT)])[0] for p in (*loaded, load([span_run, second], device="cpu"))
    )
    assert first.null_odds != other.null_odds
    assert (
        min(first.null_odds, other.null_odds) - 1 < both.null_odds < max(first.null_odds, other.null_odds) + 1
    )
    assert both.best.text in CONTEXT


def test_threshold_is_the_mean_of_the_members(span_run, second):
    change_record(second, threshold={"value": 3.0, "fitted_on": "calibration"})
    first = load(span_run, device="cpu").null_threshold
    assert load([span_run, second], device="cpu").null_threshold == pytest.approx((first + 3.0) / 2)
    change_record(second, threshold={"value": None, "fitted_on": "calibration"})
    assert load([span_run, second], device="cpu").null_threshold == math.inf


@pytest.mark.parametrize(
    ("name", "own", "other"), [("stride", 32, 5), ("max_length", 64, 60), ("max_question", 24, 20)]
)
def test_different_windows_are_refused(span_run, second, name, own, other):
    change_record(second, **{f"config__features__{name}": other})
    with pytest.raises(RunError, match=rf"features\.{name} is {other}, that of .* is {own}"):
        load([span_run, second], device="cpu")
    with pytest.raises(RunError, match=rf"features\.{name} is {own}, that of .* is {other}"):
        load([second, span_run], device="cpu")


def test_different_tokenizer_is_refused(span_run, second):
    path = second / "model" / "tokenizer" / "tokenizer.json"
    text = json.loads(path.read_text())
    text["normalizer"] = None
    path.write_text(json.dumps(text))
    with pytest.raises(RunError, match="tokenizer is not that of"):
        load([span_run, second], device="cpu")


def test_every_member_looks_up_words_as_if_alone():
    """As written, else in lower case, else unknown, whatever the other members know."""
    tables = [
        WordVectors(words, np.zeros((len(words) + 1, 2), np.float32))
        for words in (("apple", "Pear", "of"), ("Apple", "pear"), ("of",))
    ]
    index = _shared_words([*tables, None])
    for table in tables:
        own = _row_mapping(index, table).numpy()
        questions = ["Apple", "apple", "APPLE", "Pear", "pear", "Of", "of", "plum"]
        assert own[index.rows(questions)].tolist() == table.rows(questions).tolist()
    assert _shared_words([None, None]) is None

"""``experiments/decision/tables.py``: when it tests, and its ensemble from the answers of several runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripts import load

from qa_arch.data.question_sets import question_set
from qa_arch.metrics.abstention import auroc
from qa_arch.provenance import read_registration
from qa_arch.records import DEV, find_runs, recorded
from qa_arch.results.experiments import registered_systems
from qa_arch.results.systems import Questions, load_questions
from qa_arch.types import Example

decision = load("decision/tables.py")

FOLDER = Path(__file__).parents[2] / "experiments/decision"


@pytest.fixture
def run():
    return find_runs([FOLDER / "records"])[0]


def test_nothing_is_tested_before_the_last_run_is_scored(monkeypatch) -> None:
    runs = recorded(FOLDER, "**")
    registered = read_registration(FOLDER).runs
    assert [len(arm.runs) for arm in registered_systems(FOLDER, registered)] == [5] * 5
    side = (runs[0][0], replace(runs[0][1], settings_hash="f" * 64))
    monkeypatch.setattr("qa_arch.results.experiments.recorded", lambda *_: [*runs, side])
    assert [len(arm.runs) for arm in registered_systems(FOLDER, registered)] == [5] * 5
    monkeypatch.setattr("qa_arch.results.experiments.recorded", lambda *_: [side, *runs[1:]])
    assert len(decision.tables(FOLDER)) == 1
    assert not decision.figures(FOLDER)


def test_ensemble_of_one_run_scores_as_the_run_does(run) -> None:
    rows = load_questions(*run, DEV)
    expected = {
        "f1": rows.f1.mean(),
        "forced_f1": rows.span_f1[rows.answerable].mean(),
        "auroc": auroc(-rows.null_odds, rows.answerable),
    }
    assert decision.ensemble([run]) == pytest.approx({name: 100 * value for name, value in expected.items()})


def test_contractions_of_not_are_rejoined() -> None:
    asked = ("who does n't own it ?", "what isn't there ?", "who has ten n'ths ?")
    questions = question_set("asked", [Example(q, q, "Nobody.", "Mill") for q in asked], "2.0")
    rejoined = load("decision/split.py").rejoined(questions)
    assert [example.question for example in rejoined.examples] == [
        "who doesn't own it ?",
        "what isn't there ?",
        "who has ten n'ths ?",
    ]
    assert rejoined.fingerprint != questions.fingerprint


def test_vote_sums_the_probabilities_of_equal_spans(run) -> None:
    rows = load_questions(*run, DEV)

    def answers(probability: float, end: int, f1: float, odds: float) -> Questions:
        constant = {"start": 0, "end": end, "probability": probability, "span_f1": f1, "null_odds": odds}
        return replace(rows, **{name: np.full(len(rows), value) for name, value in constant.items()})

    equal = [answers(0.3, 4, 1.0, 0.0)] * 2
    for probability, expected in ((0.5, 1.0), (0.7, 0.0)):
        odds, f1 = decision.vote([answers(probability, 9, 0.0, 3.0), *equal])
        assert set(odds) == {1.0}
        assert set(f1) == {expected}

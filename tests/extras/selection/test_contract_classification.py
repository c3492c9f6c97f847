"""What every classifier of questions must keep to: each ``conf/model/**/*.yaml`` of ``task: classification``.

The companion of ``test_contract.py``: four questions against all classes.
"""

from __future__ import annotations

import json
import math

import pytest
from contract import Fleet, contenders, models_of, require_same_step, title

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.contract import logits_of
from qa_arch.extras.selection.contract import CLASSES, QUESTIONS
from qa_arch.extras.selection.predictor import classify
from qa_arch.extras.selection.sets import CLASSES as LABELS
from qa_arch.records import RANKED
from qa_arch.training.run import train

VARIANTS = {
    "one_direction": ("question_types", ["model.bidirectional=false", "model.pooling=mean"]),
    "trained_vectors": ("question_types", ["model.train_vectors=true"]),
}
CASES = {name: (name, []) for name in models_of(("classification",))} | VARIANTS


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    return [*CLASSES.settings(tmp_path_factory.mktemp("classes")), "model.hidden=6", "model.dropout=0.0"]


def configure(case: str, settings: list[str]) -> Config:
    name, overrides = CASES[case]
    return validate(compose([f"model={name}", *settings, *overrides]))


@pytest.fixture(scope="module")
def fleet(settings) -> Fleet:
    return contenders(lambda case: configure(case, settings), CLASSES)


@pytest.mark.parametrize("check", CLASSES.checks, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_it_keeps_to_the_contract(fleet, case, check):
    check(fleet[case])


@pytest.mark.parametrize("case", CASES)
def test_every_class_has_a_score_and_padding_has_none(fleet, case):
    scores = logits_of(fleet[case].model, fleet[case].batch(multiple=7))
    assert scores.shape == (4, 56)
    assert scores[:, :50].isfinite().all()
    assert (scores[:, 50:] == -math.inf).all()


def test_a_trained_run_loads_scores_and_classifies_as_it_did(settings, tmp_path):
    # The sets share their questions: 40 epochs learn them by heart.
    longer = ["trainer.max_steps=-1", "trainer.epochs=40", "optim.lr=2e-2", "optim.schedule=constant"]
    record = train(configure("question_types", [*settings, *longer]), folder=tmp_path)
    assert record.status == "ok"
    point = record.scores["dev"][RANKED]
    assert point.metric("accuracy") == point.metric("main_accuracy") == 100
    assert record.references["dev"]["rules"].metric("main_accuracy") == 100
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    questions = [*QUESTIONS, "Who paints boats ?"]
    typed = classify(predictor, questions)
    assert [item.label for item in typed] == [*QUESTIONS.values(), "HUM:ind"]
    selections = json.loads((tmp_path / "selections.json").read_text())
    for item, scores in zip(typed, selections.values(), strict=False):
        powers = [math.exp(score) for score in scores]
        assert item.probability == pytest.approx(max(powers) / sum(powers), rel=1e-4)
        assert LABELS[scores.index(max(scores))] == item.label
    assert classify(predictor, []) == []


@pytest.mark.slow  # candidates take the same path, and do it in the fast tests
def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    require_same_step(
        fleet, CASES, step_on_two_ranks, lambda contender, rank: contender.batch(rows=[rank, rank + 2])
    )

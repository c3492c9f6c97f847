"""What every classifier of questions must keep to: each ``conf/model/**/*.yaml`` of ``task: classification``.

The companion of ``test_contract.py``: four questions against all classes.
"""

from __future__ import annotations

import json
import math

import pytest
from contract import Fleet, title
from omegaconf import OmegaConf

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import Config, validate
from qa_arch.contract.contenders import Contender, logits_of
from qa_arch.contract.contract_sets import QUESTIONS
from qa_arch.contract.contracts import CLASSES
from qa_arch.data.question_types import CLASSES as LABELS
from qa_arch.tasks import task_of
from qa_arch.tasks.selection_predictor import classify
from qa_arch.training.run import train
from qa_arch.types.records import RANKED

FOLDER = conf_folder() / "model"
MODELS = [
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in sorted(FOLDER.rglob("*.yaml"))
    if OmegaConf.load(path).get("task") == "classification"
]
VARIANTS = {
    "one_direction": ("question_types", ["model.bidirectional=false", "model.pooling=mean"]),
    "trained_vectors": ("question_types", ["model.train_vectors=true"]),
}
CASES = {name: (name, []) for name in MODELS} | VARIANTS


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    return [*CLASSES.settings(tmp_path_factory.mktemp("classes")), "model.hidden=6", "model.dropout=0.0"]


def configure(case: str, settings: list[str]) -> Config:
    name, overrides = CASES[case]
    return validate(compose([f"model={name}", *settings, *overrides]))


@pytest.fixture(scope="module")
def fleet(settings) -> dict[str, Contender]:
    """Every case, assembled on first use."""

    def build(case: str) -> Contender:
        config = configure(case, settings)
        return Contender(config, task_of(config.model).assemble(config), CLASSES)

    return Fleet(build)


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


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = [
        (case, fleet[case].model, [fleet[case].batch(rows=[rank, rank + 2]) for rank in range(2)])
        for case in CASES
    ]
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

"""What every answer-selection model must keep to: each ``conf/model/**/*.yaml`` of ``task: selection``.

The companion of ``test_contract.py``, with the harness of this task: a handful of questions against
the sentences of their paragraphs. A new model is tested by its YAML alone.
"""

from __future__ import annotations

import json

import pytest
import torch
from contract import ALL, Fleet, contenders, models_of, require_same_step, title
from omegaconf import OmegaConf

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.contract import Contender, logits_of
from qa_arch.extras.selection.contract import SELECTION
from qa_arch.extras.selection.features import PairCollator
from qa_arch.records import RANKED
from qa_arch.tasks import task_of
from qa_arch.training.run import train
from qa_arch.types.tensors import SelectionBatch

MODELS = models_of(("selection",))
VARIANTS = {
    "suffixes": ("qa_lstm/a", ["model.encoder=subilstm", "model.window=3"]),
    "three_largest": ("qa_lstm/c", ["model.k=3"]),
    "wide_filters": ("qa_lstm/d", ["model.filter_width=4"]),
    "fixed_vectors": ("qa_lstm/g", ["glove=file", "model.train_vectors=false"]),
}
CASES = {name: (name, []) for name in MODELS} | VARIANTS
SMALL = {"hidden": 6, "dropout": 0.0}


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    return SELECTION.settings(tmp_path_factory.mktemp("selection"))


def configure(case: str, settings: list[str]) -> Config:
    name, overrides = CASES[case]
    section = OmegaConf.load(ALL[name])
    small = {**SMALL, "filters": min(section.get("filters", 0), 9)}
    own = [f"model.{key}={value}" for key, value in small.items() if key in section]
    return validate(compose([f"model={name}", *settings, *own, *overrides]))


@pytest.fixture(scope="module")
def fleet(settings) -> Fleet:
    return contenders(lambda case: configure(case, settings), SELECTION)


def pairs(contender: Contender, rows: list[int]) -> SelectionBatch:
    """Pairs as training draws them in its first epoch."""
    return PairCollator(contender.parts.tables["train"], 2, contender.config.seed)((0, rows))


def test_every_model_of_the_task_is_a_case():
    assert {f"qa_lstm/{letter}" for letter in "abcdefghi"} <= set(MODELS)


@pytest.mark.parametrize("check", SELECTION.checks, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_it_keeps_to_the_contract(fleet, case, check):
    check(fleet[case])


@pytest.mark.parametrize("case", CASES)
def test_every_score_is_a_cosine(fleet, case):
    batch = fleet[case].batch(multiple=7)
    assert not batch.offered.all()
    assert (logits_of(fleet[case].model, batch)[batch.offered].abs() <= 1 + 1e-6).all()


@pytest.mark.parametrize("name", ["qa_lstm/a", "qa_lstm/i", "fixed_vectors"])
def test_a_trained_run_loads_and_scores_as_it_did(name, settings, tmp_path):
    record = train(configure(name, settings), folder=tmp_path)
    assert record.status == "ok"
    assert record.scores["dev"][RANKED].metric("questions") == 5
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    torch.manual_seed(5)
    task = task_of(predictor.config.model).load_splits(predictor.config.data)["dev"]
    output = json.loads((tmp_path / "selections.json").read_text())
    scored = predictor.read(task)
    assert {question.id: scored[row] for row, question in enumerate(task.questions)} == output


@pytest.mark.slow
def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    require_same_step(
        fleet, CASES, step_on_two_ranks, lambda contender, rank: pairs(contender, [rank, rank + 2])
    )

"""What every answer-selection model must keep to: each ``conf/model/**/*.yaml`` of ``task: selection``.

The companion of ``test_contract.py``, with the harness of this task: a handful of questions against
the sentences of their paragraphs. A new model is tested by its YAML alone.
"""

from __future__ import annotations

import json

import pytest
import torch
from contract import Fleet, title
from omegaconf import OmegaConf

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import Config, validate
from qa_arch.contract.contenders import Contender, logits_of
from qa_arch.contract.contracts import SELECTION
from qa_arch.features.selection_features import PairCollator
from qa_arch.tasks import task_of
from qa_arch.training.run import train
from qa_arch.types.records import RANKED
from qa_arch.types.tensors import SelectionBatch

FOLDER = conf_folder() / "model"
MODELS = {
    path.relative_to(FOLDER).with_suffix("").as_posix(): path
    for path in sorted(FOLDER.rglob("*.yaml"))
    if OmegaConf.load(path).get("task") == "selection"
}
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
    section = OmegaConf.load(MODELS[name])
    small = {**SMALL, "filters": min(section.get("filters", 0), 9)}
    return validate(
        compose(
            [
                f"model={name}",
                *settings,
                *(f"model.{k}={v}" for k, v in small.items() if k in section),
                *overrides,
            ]
        )
    )


@pytest.fixture(scope="module")
def fleet(settings) -> dict[str, Contender]:
    """Every case, assembled on first use."""

    def build(case: str) -> Contender:
        config = configure(case, settings)
        return Contender(config, task_of(config.model).assemble(config), SELECTION)

    return Fleet(build)


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


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = [
        (case, fleet[case].model, [pairs(fleet[case], [rank, rank + 2]) for rank in range(2)])
        for case in CASES
    ]
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

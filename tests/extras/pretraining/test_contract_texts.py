"""Contract of pre-training models, on encoders of several families, and of our Transformer as a span model.

Companion of ``test_contract.py`` on a handful of stories in blocks of 32 tokens.
"""

from __future__ import annotations

import pytest
from contract import LazyCases, build_subjects, every_other_row, require_same_step, title

from qa_arch.cli.compose import compose
from qa_arch.config.schema import Config, task_entries, validate
from qa_arch.contract import SPANS, Subject
from qa_arch.extras.pretraining.contracts import TEXTS
from qa_arch.extras.pretraining.manifest import EXTRA
from qa_arch.tasks import task_of

CASES = {
    "mlm": "albert",
    "mlm_nsp": "bert",
    "mlm_sop": "roberta",
    "causal": "qa_transformer",
    "mlm_spans": "bert",
}
"""Objective -> encoder family, one of them our own Transformer."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> list[str]:
    return TEXTS.settings(tmp_path_factory.mktemp("stories"))


def configure(case: str, settings: list[str]) -> Config:
    model = [f"model=pretrain/{case}", f"encoder={CASES[case]}", "encoder.init=random"]
    return validate(compose([*model, *settings]))


@pytest.fixture(scope="module")
def subjects(texts) -> LazyCases:
    return build_subjects(lambda case: configure(case, texts), TEXTS)


def test_every_objective_is_a_case():
    files = (EXTRA.conf / "model" / "pretrain").glob("*.yaml")
    assert {path.stem for path in files} == {*CASES}
    tasks = {task_of(compose([f"model=pretrain/{case}"])["model"]).name for case in CASES}
    assert tasks == {name for name, entry in task_entries().items() if entry.reads == "corpus"}


@pytest.mark.parametrize("check", TEXTS.checks, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_model_meets_the_contract(subjects, case, check):
    check(subjects[case])


@pytest.mark.slow
def test_all_models_step_together_on_two_ranks(subjects, step_on_two_ranks):
    require_same_step(subjects, CASES, step_on_two_ranks, every_other_row)


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Subject:
    """The span baseline on our Transformer."""
    settings = SPANS.settings(tmp_path_factory.mktemp("spans"))
    config = validate(compose(["model=qa_transformer", *settings, "model.dropout=0.0"]))
    return Subject(config, task_of(config.model).assemble(config), SPANS)


@pytest.mark.parametrize("check", SPANS.checks, ids=title)
def test_our_transformer_meets_the_span_contract(ours, check):
    check(ours)

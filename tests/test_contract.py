"""What every model must keep to: each ``conf/model/**/*.yaml``, and the proposed model in its variants.

Here are the models that find spans; those of ``task: selection`` are in ``test_contract_selection.py``,
those of ``task: classification`` in ``test_contract_classification.py``, those that are pre-trained on a
corpus in ``test_contract_language.py``. The checks are ``qa_arch.contract``'s, which ``qa-arch check-model``
runs.

Each is composed as a user would, with a tiny random encoder of its own family and a tokenizer trained
on the spot. A new architecture is tested by its YAML alone.
"""

from __future__ import annotations

import pytest
from contract import Fleet, title
from omegaconf import OmegaConf

from qa_arch.cli.compose import compose
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import TASKS, Config, validate
from qa_arch.contract.contenders import Contender, trained_run_answers_as_scored
from qa_arch.contract.contracts import SPANS
from qa_arch.tasks.span import TASK

FOLDER = conf_folder() / "model"
ALL = {p.relative_to(FOLDER).with_suffix("").as_posix(): p for p in sorted(FOLDER.rglob("*.yaml"))}
MODELS = {
    name: path for name, path in ALL.items() if OmegaConf.load(path).get("task") in ("span", "sequence")
}
VARIANTS = {
    "both": ["model.no_answer=both"],
    "bi_boundary": ["head=bi_boundary"],
    "biaffine": ["head=biaffine"],
    "biaffine_verifier": ["head=biaffine", "model.no_answer=verifier", "model.matching=words"],
    "glove": ["glove=file"],
    "joint": ["loss=joint", "decode=any"],
}
CASES = {name: (name, []) for name in MODELS} | {
    f"proposed-{name}": ("proposed", overrides) for name, overrides in VARIANTS.items()
}
CASES["bert-biaffine"] = ("bert", ["head=biaffine", "model.head.hidden=12"])
CASES["bert-boundary"] = ("bert", ["head=boundary", "model.head.hidden=12"])
FIXED = ["glove=file", "encoder.width=null", "encoder.vocabulary=null"]
CASES["match_lstm-fixed"] = ("match_lstm/boundary", [*FIXED, "model.lstm=standard"])


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    return SPANS.settings(tmp_path_factory.mktemp("contract"))


def configure(name: str, overrides: list[str], settings: list[str]) -> Config:
    section = compose([f"model={name}"])["model"]
    small = [f"model.{key}={value}" for key, value in (("hidden", 12), ("dropout", 0.0)) if key in section]
    return validate(compose([f"model={name}", *settings, *small, *overrides]))


@pytest.fixture(scope="module")
def fleet(settings) -> dict[str, Contender]:
    """Every case, assembled on first use."""

    def build(case: str) -> Contender:
        name, overrides = CASES[case]
        config = configure(name, overrides, settings)
        return Contender(config, TASK.assemble(config), SPANS)

    return Fleet(build)


@pytest.mark.parametrize("name", ALL)
def test_the_task_is_known(name):
    assert OmegaConf.load(ALL[name]).get("task") in TASKS


@pytest.mark.parametrize("check", SPANS.checks, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_it_keeps_to_the_contract(fleet, case, check):
    check(fleet[case])


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_run_loads_and_answers_as_it_did(name, fleet):
    trained_run_answers_as_scored(fleet[name])


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = []
    for case in CASES:
        contender = fleet[case]
        rows = list(range(len(contender.parts.tables["train"])))
        batches = [contender.batch(rows=rows[rank::2]) for rank in range(2)]
        everyone.append((case, contender.parts.model, batches))
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

"""The contract of all models: each ``conf/model/**/*.yaml``, and variants of the proposed model.

These are the span models; models of extras (selection, classification, pre-training) are tested with their
extra. The checks are those of ``qa_arch.contract``, which ``qa-arch check-model`` runs.

Each model is composed as a user would, with a tiny random encoder of its own family and a tokenizer trained
in the test. A new architecture needs only its YAML to be tested.
"""

import pytest
from contract import ALL, LazyCases, build_subjects, every_other_row, models_of, require_same_step, title
from omegaconf import OmegaConf

from qa_arch.config.compose import compose
from qa_arch.config.schema import LOSSES, Config, recipes, validate
from qa_arch.contract import CHECKS, learns_four_questions, trained_run_answers_as_scored, trial_settings
from qa_arch.models.store import check_model

MODELS = models_of(("span", "sequence"))
SAME_BRANCHES = ("glove", "match", "no_overlap", "plain_verifier", "pointer", "weighted_verifier")
"""Ablations that differ from another case only in a width, or combine the branches of two."""
CASES = {name: (name, []) for name in MODELS if not name.endswith(SAME_BRANCHES)}
CASES["proposed-bi_boundary"] = ("proposed", ["head=bi_boundary"])
CASES["bert-boundary"] = ("bert", ["head=boundary", "model.head.hidden=12"])
FIXED = ["glove=file", "encoder.width=null", "encoder.vocabulary=null"]
CASES["match_lstm-fixed"] = ("match_lstm/boundary", [*FIXED, "model.lstm=standard"])

LEARNING = (
    *("bert", "albert", "distilbert", "roberta", "proposed", "ablation/together"),
    *("match_lstm/bi_ans_ptr", "match_lstm/sequence", "qa_transformer"),
)
"""Models that must overfit, the slowest check; the others combine branches of these."""

SAME_RUNS = ("match_lstm/boundary", "match_lstm/boundary_b", "match_lstm/bi_ans_ptr")
"""Models that are saved, loaded and read like ``match_lstm/boundary_overlap``."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    return trial_settings(tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="module")
def subjects(settings) -> LazyCases:
    def configure(case: str) -> Config:
        name, overrides = CASES[case]
        config = compose([f"model={name}", *settings, *overrides])
        for key in {"hidden", "dropout"} & config["model"].keys():
            config["model"][key] = {"hidden": 12, "dropout": 0.0}[key]
        return validate(config)

    return build_subjects(configure)


@pytest.mark.parametrize("name", ALL)
def test_task_is_known(name):
    assert OmegaConf.load(ALL[name]).get("task") in {*LOSSES, *recipes()}


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(SAME_BRANCHES)])
def test_ablation_of_known_branches_fits_its_class(name):
    check_model(validate(compose([f"model={name}"])).model)


@pytest.mark.parametrize(
    ("case", "check"),
    [
        pytest.param(case, check, id=f"{case}-{title(check)}")
        for case in CASES
        for check in CHECKS
        if check is not learns_four_questions or case in LEARNING
    ],
)
def test_model_satisfies_the_contract(subjects, case, check):
    check(subjects[case])


@pytest.mark.parametrize(
    "name", [name for name in MODELS if not name.startswith("ablation/") and name not in SAME_RUNS]
)
def test_trained_run_loads_and_answers_as_scored(name, subjects):
    trained_run_answers_as_scored(subjects[name])


@pytest.mark.slow  # the contract checks what DDP needs: no gradient is missing
def test_all_models_step_together_on_two_ranks(subjects, step_on_two_ranks):
    require_same_step(subjects, CASES, step_on_two_ranks, every_other_row)

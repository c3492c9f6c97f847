"""What every pre-training model must keep to: each ``conf/model/**/*.yaml`` of a task that reads a corpus.

The companion of ``test_contract.py``: a handful of stories in blocks of 32 tokens, on encoders of several
families.
"""

from __future__ import annotations

import json

import pytest
from contract import Fleet, title
from omegaconf import OmegaConf

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import CORPUS_TASKS, Config, validate
from qa_arch.contract.contenders import Contender
from qa_arch.contract.contracts import TEXTS
from qa_arch.results.record import read_questions
from qa_arch.tasks import task_of
from qa_arch.training.run import train
from qa_arch.types.records import TOKENS, is_language

FOLDER = conf_folder() / "model"
MODELS = [
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in sorted(FOLDER.rglob("*.yaml"))
    if OmegaConf.load(path).get("task") in CORPUS_TASKS
]
FAMILIES = ("roberta", "albert", "distilbert", "qa_transformer", "qa_transformer")
CASES = {name: (name, "bert") for name in MODELS}
CASES |= {
    f"{name}-{family}": (f"pretrain/{name}", family)
    for name, family in zip(("mlm_sop", "denoising", "causal", "causal", "mlm"), FAMILIES, strict=True)
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    return TEXTS.settings(tmp_path_factory.mktemp("stories"))


def configure(case: str, settings: list[str]) -> Config:
    name, family = CASES[case]
    small = {"layers": 1, "dropout": 0.0}
    section = OmegaConf.load(FOLDER / f"{name}.yaml")
    own = [f"model.{key}={value}" for key, value in small.items() if key in section]
    return validate(compose([f"model={name}", f"encoder={family}", *settings, *own]))


@pytest.fixture(scope="module")
def fleet(settings) -> dict[str, Contender]:
    def build(case: str) -> Contender:
        config = configure(case, settings)
        return Contender(config, task_of(config.model).assemble(config), TEXTS)

    return Fleet(build)


def test_every_objective_is_a_case():
    assert {task_of(OmegaConf.load(FOLDER / f"{name}.yaml")).name for name in MODELS} == set(CORPUS_TASKS)


@pytest.mark.parametrize("check", TEXTS.checks, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_it_keeps_to_the_contract(fleet, case, check):
    check(fleet[case])


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_run_loads_and_scores_as_it_did(name, settings, tmp_path):
    record = train(configure(name, settings), folder=tmp_path)
    assert (record.status, record.threshold, record.confidence) == ("ok", None, None)
    point = record.scores["calibration"][TOKENS]
    assert is_language(point.protocol)
    assert point.protocol == record.data["train"].protocol == record.data["calibration"].protocol
    [epoch] = record.epochs
    for metric in ("loss", "perplexity", "token_accuracy", "bits_per_byte"):
        assert epoch.value(f"calibration_{metric}") == pytest.approx(point.metric(metric), rel=1e-6)
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    split = task_of(predictor.config.model).load_splits(predictor.config.data)["calibration"]
    again = predictor.read(split)
    rows = read_questions(tmp_path / "sets" / "calibration")
    assert [block.loss for block in again.blocks] == pytest.approx(rows["loss"], rel=1e-5)
    assert [block.right for block in again.blocks] == rows["right"]
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "ok"


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = []
    for case in CASES:
        rows = range(len(fleet[case].parts.tables["train"]))
        batches = [fleet[case].batch(rows=list(rows[rank::2])) for rank in range(2)]
        everyone.append((case, fleet[case].model, batches))
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

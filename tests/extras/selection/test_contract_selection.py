"""Contract of ranking models: every ``conf/model/**/*.yaml`` of tasks ``selection`` and ``classification``,
on a handful of questions against the sentences of their paragraphs or against all classes.

Companion of ``test_contract.py``. A new model is covered by its YAML file alone.
"""

from __future__ import annotations

import json
import math

import pytest
from contract import ALL, LazyCases, build_subjects, models_of, require_same_step, title
from omegaconf import OmegaConf

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.contract import Subject, logits_of
from qa_arch.extras.selection.contract import CONTRACTS, QUESTIONS
from qa_arch.extras.selection.features import PairCollator
from qa_arch.records import RANKED
from qa_arch.tasks import task_of
from qa_arch.training.run import train

VARIANTS = {
    "suffixes": ("qa_lstm/a", ["model.encoder=subilstm", "model.window=3"]),
    "wide_filters": ("qa_lstm/d", ["model.filter_width=4"]),
    "fixed_vectors": ("qa_lstm/g", ["glove=file", "model.train_vectors=false"]),
    "one_direction": ("question_types", ["model.bidirectional=false", "model.pooling=mean"]),
    "trained_vectors": ("question_types", ["model.train_vectors=true"]),
}
CASES = {name: (name, []) for name in models_of(CONTRACTS)} | VARIANTS
SELECTING = [case for case, (name, _) in CASES.items() if name.startswith("qa_lstm")]
CLASSIFYING = [case for case in CASES if case not in SELECTING]
SMALL = {"hidden": 6, "dropout": 0.0}


def task_name(case: str) -> str:
    return str(OmegaConf.load(ALL[CASES[case][0]])["task"])


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, list[str]]:
    return {task: contract.settings(tmp_path_factory.mktemp(task)) for task, contract in CONTRACTS.items()}


def configure(case: str, settings: dict[str, list[str]], *more: str) -> Config:
    name, overrides = CASES[case]
    section = OmegaConf.load(ALL[name])
    small = {**SMALL, "filters": min(section.get("filters", 0), 9)}
    model_settings = [f"model.{key}={value}" for key, value in small.items() if key in section]
    shared = settings[task_name(case)]
    return validate(compose([f"model={name}", *shared, *model_settings, *overrides, *more]))


@pytest.fixture(scope="module")
def subjects(settings) -> LazyCases:
    by_task = {
        task: build_subjects(lambda case: configure(case, settings), contract)
        for task, contract in CONTRACTS.items()
    }
    return LazyCases(lambda case: by_task[task_name(case)][case])


def test_every_model_is_a_case():
    assert {"question_types", *(f"qa_lstm/{letter}" for letter in "abcdefghi")} <= set(CASES)


@pytest.mark.parametrize("check", CONTRACTS["selection"].checks, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_model_meets_the_contract(subjects, case, check):
    check(subjects[case])


@pytest.mark.parametrize("case", SELECTING)
def test_every_score_is_a_cosine(subjects, case):
    batch = subjects[case].batch(multiple=7)
    assert not batch.offered.all()
    assert (logits_of(subjects[case].model, batch)[batch.offered].abs() <= 1 + 1e-6).all()


@pytest.mark.parametrize("case", CLASSIFYING)
def test_every_class_has_a_score_and_padding_has_none(subjects, case):
    scores = logits_of(subjects[case].model, subjects[case].batch(multiple=7))
    assert scores.shape == (4, 56)
    assert scores[:, :50].isfinite().all()
    assert (scores[:, 50:] == -math.inf).all()


@pytest.mark.parametrize("name", ["qa_lstm/i", "fixed_vectors"])
def test_loaded_run_reproduces_its_scores(name, settings, tmp_path):
    record = train(configure(name, settings), folder=tmp_path)
    assert record.scores["dev"][RANKED].metric("questions") == 5
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    task = task_of(predictor.config.model).load_splits(predictor.config.data)["dev"]
    output = json.loads((tmp_path / "selections.json").read_text())
    scored = predictor.read(task)
    assert {question.id: scored[row] for row, question in enumerate(task.questions)} == output


def test_trained_run_classifies_its_training_questions(settings, tmp_path):
    # All sets have the same questions; 40 epochs memorise them.
    longer = ["trainer.max_steps=-1", "trainer.epochs=40", "optim.lr=2e-2", "optim.schedule=constant"]
    record = train(configure("question_types", settings, *longer), folder=tmp_path)
    point = record.scores["dev"][RANKED]
    assert point.metric("accuracy") == point.metric("main_accuracy") == 100
    assert record.references["dev"]["rules"].metric("main_accuracy") == 100
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    assert predictor.classify([*QUESTIONS, "Who paints boats ?"]) == [*QUESTIONS.values(), "HUM:ind"]


@pytest.mark.slow
def test_all_models_step_together_on_two_ranks(subjects, step_on_two_ranks):
    def pairs(subject: Subject, rank: int):
        """Pairs as sampled in the first epoch of training."""
        config, parts = subject.config, subject.parts
        collate = PairCollator(parts.tables["train"], subject.task.negatives(config, parts), config.seed)
        return collate((0, [rank, rank + 2]))

    require_same_step(subjects, CASES, step_on_two_ranks, pairs)

"""Contract of ranking models: every ``conf/model/**/*.yaml`` of tasks ``selection`` and ``classification``,
on a handful of questions against the sentences of their paragraphs or against all classes.

Companion of ``test_contract.py``. A new model is covered by its YAML file alone.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import LazyCases, build_subjects, models_of, require_same_step, title
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

import qa_arch
from qa_arch.cli.main import main
from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.contract import (
    TRIAL,
    Row,
    Subject,
    difference,
    gradients_reach_all_parameters,
    logits_of,
    output_has_its_shape,
    overfit,
    require,
    require_answers,
    same_alone_and_padded,
    saved_weights_load,
    tolerance,
    write_squad,
    write_vectors,
)
from qa_arch.extras.selection import recipe
from qa_arch.extras.selection.features import CandidateCollator
from qa_arch.extras.selection.recipe import SelectionPredictor, ranks
from qa_arch.files import write_atomic
from qa_arch.models import store
from qa_arch.records import CALIBRATION, TRAIN
from qa_arch.training.run import train

TOWN = "Mira paints red boats. Tarn keeps nine bees. It rains in Lomm."
FERRY = "The ferry of Lomm carried twenty goats to the isle on the third day of May. It sank. Why?"
CHOICES: list[Row] = [
    (TOWN, "Which sentence is it that red boats belongs to?", "red boats"),
    (TOWN, "nine what?", "nine"),
    (TOWN, "Lomm what?", "Lomm"),
    (FERRY, "goats what?", "goats"),
    ("Bees sing. Boats sink.", "Boats what?", "Boats"),
]

QUESTIONS = {
    "When did the ferry of Lomm first carry goats ?": "NUM:date",
    "Who paints boats ?": "HUM:ind",
    "Where is Lomm ?": "LOC:other",
    "What does a bee eat in the winter ?": "ENTY:food",
}
"""Question -> its class."""


def candidates(folder: Path) -> list[str]:
    """Questions with the sentences of their passages as candidates."""
    splits = {"train": CHOICES, "calibration": CHOICES[:4], "dev": CHOICES}
    for split, rows in splits.items():
        write_squad(folder / f"{split}.json", rows)
    write_vectors(folder / "vectors.txt", (row[0] for row in CHOICES))
    return [
        *TRIAL,
        "data.train_questions=0",
        "selection.negatives=2",
        "selection.unknown_buckets=3",
        "selection.margin=0.9",  # above the spread of cosines at initialisation, so every pair has a loss
        *(f"data.{split}={folder}/{split}.json" for split in splits),
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
    ]


def classes(folder: Path) -> list[str]:
    """Four questions with all classes as candidates, in another order in each of the three splits."""
    lines = [f"{label} {text}\n" for text, label in QUESTIONS.items()]
    splits = ("train", "calibration", "dev")
    for nth, split in enumerate(splits):
        write_atomic(folder / f"{split}.label", "".join(lines[nth:] + lines[:nth]))
    write_vectors(folder / "vectors.txt", QUESTIONS)
    return [
        *TRIAL,
        "data=question_types",
        "data.train_questions=0",
        *(f"data.{split}=types:{folder}/{split}.label" for split in splits),
        "glove=file",
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
    ]


SETTINGS = {"selection": candidates, "classification": classes}
"""Task -> function that writes its few questions and returns the overrides with which a run reads them."""


class RankingSubject(Subject):
    """A model that scores candidates, on all candidates of each question."""

    output_type = Float[Tensor, "B N"]

    def batch(self, split: str = TRAIN, rows: list[int] | None = None, multiple: int = 1) -> Any:
        table = self.parts.tables[split]
        batch = CandidateCollator(table)(rows or list(range(len(table))))
        axes = ("question", "question_mask", "answer", "answer_mask", "candidate", "offered", "right")
        widened = {name: pad(x := getattr(batch, name), (0, -x.shape[1] % multiple)) for name in axes}
        return replace(batch, **widened)

    def outputs(self, split: str) -> Any:
        predictor = SelectionPredictor(self.model, self.parts.vectors, self.config)
        return predictor.rank(self.parts.sets[split], table=self.parts.tables[split])

    def save(self, folder: Path) -> None:
        store.save_vectors(folder, self.parts.vectors)
        store.save_weights(folder, self.model)

    def load(self, folder: Path) -> Any:
        vectors = store.load_vectors(folder)
        return recipe.build_model(self.config.model, None, vectors, inputs=recipe.INPUTS)


def candidates_have_scores(subject: Subject) -> None:
    """Every candidate has a finite score, padding -inf."""
    batch = subject.batch(multiple=7)
    scores = logits_of(subject.model, batch)
    require(scores[batch.offered].isfinite().all(), "a candidate's score is not finite")
    require((scores[~batch.offered] == -math.inf).all(), "padding in place of a candidate has a score")
    require(len(scores[batch.offered].unique()) > 3, "all candidates score the same")


def order_of_candidates_has_no_effect(subject: Subject) -> None:
    """The score of a candidate does not depend on the order of the candidates."""
    batch = subject.batch()
    order = torch.arange(batch.candidate.shape[1]).flip(0)
    reversed_ = replace(
        batch,
        candidate=batch.candidate[:, order],
        right=batch.right[:, order],
        offered=batch.offered[:, order],
    )
    first, second = (logits_of(subject.model, x) for x in (batch, reversed_))
    change = difference(first[:, order], second)
    require(change <= tolerance(first), f"scores change by {change:.2g} with the order of the candidates")


def learns_its_candidates(subject: Subject) -> None:
    """The model overfits four questions, ranking the right candidate first."""
    steps = 80
    questions = subject.parts.sets[CALIBRATION]
    actual = ranks(questions, overfit(subject, CALIBRATION, steps=steps, lr=2e-2))
    texts = [question.question for question in questions.questions]
    require_answers(dict.fromkeys(texts, 1), dict(zip(texts, actual, strict=True)), steps)


CHECKS = (
    output_has_its_shape,
    same_alone_and_padded,
    gradients_reach_all_parameters,
    candidates_have_scores,
    order_of_candidates_has_no_effect,
    learns_its_candidates,
    saved_weights_load,
)
VARIANTS = {
    "suffixes": ("qa_lstm/a", ["model.encoder=subilstm", "model.window=3"]),
    "fixed_vectors": ("qa_lstm/g", ["glove=file", "model.train_vectors=false"]),
    "one_direction": (
        "question_types",
        ["model.bidirectional=false", "model.pooling=mean", "model.train_vectors=true"],
    ),
}
SAME_LAYERS = tuple(f"qa_lstm/{letter}" for letter in "bcefh")
"""Models that differ from A, D or G only in pooling or in the number of filters, which is at most 9 here."""
CASES = {name: (name, []) for name in models_of(SETTINGS) if name not in SAME_LAYERS} | VARIANTS
SMALL = {"hidden": 6, "dropout": 0.0}


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, list[str]]:
    return {task: write(tmp_path_factory.mktemp(task)) for task, write in SETTINGS.items()}


def configure(case: str, settings: dict[str, list[str]], *more: str) -> Config:
    name, overrides = CASES[case]
    section = compose([f"model={name}"])["model"]
    small = {**SMALL, "filters": min(section.get("filters", 0), 9)}
    model_settings = [f"model.{key}={value}" for key, value in small.items() if key in section]
    shared = settings[section["task"]]
    return validate(compose([f"model={name}", *shared, *model_settings, *overrides, *more]))


@pytest.fixture(scope="module")
def subjects(settings) -> LazyCases:
    return build_subjects(lambda case: configure(case, settings), RankingSubject, recipe.assemble)


@pytest.mark.parametrize("check", CHECKS, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_model_meets_the_contract(subjects, case, check):
    check(subjects[case])


@pytest.mark.parametrize("name", ["qa_lstm/i", "fixed_vectors"])
def test_loaded_run_reproduces_its_scores(name, settings, tmp_path):
    record = train(configure(name, settings), folder=tmp_path)
    assert record.scores["dev"]["ranked"].metric("questions") == 5
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    questions = recipe.load_splits(predictor.config)["dev"]
    output = json.loads((tmp_path / "selections.json").read_text())
    scored = predictor.rank(questions)
    assert {question.id: scored[row] for row, question in enumerate(questions.questions)} == output


def test_trained_run_classifies_its_training_questions(settings, tmp_path):
    # All sets have the same questions; 30 epochs memorise them.
    longer = ["trainer.max_steps=-1", "trainer.epochs=30", "optim.lr=2e-2", "optim.schedule=constant"]
    point = train(configure("question_types", settings, *longer), folder=tmp_path).scores["dev"]["ranked"]
    assert point.metric("accuracy") == point.metric("main_accuracy") == 100
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    assert predictor.classify([*QUESTIONS, "Who paints boats ?"]) == [*QUESTIONS.values(), "HUM:ind"]


@pytest.mark.slow
def test_all_models_step_together_on_two_ranks(subjects, step_on_two_ranks):
    def pairs(subject: Subject, rank: int):
        """Pairs as sampled in the first epoch of training."""
        return recipe.fitting(subject.config, subject.parts).batches.train((0, [rank, rank + 2]))

    require_same_step(subjects, CASES, step_on_two_ranks, pairs)


def test_check_model_refuses_ranking_models(capsys):
    assert main(["check-model", "model=qa_lstm/a"]) == 2
    assert "check-model: checks span models, and model.task is selection" in capsys.readouterr().err

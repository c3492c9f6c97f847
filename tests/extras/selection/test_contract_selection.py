"""Ranking models as runs: every ``conf/model/**/*.yaml`` of tasks ``selection`` and ``classification``, on a
handful of questions against the sentences of their paragraphs or against all classes.

A new model is covered by its YAML file alone.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from contract import models_of
from devices import simulated

import qa_arch
from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.contract import TRIAL, Row, write_squad, write_vectors
from qa_arch.extras.selection import recipe
from qa_arch.extras.selection.features import CandidateCollator
from qa_arch.extras.selection.sets import selection_set
from qa_arch.files import write_atomic
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


VARIANTS = {
    "suffixes": ("qa_lstm/a", ["model.encoder=subilstm", "model.window=3"]),
    "fixed_vectors": ("qa_lstm/g", ["glove=file", "model.train_vectors=false"]),
    "one_direction": (
        "question_types",
        ["model.bidirectional=false", "model.pooling=mean", "model.train_vectors=true"],
    ),
}
SAME_LAYERS = tuple(f"qa_lstm/{letter}" for letter in "bcdefgh")
"""Models whose layers are among those of A and I; these have at most 9 filters here."""
MODELS = [name for name in models_of(("selection", "classification")) if name not in SAME_LAYERS]
CASES = {name: (name, []) for name in MODELS} | VARIANTS


@pytest.fixture(scope="module")
def configure(tmp_path_factory):
    """``configure(case, *more)``: config of a small model on the questions of its task."""
    settings = {
        "selection": candidates(tmp_path_factory.mktemp("selection")),
        "classification": classes(tmp_path_factory.mktemp("classification")),
    }

    def build(case: str, *more: str) -> Config:
        name, overrides = CASES[case]
        section = compose([f"model={name}"])["model"]
        small = {"hidden": 6, "dropout": 0.0, "filters": min(section.get("filters", 0), 9)}
        sizes = [f"model.{key}={value}" for key, value in small.items() if key in section]
        return validate(compose([f"model={name}", *settings[section["task"]], *sizes, *overrides, *more]))

    return build


@pytest.mark.parametrize("case", CASES)
def test_loaded_run_reproduces_its_scores(configure, case, tmp_path):
    """Also for each question alone, with its candidates in the reverse order."""
    train(configure(case), folder=tmp_path)
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    dev = recipe.load_splits(predictor.config)["dev"]
    scored = predictor.rank(dev)
    output = json.loads((tmp_path / "selections.json").read_text())
    assert {question.id: scored[row] for row, question in enumerate(dev.questions)} == output
    for question, scores in zip(dev.questions, scored, strict=True):
        assert len(set(scores)) > 1
        alone = replace(question, candidates=question.candidates[::-1])
        (reverse,) = predictor.rank(selection_set("alone", dev.answers, [alone]))
        assert reverse[::-1] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_gradients_reach_all_parameters(configure, case):
    parts = recipe.assemble(configure(case))
    batch = CandidateCollator(parts.tables["train"])([0, 1, 2, 3])
    parts.loss(parts.model(batch), batch.labels).sum().backward()
    trained = {name: p.grad for name, p in parts.model.named_parameters() if p.requires_grad}
    assert all(gradient is not None and gradient.any() for gradient in trained.values())


def test_trained_run_classifies_its_training_questions(configure, tmp_path):
    longer = ["trainer.max_steps=-1", "trainer.epochs=30", "optim.lr=2e-2", "optim.schedule=constant"]
    point = train(configure("question_types", *longer), folder=tmp_path).scores["dev"]["ranked"]
    assert point.metric("accuracy") == point.metric("main_accuracy") == 100
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    assert predictor.classify([*QUESTIONS, "Who paints boats ?"]) == [*QUESTIONS.values(), "HUM:ind"]


@pytest.mark.parametrize("case", ["qa_lstm/a", "qa_lstm/i", "suffixes", "question_types"])
def test_run_on_a_device_that_is_not_the_cpu(configure, case, tmp_path):
    expected = train(configure(case), folder=tmp_path / "cpu")
    with simulated():
        record = train(configure(case), folder=tmp_path / "device")
    (epoch,), (other,) = record.epochs, expected.epochs
    assert epoch.train_loss == pytest.approx(other.train_loss, abs=1e-4)
    assert epoch.metrics == pytest.approx(other.metrics, abs=1e-3)

"""Run records with invented scores, and the folders of such runs."""

from dataclasses import fields
from random import Random

import numpy as np
import pytest
from world import invented_answers

from qa_arch.data.question_sets import question_set as build_set
from qa_arch.qa.files import question_rows
from qa_arch.records import (
    SCHEMA,
    Epoch,
    Point,
    RunRecord,
    SplitFacts,
    find_runs,
    parse_record,
    write_questions,
    write_record,
)
from qa_arch.results.experiments import TABLES
from qa_arch.results.systems import two_systems
from qa_arch.types import Example, Gold, QuestionSet


def points(exact: float, protocol: str) -> dict:
    if protocol == "1.1":
        scores = {"exact_match": exact, "f1": exact + 5, "threshold": None}
        return {"forced": scores | {"protocol": protocol, "metric_version": "1"}}
    offsets = {"exact": 0, "f1": 2, "HasAns_exact": 10, "HasAns_f1": 14, "NoAns_exact": -10, "NoAns_f1": -10}
    facts = {"threshold": 0.25, "protocol": protocol, "metric_version": "1"}
    shifts = {"threshold_0": -1, "calibrated": 0, "oracle": 1, "forced": -20}
    return {
        name: {key: exact + shift + offset for key, offset in offsets.items()} | facts
        for name, shift in shifts.items()
    }


def flat_record(model="bert", exact=60.0, *, data="d1", protocol="2.0", split="dev", **changes) -> dict:
    """A finished run scored on ``split``, unscored if ``exact`` is None, with its metrics beside other fields
    of points, epochs and splits; ``nested`` makes it the JSON of a record."""
    metrics = {"exact": 50.0, "f1": 50.0, "HasAns_f1": 0.0, "NoAns_f1": 100.0}
    facts = {"protocol": protocol, "metric_version": "1"}
    split_facts = {"name": "made-up", "fingerprint": data, "protocol": protocol, "questions": 1200}
    record = {
        "schema": SCHEMA,
        "status": "ok",
        "name": "trial",
        "model": model,
        "seed": 13,
        "config": {},
        "settings_hash": "f01de700" + "0" * 56,
        "run_hash": "c0ffee00" + "0" * 56,
        "data": {"train": {"fingerprint": "t"}, split: split_facts | {"unanswerable": 600}},
        "parameters": {"total": 1234567},
        "seconds": {"fit": 61.25, "predict": 3.5},
        "threshold": {"value": 0.25, "fitted_on": "calibration"},
        "scores": {} if exact is None else {split: points(exact, protocol)},
        "references": {split: {"always-no-answer": metrics | facts}},
    }
    return record | changes


def nested(flat: dict) -> dict:
    """``flat_record`` with the metrics of points, epochs and splits in their own mappings."""

    def nest(cls: type, values: dict, name: str = "metrics") -> dict:
        known = {field.name for field in fields(cls)} - {name}
        own = {key: value for key, value in values.items() if key in known}
        return {**own, name: {key: value for key, value in values.items() if key not in known}}

    record = {**flat, "epochs": [nest(Epoch, epoch) for epoch in flat.get("epochs", [])]}
    record["data"] = {split: nest(SplitFacts, facts, "details") for split, facts in flat["data"].items()}
    for key in ("scores", "references"):
        record[key] = {
            split: {name: nest(Point, point) for name, point in points.items()}
            for split, points in flat[key].items()
        }
    return record


@pytest.fixture
def make_record():
    """``make_record(model, exact, **changes)``: record of a finished run, unscored if ``exact`` is None."""

    def make(*args, **changes) -> RunRecord:
        return parse_record(nested(flat_record(*args, **changes)))

    return make


EPOCH_KEYS = ("train_loss", "calibration_loss", "calibration_f1", "calibration_exact")
EPOCH_VALUES = (2.0, 1.5, 60.0, 55.0), (1.0, 1.2, 70.0, 65.0)
PASSAGES = ["The mill burnt in 1871. Ada Stone built it again.", "Nothing is known of the old bridge."]
QUESTIONS = [
    ("q1", "When did the mill burn?", 0, [(18, 22)], None),
    ("q2", "Who built the mill again?", 0, [(24, 33)], None),
    ("q3", "Who burnt the mill?", 0, [], "entity_swap"),
    ("q4", "Which bridge is old?", 1, [(24, 34)], None),
    ("q5", "When was the bridge built?", 1, [], "negation"),
    ("q6", "How many mills burnt?", 0, [], "negation"),
]
"""Id, question, index of its passage, gold spans, kind."""


@pytest.fixture
def question_set():
    """Six questions on two passages, three of them unanswerable; ``question_set(copies=20)`` repeats them."""

    def make(copies=1, suffix="") -> QuestionSet:
        examples = []
        for copy in range(copies):
            for id_, question, passage, golds, kind in QUESTIONS:
                context = PASSAGES[passage]
                answers = tuple(Gold(context[start:end], start) for start, end in golds)
                title = f"Title {passage}"
                examples.append(
                    Example(f"{id_}-{copy}", question + suffix, context, title, answers, kind=kind)
                )
        return build_set("made-up", examples, "2.0")

    return make


def without_withheld(columns: dict) -> dict:
    """Rows as of an adopted system, whose spans behind "no answer" are unknown."""
    given = [not abstained for abstained in columns["abstained"]]
    scores = {
        f"span_{name}": [s if known else np.nan for s, known in zip(columns[name], given, strict=True)]
        for name in ("exact", "f1")
    }
    return {**columns, **scores}


@pytest.fixture
def make_run(tmp_path):
    """``make_run(name, questions, right=0.8, ...)``: a run folder with its record and question rows."""

    def make(name, questions, *, model="bert", seed=13, right=0.8, rows=None, keep_spans=True, **changes):
        folder = tmp_path / "runs" / name
        columns = question_columns(questions, Random(f"{seed} {len(name)}"), right)
        if not keep_spans:
            columns = without_withheld(columns)
            columns = {name: v for name, v in columns.items() if name not in ("probability", "confidence")}
        split_facts = {
            "name": questions.name,
            "fingerprint": questions.fingerprint,
            "protocol": "2.0",
            "questions": len(questions),
            "unanswerable": sum(not e.answerable for e in questions.examples),
            **questions.other_language,
        }
        exact, f1 = (100 * sum(columns[key]) / len(questions) for key in ("exact", "f1"))
        scores = {"exact": exact, "f1": f1, "protocol": "2.0", "metric_version": "1"}
        points = {"calibrated": scores | {"threshold": 0.5}, "threshold_0": scores}
        fields = {
            "seed": seed,
            "config": {"seed": seed, "trainer": {"batch_size": 8}, "model": {"name": model}},
            "data": {"train": {"fingerprint": "t", "questions": 900}, "dev": split_facts},
            "scores": {"dev": points},
            "threshold": {"value": 0.5, "fitted_on": "calibration"},
            "batch": {"micro": 8, "accumulate": 1, "devices": 1, "global_size": 8},
            "epochs": [dict(zip(EPOCH_KEYS, values, strict=True)) for values in EPOCH_VALUES],
            "best_epoch": 1,
        }
        write_record(folder, parse_record(nested(flat_record(model) | fields | changes)))
        write_questions(folder, columns | (rows or {}))
        return folder

    return make


@pytest.fixture
def runs(make_run, question_set):
    """Folder with two seeds each of two systems, and the questions they were scored on."""
    questions = question_set(copies=3)
    folders = [
        make_run(f"{model}-{seed}", questions, model=model, seed=seed)
        for model in ("bert", "proposed")
        for seed in (1, 2)
    ]
    return folders[0].parent, questions


def question_columns(questions: QuestionSet, draw: Random, right: float) -> dict:
    """Columns as a run writes them: right with probability ``right``, else a wrong span or a wrong null."""
    rows = question_rows(questions, invented_answers(questions, draw, right), 0.5)
    rows["confidence"] = [draw.random() for _ in questions.examples]
    return {name: values for name, values in rows.items() if name not in ("article", "word")}


@pytest.fixture
def two_seeds(make_run, question_set):
    """Folder, a poor and a good system of two seeds each, and the 120 questions they were scored on."""
    questions = question_set(copies=20)
    for seed in (1, 2):
        make_run(f"poor-{seed}", questions, model="poor", seed=seed, right=0.5)
        make_run(f"good-{seed}", questions, model="good", seed=seed, right=0.9)
    folder = make_run("x", questions).parent
    poor, good = two_systems(*(find_runs([folder / f"{name}-*"]) for name in ("poor", "good")))
    return folder, poor, good, questions


def script(folder, tables: str, figures: str = "") -> None:
    """Write an experiment's ``tables.py`` whose functions return these tables and figures, given as calls."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLES).write_text(
        "from qa_arch.results.experiments import *\n"
        f"def tables(folder):\n    return [{tables}]\n"
        f"def figures(folder):\n    return [{figures}]\n"
    )

"""Runs without weights, made of the answers of any other system."""

from __future__ import annotations

import math
from pathlib import Path

from qa_arch.config.files import write_json
from qa_arch.config.identity import config_hash
from qa_arch.data.answer_files import Answers
from qa_arch.errors import RunError
from qa_arch.metrics.squad import METRIC_VERSION, aggregate, score_questions
from qa_arch.records import (
    ADOPTED,
    DEV,
    GIVEN,
    NEVER_NULL,
    NO_SPANS,
    RECORD,
    SCORED_EMPTY,
    Point,
    RunRecord,
    SplitFacts,
    Threshold,
    read_record,
    write_questions,
    write_record,
)
from qa_arch.results import provenance
from qa_arch.spans.files import PREDICTIONS
from qa_arch.spans.rows import ALWAYS_ANSWER, question_rows
from qa_arch.types.text import Candidate, Example, Prediction, QuestionSet


def adopt(
    questions: QuestionSet, answers: Answers, folder: Path, *, name: str, seed: int, file: str
) -> RunRecord:
    """Write record, rows of questions and predictions of the system ``name``, whose answers are in ``file``.

    RunError where the folder holds the record of something else.
    """
    odds, texts, protocol = answers.null_odds, answers.texts, questions.protocol
    given = [
        Prediction(e.id, _best(e, texts[e.id]), odds[e.id] if odds else math.nan, windows=0)
        for e in questions.examples
    ]
    config = {"name": ADOPTED, "seed": seed, "model": {"task": "span", "name": name}, "predictions": file}
    hashes = {DEV: questions.fingerprint, "answers": config_hash({"texts": texts, "odds": odds})}
    elsewhere = sum(answer.best is not None and answer.best.start < 0 for answer in given)
    counts = {NO_SPANS: elsewhere, SCORED_EMPTY: answers.missing}
    scored, scores = score_questions(questions, texts), {}
    if protocol == "2.0":
        scores[GIVEN] = aggregate(scored, protocol, null_scores=odds, threshold=ALWAYS_ANSWER)
    if protocol == "1.1" or all(texts.values()):
        scores[NEVER_NULL] = aggregate(scored, protocol)
    commit, dirty = provenance.commit()
    record = RunRecord(
        status="ok",
        name=ADOPTED,
        model=name,
        seed=seed,
        config=config,
        config_hash=config_hash(config, hashes),
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        data={
            DEV: SplitFacts(
                name=questions.name,
                fingerprint=questions.fingerprint,
                protocol=protocol,
                questions=len(questions),
                unanswerable=sum(not example.answerable for example in questions.examples),
                extra={**questions.other_language, **{key: count for key, count in counts.items() if count}},
            )
        },
        versions=provenance.versions(),
        threshold=Threshold(value=None, fitted_on="nothing") if protocol == "1.1" else None,
        scores={
            DEV: {
                point: Point(protocol=protocol, metric_version=METRIC_VERSION, metrics=score.flat())
                for point, score in scores.items()
            }
        },
    )
    if (folder / RECORD).is_file() and read_record(folder).config_hash != record.config_hash:
        raise RunError(f"{folder}: holds the record of something else; choose another --folder")
    unknown = {"windows", "probability", *(() if odds else ("null_odds",))}
    rows = question_rows(questions, given, ALWAYS_ANSWER)
    for key in ("span_exact", "span_f1") if protocol == "2.0" else ():  # what "no answer" hides is not known
        rows[key] = [
            score if answer.best else math.nan for score, answer in zip(rows[key], given, strict=True)
        ]
    write_json(folder / PREDICTIONS, texts)
    write_questions(folder, {key: values for key, values in rows.items() if key not in unknown})
    write_record(folder, record)
    return record


def _best(example: Example, text: str) -> Candidate | None:
    """The answer where it is a gold answer, else where the passage first has it; None for no answer."""
    places = (gold.start for gold in example.answers if example.context.startswith(text, gold.start))
    start = next(places, example.context.find(text))
    return Candidate(text, start, start + len(text) if start >= 0 else -1, 0.0, 0.0) if text else None

"""Runs without weights, made from the answers of any other system."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.config.files import write_json
from qa_arch.data.answer_files import Answers
from qa_arch.errors import DataError
from qa_arch.metrics.squad import METRIC_VERSION, abstention_warning, aggregate, score_questions
from qa_arch.provenance import json_hash, new_record
from qa_arch.records import (
    ADOPTED,
    CALIBRATION,
    DEV,
    GIVEN,
    NEVER_NULL,
    NO_SPANS,
    SCORED_EMPTY,
    Point,
    RunRecord,
    SplitFacts,
    Threshold,
    changing,
    questions_folder,
    require_same,
    write_questions,
    write_record,
)
from qa_arch.spans.files import PREDICTIONS
from qa_arch.spans.ranking import Ranking, with_null
from qa_arch.spans.rows import ALWAYS_ANSWER, question_rows, threshold_on
from qa_arch.types.text import Candidate, Example, Prediction, QuestionSet

log = logging.getLogger(__name__)


def adopt(
    questions: QuestionSet,
    answers: Answers,
    folder: Path,
    *,
    name: str,
    seed: int,
    file: str,
    calibration: tuple[QuestionSet, Answers] | None = None,
) -> RunRecord:
    """Write record, rows of questions and predictions of the system ``name``, whose answers are in ``file``.

    With its answers to a ``calibration`` set, null threshold and confidence are fitted as for a trained
    model, and scores are at the same operating points. Without, answers are scored as they are. Raises
    DataError if the two sets share articles or null odds are missing, RunError if the folder holds another
    record.
    """
    config = {"name": ADOPTED, "seed": seed, "model": {"task": "span", "name": name}, "predictions": file}
    hashes = {DEV: questions.fingerprint, "answers": _hash(answers)}
    if calibration is not None:
        check_articles(questions, calibration[0])
        for scored_set, system_answers in ((questions, answers), calibration):
            if system_answers.null_odds is None:
                raise DataError(
                    f"{scored_set.name}: the answers have no null odds, which the fit of the threshold needs;"
                    " add them to the file, or give --na-prob and --calibration-na-prob"
                )
        hashes |= {CALIBRATION: calibration[0].fingerprint, "calibration_answers": _hash(calibration[1])}
    record = new_record(config, hashes, status="ok", data={DEV: _facts(questions, answers)})
    with changing(folder) as existing:
        require_same(existing, record, folder, "--folder")
        if calibration is None:
            record = _score_as_given(record, questions, answers, folder)
        else:
            record = _calibrate(record, questions, answers, folder, *calibration)
        write_record(folder, record)
    return record


def _hash(answers: Answers) -> str:
    return json_hash([answers.texts, answers.null_odds])


def check_articles(questions: QuestionSet, calibration: QuestionSet) -> None:
    """Raise DataError if a threshold would be fitted on articles that are scored."""
    shared = sorted(questions.titles & calibration.titles)
    if shared or questions.fingerprint == calibration.fingerprint:
        named = f" ({shared[0]!r}, ...)" if shared else ""
        raise DataError(
            f"{calibration.name}: shares {len(shared) or 'all'} articles with {questions.name}{named};"
            " calibrate on articles that are not scored"
        )


def _facts(questions: QuestionSet, answers: Answers) -> SplitFacts:
    """Facts of the set, with the numbers of answers that are not in the passage and of missing ones."""
    elsewhere = sum(answers.texts[example.id] not in example.context for example in questions.examples)
    counts = {NO_SPANS: elsewhere, SCORED_EMPTY: answers.missing}
    facts = SplitFacts.of(questions)
    return replace(facts, extra={**facts.extra, **{key: count for key, count in counts.items() if count}})


def _score_as_given(record: RunRecord, questions: QuestionSet, answers: Answers, folder: Path) -> RunRecord:
    """Score the answers as they are: write rows and predictions, return the record with the scores."""
    odds, texts, protocol = answers.null_odds, answers.texts, questions.protocol
    predictions = [
        Prediction(e.id, _best(e, texts[e.id]), odds[e.id] if odds else math.nan, windows=0)
        for e in questions.examples
    ]
    scored, scores = score_questions(questions, texts), {}
    if protocol == "2.0":
        scores[GIVEN] = aggregate(scored, protocol, null_scores=odds, threshold=ALWAYS_ANSWER)
    if protocol == "1.1" or all(texts.values()):
        scores[NEVER_NULL] = aggregate(scored, protocol)
    unknown = {"windows", "probability", *(() if odds else ("null_odds",))}
    rows = question_rows(questions, predictions, ALWAYS_ANSWER)
    _warn(questions, rows)
    if protocol == "2.0":  # the span behind "no answer" is unknown
        for key in ("span_exact", "span_f1"):
            rows[key] = [
                score if answer.best else math.nan
                for score, answer in zip(rows[key], predictions, strict=True)
            ]
    rows_hash = write_questions(folder, {key: values for key, values in rows.items() if key not in unknown})
    write_json(folder / PREDICTIONS, texts)
    points = {
        point: Point(protocol=protocol, metric_version=METRIC_VERSION, metrics=score.flat())
        for point, score in scores.items()
    }
    threshold = Threshold(value=None, fitted_on="nothing") if protocol == "1.1" else None
    return replace(record, threshold=threshold, scores={DEV: points}, rows={DEV: rows_hash})


def _calibrate(
    record: RunRecord,
    questions: QuestionSet,
    answers: Answers,
    folder: Path,
    calibration: QuestionSet,
    calibration_answers: Answers,
) -> RunRecord:
    """Fit on ``calibration`` and score both sets: write rows and, for ``questions``, predictions; return the
    record with fits and scores."""
    from qa_arch.spans.task import TASK  # imports torch

    outputs = {CALIBRATION: ranking(calibration, calibration_answers), DEV: ranking(questions, answers)}
    fits, scores, hashes = TASK.fit(calibration, outputs[CALIBRATION]), {}, {}
    fitted = replace(record, **vars(fits))
    for split, scored in ((CALIBRATION, calibration), (DEV, questions)):
        threshold = threshold_on(scored, fitted.null_threshold)
        rows = TASK.rows(scored, outputs[split], threshold)
        _warn(scored, rows)
        rows["confidence"] = TASK.confidence(outputs[split], threshold, fitted.temperature)
        known = {key: values for key, values in rows.items() if key not in ("windows", "probability")}
        hashes[split] = write_questions(questions_folder(folder, split), known)
        scores[split] = TASK.points(scored, outputs[split], threshold)
        if split == DEV:
            TASK.write_predictions(folder, scored, outputs[split], threshold)
    facts = replace(_facts(calibration, calibration_answers), titles=tuple(sorted(calibration.titles)))
    return replace(fitted, data={**record.data, CALIBRATION: facts}, scores=scores, rows=hashes)


def _warn(questions: QuestionSet, rows: Mapping[str, list[Any]]) -> None:
    if fact := abstention_warning(rows["answerable"], rows["abstained"]):
        log.warning("%s: %s; do the answers belong to these questions?", questions.name, fact)


def ranking(questions: QuestionSet, answers: Answers) -> Ranking:
    """Rank each answer as a span of score 0 against "no answer", whose score is the null odds.

    With an empty text the system abstains at any threshold, like a model without any span: "no answer" is the
    only candidate, and the null odds are +inf.
    """
    assert answers.null_odds is not None
    best = [_best(example, answers.texts[example.id]) for example in questions.examples]
    odds = np.array([answers.null_odds[example.id] for example in questions.examples], np.float64)
    question = np.flatnonzero([span is not None for span in best])
    spans = [span for span in best if span is not None]
    start, end = (np.array([getattr(s, name) for s in spans], np.int64) for name in ("start", "end"))
    zeros, nothing = np.zeros((2, len(spans)), np.float32), np.zeros(len(odds), np.float32)
    null, windows = (odds.astype(np.float32), nothing), nothing.astype(np.int64)
    ranked = with_null(questions.examples, question, (start, end, *zeros), null, windows, n_best=1)
    texts = zip(ranked.best[question].tolist(), spans, strict=True)
    return replace(
        ranked,
        null_odds=np.where(ranked.best >= 0, odds, np.inf),  # in full precision
        texts={row: span.text for row, span in texts if span.start < 0},
    )


def _best(example: Example, text: str) -> Candidate | None:
    """The answer at a gold position, else at its first occurrence in the passage; None for no answer."""
    places = (gold.start for gold in example.answers if example.context.startswith(text, gold.start))
    start = next(places, example.context.find(text))
    return Candidate(text, start, start + len(text) if start >= 0 else -1, 0.0, 0.0) if text else None

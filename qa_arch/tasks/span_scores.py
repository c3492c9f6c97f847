"""Scores of span answers at every operating point, rows of single questions, facts of a set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from qa_arch.decode.formats import spans_record
from qa_arch.features.table import FeatureTable
from qa_arch.metrics.squad import METRIC_VERSION, QuestionScore, aggregate, score_questions
from qa_arch.metrics.threshold import at_margins, best_texts, calibrate
from qa_arch.results.question_breakdowns import question_word
from qa_arch.types.records import NEVER_NULL, Point, RunRecord, SplitFacts
from qa_arch.types.text import Prediction, QuestionSet

ALWAYS_ANSWER = math.inf
"""The threshold at which "no answer" is never given."""
NEARLY_ALL = 0.98
"""Share of "no answer" above which ``abstention_warning`` warns."""


def null_threshold(record: RunRecord) -> float:
    """The null threshold that was fitted; None in the record means that "no answer" is never given."""
    value = record.threshold.value if record.threshold else 0.0
    return math.inf if value is None else float(value)


def fit_null_threshold(questions: QuestionSet, answers: Sequence[Prediction]) -> float:
    """The threshold of highest F1 on ``questions``; never null where every question has an answer."""
    return ALWAYS_ANSWER if questions.protocol == "1.1" else calibrate(questions, answers)


def operating_points(
    questions: QuestionSet, answers: Sequence[Prediction], threshold: float
) -> dict[str, Point]:
    """Scores by the name of the operating point, each with its threshold, protocol and metric version.

    ``margin_0``, ``calibrated`` (at ``threshold``) and ``oracle`` (fitted on this very set: a bound)
    for SQuAD 2.0, and ``never_null`` for both protocols: what the spans alone are worth.
    """
    if questions.protocol == "2.0":
        scores = at_margins(questions, answers, threshold)
        points = {field.name: getattr(scores, field.name) for field in fields(scores)}
    else:
        spans = score_questions(questions, best_texts(answers))
        points = {NEVER_NULL: aggregate(spans, questions.protocol)}
    return {
        name: Point(
            threshold=scores.threshold if math.isfinite(scores.threshold) and name != NEVER_NULL else None,
            protocol=scores.protocol,
            metric_version=METRIC_VERSION,
            metrics=scores.flat(),
        )
        for name, scores in points.items()
    }


def question_rows(
    questions: QuestionSet, answers: Sequence[Prediction], threshold: float
) -> dict[str, list[Any]]:
    """Columns of ``questions.parquet``: scores at ``threshold``, offsets, null odds, question word; no text.

    ``span_exact``, ``span_f1`` and ``probability`` are those of the best span whatever the threshold: with
    them any threshold can be scored, and confidence compared with truth, from the record alone.
    """
    texts = {answer.id: answer.text(threshold) for answer in answers}
    rows = spans_record(answers)
    in_order = _in_order(questions, texts, rows["id"])
    spans = _in_order(questions, best_texts(answers), rows["id"])
    question_texts = {example.id: example.question for example in questions.examples}
    rows["kind"] = [s.kind for s in in_order]
    rows["word"] = [question_word(question_texts[id_]) for id_ in rows["id"]]
    rows["answerable"] = [s.answerable for s in in_order]
    rows["abstained"] = [s.abstained for s in in_order]
    rows["exact"] = [s.exact for s in in_order]
    rows["f1"] = [s.f1 for s in in_order]
    rows["span_exact"] = [s.exact for s in spans]
    rows["span_f1"] = [s.f1 for s in spans]
    rows["probability"] = [round(answer.best.probability, 4) if answer.best else 0.0 for answer in answers]
    return rows


def _in_order(questions: QuestionSet, texts: Mapping[str, str], ids: Sequence[str]) -> list[QuestionScore]:
    scored = {s.id: s for s in score_questions(questions, texts)}
    return [scored[id_] for id_ in ids]


def abstention_warning(questions: QuestionSet, answers: Sequence[Prediction], threshold: float) -> str | None:
    """The warning that nearly all answers are "no answer" although the gold answers are not; else None.

    Fine-tuning sometimes fails to learn anything (google-research/albert#135), and half of a balanced set is
    then still scored as right.
    """
    total = len(questions)
    abstained = sum(answer.at(threshold) is None for answer in answers) / total
    unanswerable = sum(not example.answerable for example in questions.examples) / total
    if abstained <= NEARLY_ALL or unanswerable > NEARLY_ALL:
        return None
    return (
        f"{abstained:.1%} of the predictions are 'no answer', which is right for {unanswerable:.1%} of the"
        " questions: the model has learned nothing else; try a lower optim.lr, a longer optim.warmup or"
        " another seed"
    )


def set_facts(questions: QuestionSet, table: FeatureTable, *, titles: bool) -> SplitFacts:
    """Facts of a split for the record; with its article titles if ``titles``, to detect later overlaps."""
    return SplitFacts(
        name=questions.name,
        fingerprint=questions.fingerprint,
        protocol=questions.protocol,
        questions=len(questions),
        unanswerable=sum(not example.answerable for example in questions.examples),
        titles=tuple(sorted(questions.titles)) if titles else (),
        skipped=len(questions.skipped),
        windows=len(table),
        truncated_questions=table.truncated_questions,
        lost_answers=table.lost_answers,
    )

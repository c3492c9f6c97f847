"""The figures of one run that the page draws, thinned and rounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.metrics.curves import Reliability, answerable_confidence, reliability, thresholds
from qa_arch.metrics.squad import score_questions
from qa_arch.results.question_breakdowns import Breakdown
from qa_arch.results.question_rows import Floats, Questions
from qa_arch.types.text import QuestionSet


def with_spans(rows: Questions, questions: QuestionSet | None) -> Questions:
    """``rows`` with the scores of the best spans, from the texts where the record does not hold them.

    Without the texts, what an abstained, answerable question's span would have scored is not known:
    NaN, and the curves stop there.
    """
    if rows.span_f1 is not None and rows.span_exact is not None:
        return rows
    if questions is not None:
        texts = {
            example.id: example.context[start:end] if start >= 0 else ""
            for example, start, end in zip(
                questions.examples, rows.start.tolist(), rows.end.tolist(), strict=True
            )
        }
        scored = score_questions(questions, texts)
        exact, f1 = (np.array([getattr(score, key) for score in scored], float) for key in ("exact", "f1"))
        return replace(rows, span_exact=exact, span_f1=f1)
    exact, f1 = (np.where(rows.abstained, np.nan, values) for values in (rows.exact, rows.f1))
    return replace(rows, span_exact=exact, span_f1=f1)


def curves(rows: Questions) -> dict[str, Any]:
    """Thresholds, risk, precision and recall of abstaining, and reliability; for SQuAD 1.1 without null."""
    assert rows.span_f1 is not None
    assert rows.span_exact is not None
    result: dict[str, Any] = {}
    by_f1 = thresholds(rows.null_odds, rows.span_f1, rows.answerable)
    by_exact = thresholds(rows.null_odds, rows.span_exact, rows.answerable)
    result["thresholds"] = {
        "margin": _rounded(by_f1.margin, 3),
        "coverage": _rounded(by_f1.coverage, 2),
        "risk": _rounded(by_f1.risk, 2),
        "F1": _rounded(by_f1.score, 2),
        "EM": _rounded(by_exact.score, 2),
        "HasAns F1": _rounded(by_f1.has_answer, 2),
        "NoAns F1": _rounded(by_f1.no_answer, 2),
        "precision": _rounded(by_f1.precision, 2),
        "recall": _rounded(by_f1.recall, 2),
    }
    result["area"] = by_f1.area
    if not rows.answerable.all():
        result["answerability"] = _reliability(
            reliability(answerable_confidence(rows.null_odds), rows.answerable)
        )
    if rows.probability is not None:
        given = ~rows.abstained
        result["answers"] = _reliability(reliability(rows.probability[given], rows.exact[given] > 0))
    if rows.confidence is not None:
        result["fitted"] = _reliability(reliability(rows.confidence, rows.exact > 0))
    return result


def by_level(rows: Questions, facet: Breakdown) -> list[list[float | None]]:
    """[EM, F1, F1 of the best spans of the answerable questions] in percent of every level of a facet."""
    assert rows.span_f1 is not None
    all_ = np.ones(len(rows), dtype=bool)
    result = []
    for values, where in ((rows.exact, all_), (rows.f1, all_), (rows.span_f1, rows.answerable)):
        level, levels = facet.level[where], len(facet.names)
        with np.errstate(invalid="ignore"):
            mean = np.bincount(level, values[where], levels) / np.bincount(level, minlength=levels)
        result.append(_rounded(100 * mean, 2))
    return result


def _reliability(result: Reliability) -> dict[str, Any]:
    return {
        "confidence": _rounded(result.confidence, 4),
        "observed": _rounded(result.observed, 4),
        "count": result.count.tolist(),
        "ece": round(result.ece, 4),
    }


def _rounded(values: Floats | npt.NDArray, digits: int) -> list[float | None]:
    """JSON has no NaN and no infinity: None."""
    return [round(value, digits) if np.isfinite(value) else None for value in values.tolist()]

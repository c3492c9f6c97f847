"""Rows of ``questions.parquet`` and files of predictions, from ranked answers. No torch here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.files import json_items
from qa_arch.metrics.abstention import at_thresholds, auroc, best_texts
from qa_arch.metrics.squad import (
    METRIC_VERSION,
    abstention_warning,
    aggregate,
    apply_threshold,
    score_questions,
)
from qa_arch.qa.ranking import Ranking
from qa_arch.records import FORCED, Point
from qa_arch.types import Prediction, QuestionSet, question_word

ALWAYS_ANSWER = math.inf
"""Null threshold at which "no answer" is never predicted."""


def threshold_on(questions: QuestionSet, fitted: float) -> float:
    """The null threshold ``fitted``, but on SQuAD 1.1 a model always answers; questions without any label are
    of neither version."""
    labelled = any(example.answers for example in questions.examples)
    return ALWAYS_ANSWER if labelled and questions.protocol == "1.1" else fitted


def question_rows(
    questions: QuestionSet, answers: Sequence[Prediction], threshold: float
) -> dict[str, list[Any]]:
    """Columns of ``questions.parquet``: scores at ``threshold``, offsets, null odds, question word; no text.

    ``start``, ``end``, ``span_exact``, ``span_f1`` and ``probability`` describe the best span, so that the
    record alone suffices to score other thresholds and to check calibration. Without a span, start and end
    are -1 and null_odds is +inf. ``article`` numbers the articles of the questions.
    """
    spans = score_questions(questions, best_texts(answers))
    # As in the points: scored as a text, "no answer" would match a gold answer of articles and punctuation.
    scored = apply_threshold(spans, {answer.id: answer.null_odds for answer in answers}, threshold)
    return {
        "id": [answer.id for answer in answers],
        "start": [answer.best.start if answer.best else -1 for answer in answers],
        "end": [answer.best.end if answer.best else -1 for answer in answers],
        "null_odds": [answer.null_odds for answer in answers],
        "windows": [answer.windows for answer in answers],
        "article": questions.article_numbers,
        "kind": [s.kind for s in scored],
        "word": [question_word(example.question) for example in questions.examples],
        **{key: [getattr(s, key) for s in scored] for key in ("answerable", "abstained", "exact", "f1")},
        "span_exact": [s.exact for s in spans],
        "span_f1": [s.f1 for s in spans],
        "probability": [round(answer.best.probability, 4) if answer.best else 0.0 for answer in answers],
    }


def answerable_auroc(questions: QuestionSet, answers: Sequence[Prediction]) -> float | None:
    """Area under the ROC curve of "answerable" by null odds, percent; None unless both classes occur."""
    odds, answerable = odds_and_truth(questions, answers)
    area = auroc(-odds, answerable)
    return None if area is None else 100 * area


def odds_and_truth(
    questions: QuestionSet, answers: Sequence[Prediction]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """(N,) null odds of the answers, and (N,) whether their questions are answerable."""
    odds = np.array([answer.null_odds for answer in answers], dtype=np.float64)
    return odds, np.array([example.answerable for example in questions.examples], dtype=np.bool_)


def mass_abstention(questions: QuestionSet, answers: Sequence[Prediction], threshold: float) -> str | None:
    """``abstention_warning`` of the answers at ``threshold``."""
    answerable = [example.answerable for example in questions.examples]
    return abstention_warning(answerable, [not answer.text(threshold) for answer in answers])


def operating_points(
    questions: QuestionSet, answers: Sequence[Prediction], threshold: float, given: float | None = None
) -> dict[str, Point]:
    """Operating point -> scores, with threshold, protocol and metric version.

    ``threshold_0``, ``calibrated`` (at ``threshold``), ``oracle`` (fitted on the scored set: a bound) and
    ``given`` (at that further null threshold) for SQuAD 2.0, and ``forced`` for both protocols.
    """
    if questions.protocol == "2.0":
        points = at_thresholds(questions, answers, threshold, given)
    else:
        spans = score_questions(questions, best_texts(answers))
        points = {FORCED: aggregate(spans, questions.protocol)}
    return {
        name: Point(
            threshold=scores.threshold if math.isfinite(scores.threshold) and name != FORCED else None,
            protocol=scores.protocol,
            metric_version=METRIC_VERSION,
            metrics=scores.flat(),
        )
        for name, scores in points.items()
    }


PREDICTIONS = "predictions.json"
FINITE = 1e9
"""Replaces infinity in the files, since JSON has none; larger than any score of a trained model."""


def predictions(ranking: Ranking, threshold: float) -> dict[str, str]:
    """Question id -> answer text; the empty string is "no answer", for null odds above ``threshold``."""
    return {answer.id: answer.text(threshold) for answer in ranking.best_predictions}


def null_odds(ranking: Ranking) -> dict[str, float]:
    """Question id -> null score minus best span score, within ±``FINITE``; higher means "no answer"."""
    odds = ranking.null_odds.clip(-FINITE, FINITE).tolist()
    return {example.id: value for example, value in zip(ranking.examples, odds, strict=True)}


def nbest(ranking: Ranking) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Question id and its candidates, most probable first: text, probability, start_logit, end_logit.

    Logits are clamped to ±``FINITE``. Yields one question at a time, as there are 100,000s of entries.
    """
    columns = zip(
        range(len(ranking.start)),
        ranking.start.tolist(),
        ranking.end.tolist(),
        ranking.probability.tolist(),
        ranking.start_logit.clip(-FINITE, FINITE).tolist(),
        ranking.end_logit.clip(-FINITE, FINITE).tolist(),
        strict=True,
    )
    # The rows of a question follow those of the question before it: a single pass.
    for example, count in zip(ranking.examples, np.diff(ranking.offsets).tolist(), strict=True):
        candidates = []
        for row, start, end, probability, start_logit, end_logit in islice(columns, count):
            text = example.context[start:end] if start >= 0 else ranking.texts[row]  # joined words
            logits = {"start_logit": start_logit, "end_logit": end_logit}
            candidates.append({"text": text, "probability": probability, **logits})
        yield example.id, candidates


def write_parts(
    folder: str | os.PathLike[str], rankings: Iterable[Ranking], threshold: float, *, candidates: bool = True
) -> list[bool]:
    """Write predictions.json, null_odds.json and, if asked, nbest_predictions.json, each atomically; return
    whether each answer is "no answer".

    The set may be predicted in parts, of which one at a time is in memory.
    """
    target, abstained = Path(folder), []
    with (
        json_items(target / PREDICTIONS) as add_text,
        json_items(target / "null_odds.json") as add_odds,
        json_items(target / "nbest_predictions.json") if candidates else nullcontext() as add_list,
    ):
        for ranking in rankings:
            for id_, text in predictions(ranking, threshold).items():
                add_text(id_, text)
                abstained.append(not text)
            for id_, odds in null_odds(ranking).items():
                add_odds(id_, odds)
            if add_list is not None:
                for id_, ranked in nbest(ranking):
                    add_list(id_, ranked)
            del ranking  # free it before the next part is read
    return abstained

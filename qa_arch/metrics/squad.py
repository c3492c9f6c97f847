"""The SQuAD 1.1 and 2.0 evaluations, equal to the official scripts to the last bit.

Floats are equal because sums run in file order over the same expressions. Every question is normalised
once; all other figures derive from its score.
Rajpurkar et al. 2016, section 6.1 (1.1); Rajpurkar et al. 2018, section 5.1 (2.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

from qa_arch.errors import DataError
from qa_arch.metrics.answer_text import best_overlap, normalise
from qa_arch.metrics.ranking import average_precision, best_threshold, rank
from qa_arch.metrics.scores import Answering, AveragePrecision, Group, Oracle, Scores
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Protocol, QuestionSet

METRIC_VERSION = "1.0"
"""Raised whenever the score of the same predictions could change."""

OFFICIAL_THRESHOLD = 1.0
"""Default null threshold of the official script: no probability lies above it."""


class QuestionScore(NamedTuple):
    """Scores of one question, each in 0..1.

    A named tuple, since creating frozen dataclasses would take a quarter of the scoring time.
    """

    id: str
    exact: int
    f1: float
    precision: float
    recall: float
    """``precision`` and ``recall`` are those of the gold answer of highest F1."""
    answerable: bool
    abstained: bool
    """The prediction is the empty string. (One of articles or punctuation alone is an answer.)"""
    kind: str | None = None


@gc_disabled()
def score_questions(
    questions: QuestionSet, predictions: Mapping[str, str], protocol: Protocol | None = None
) -> tuple[QuestionScore, ...]:
    """Score every question that has a prediction, in file order.

    Args:
        questions: the gold answers.
        predictions: id -> answer text, "" for no answer; unknown ids are ignored.
        protocol: None takes that of ``questions``.

    Raises DataError for a question without answers under protocol 1.1.
    """
    protocol = protocol or questions.protocol
    normal = _Normalised()
    scored = []
    for example in questions.examples:
        text = predictions.get(example.id)
        if text is None:
            continue
        golds = [normal[gold.text] for gold in example.answers]
        if protocol == "2.0":
            # A gold answer of articles and punctuation alone does not count; without any, "" is right.
            golds = [gold for gold in golds if gold] or [""]
        elif not golds:
            raise DataError(f"question {example.id}: has no answer, which protocol 1.1 cannot score; use 2.0")
        exact, f1, precision, recall = best_overlap(normal[text], golds, protocol)
        scored.append(
            QuestionScore(
                example.id, exact, f1, precision, recall, bool(example.answers), not text, example.kind
            )
        )
    return tuple(scored)


class _Normalised(dict[str, str]):
    """Cache: text -> normalised text. Most gold and predicted texts occur several times."""

    def __missing__(self, text: str) -> str:
        normal = self[text] = normalise(text)
        return normal


def aggregate(
    scored: Sequence[QuestionScore],
    protocol: Protocol,
    *,
    null_scores: Mapping[str, float] | None = None,
    threshold: float = OFFICIAL_THRESHOLD,
    missing: int = 0,
) -> Scores:
    """Aggregate question scores as the official evaluation does.

    Args:
        null_scores: id -> no-answer probability or null odds, for every scored question. One above
            ``threshold`` means "no answer" (NaN never does; with ``math.inf`` nothing does). They also give
            the best thresholds and the average precisions of 2.0.
        missing: number of questions without a prediction. They count 0 in 1.1; 2.0 leaves them out of every
            mean (where the official script fails).

    Raises DataError without scores, or if a question has no null score.
    """
    total = len(scored) + (missing if protocol == "1.1" else 0)
    if not total:
        raise DataError("no prediction belongs to any of the questions; do predictions and data match?")
    final = scored if null_scores is None else _apply_threshold(scored, null_scores, threshold)
    mean = _mean_11 if protocol == "1.1" else _mean_20
    overall = _group(final, total, mean)
    groups: list[Group | None] = [None, None]
    oracle = areas = None
    if protocol == "2.0":
        split = ([s for s in final if s.answerable], [s for s in final if not s.answerable])
        groups = [_group(part, len(part), mean) if part else None for part in split]
        if null_scores is not None:
            oracle, areas = _rank_metrics(scored, null_scores)
    return Scores(
        protocol=protocol,
        exact=overall.exact,
        f1=overall.f1,
        total=total,
        has_answer=groups[0],
        no_answer=groups[1],
        token_precision=mean((s.precision for s in final), total),
        token_recall=mean((s.recall for s in final), total),
        answering=_answering(final, total - len(final)),
        threshold=threshold,
        oracle=oracle,
        average_precision=areas,
    )


def score(
    questions: QuestionSet,
    predictions: Mapping[str, str],
    *,
    null_scores: Mapping[str, float] | None = None,
    threshold: float = OFFICIAL_THRESHOLD,
    protocol: Protocol | None = None,
) -> Scores:
    """Scores of predictions that must answer every question (arguments as in ``aggregate``).

    Raises DataError that names the questions without a prediction: a mean over fewer questions would be
    mistaken for the score of the set.
    """
    if absent := missing_ids(questions, predictions):
        raise DataError(
            f"{len(absent)} of {len(questions)} questions have no prediction: {', '.join(absent[:5])}"
        )
    protocol = protocol or questions.protocol
    scored = score_questions(questions, predictions, protocol)
    return aggregate(scored, protocol, null_scores=null_scores, threshold=threshold)


def final_texts(
    questions: QuestionSet,
    texts: Mapping[str, str],
    null_scores: Mapping[str, float],
    threshold: float,
    protocol: Protocol,
) -> dict[str, str]:
    """Texts after the threshold: "" for null scores above it and, in 1.1, for questions without a text."""
    final = {id_: "" if null_scores.get(id_, threshold) > threshold else text for id_, text in texts.items()}
    return {**dict.fromkeys(missing_ids(questions, texts), ""), **final} if protocol == "1.1" else final


def missing_ids(questions: QuestionSet, predictions: Mapping[str, object]) -> list[str]:
    """Ids of the questions without a prediction, in file order."""
    return [example.id for example in questions.examples if example.id not in predictions]


def extra_ids(questions: QuestionSet, predictions: Mapping[str, object]) -> list[str]:
    """Predicted ids that belong to no question, in the order of the predictions."""
    question_ids = {example.id for example in questions.examples}
    return [id_ for id_ in predictions if id_ not in question_ids]


Mean = Callable[[Iterable[float], int], float]


def _mean_20(values: Iterable[float], total: int) -> float:
    return 100.0 * sum(values) / total


def _mean_11(values: Iterable[float], total: int) -> float:
    # Added in sequence like the 1.1 script: from Python 3.12 on, sum() rounds differently.
    return 100.0 * reduce(add, values, 0) / total


def _group(scored: Sequence[QuestionScore], total: int, mean: Mean) -> Group:
    return Group(mean((s.exact for s in scored), total), mean((s.f1 for s in scored), total), total)


def _apply_threshold(
    scored: Sequence[QuestionScore], null_scores: Mapping[str, float], threshold: float
) -> list[QuestionScore]:
    """Scores with an abstention for every null score above ``threshold``."""
    final = []
    for s in scored:
        if s.id not in null_scores:
            raise DataError(f"question {s.id}: has a prediction and no no-answer score; give one for each")
        if null_scores[s.id] > threshold:
            right = float(not s.answerable)
            s = QuestionScore(s.id, int(right), right, right, right, s.answerable, True, s.kind)
        final.append(s)
    return final


def _answering(scored: Sequence[QuestionScore], missing: int) -> Answering:
    """Confusion matrix; a question without a prediction counts as abstained."""
    answerable = sum(s.answerable for s in scored)
    answered = sum(not s.abstained for s in scored)
    answered_answerable = sum(s.answerable and not s.abstained for s in scored)
    return Answering(
        answered_answerable=answered_answerable,
        answered_unanswerable=answered - answered_answerable,
        abstained_answerable=answerable - answered_answerable + missing,
        abstained_unanswerable=len(scored) - answerable - (answered - answered_answerable),
    )


def _rank_metrics(
    scored: Sequence[QuestionScore], null_scores: Mapping[str, float]
) -> tuple[Oracle, AveragePrecision | None]:
    """Best thresholds and average precisions of the predicted texts, from a single sort."""
    by_id = {s.id: s for s in scored}
    pairs = rank(null_scores, by_id)
    ranked, probabilities = [by_id[id_] for id_, _ in pairs], [probability for _, probability in pairs]
    exact, f1 = [s.exact for s in ranked], [s.f1 for s in ranked]
    answerable, abstained = [s.answerable for s in ranked], [s.abstained for s in ranked]
    oracle = Oracle(
        *best_threshold(exact, answerable, abstained, probabilities),
        *best_threshold(f1, answerable, abstained, probabilities),
    )
    if not any(answerable):
        return oracle, None
    areas = (average_precision(values, answerable, probabilities) for values in (exact, f1, answerable))
    return oracle, AveragePrecision(*areas)

"""Logistic regression baseline of the SQuAD paper (Rajpurkar et al. 2016, section 5).

A candidate span's score is the sum of the weights of its features; its probability is the softmax over all
candidates of the passage. AdaGrad with learning rate 0.1 and an L2 penalty maximises the log-likelihood of
the gold spans, one step per passage with all its questions. Here a step penalises only the weights with a
gradient. Several penalties are fitted in parallel, each in a column of the weight table. ``choose`` selects
the penalty and the number of passes with the highest F1 on held-out articles; the paper makes three passes.

Axes: ``T`` tokens, ``N`` candidates, ``L`` penalties, ``U`` rows with a gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any

import numpy as np

from baselines.candidates import MAX_WORDS, PassageCandidates, answer, passage
from baselines.span_features import (
    NEAR,
    CorpusStatistics,
    PassageFeatures,
    Rows,
    bucket_edges,
    inverse_document_frequencies,
)
from qa_arch.errors import ConfigError, DataError
from qa_arch.metrics.squad import score
from qa_arch.types import Example, Prediction, QuestionSet

EPSILON = 1e-10
SAMPLE = 300
"""Number of passages that determine the bucket edges."""


@dataclass(frozen=True)
class Settings:
    """Training settings."""

    l2: tuple[float, ...] = (0.01, 0.1, 1.0)
    passes: int = 6
    """Maximum."""
    patience: int = 1
    """Passes without improvement in held-out F1 after which ``choose`` stops."""
    lr: float = 0.1
    bits: int = 21
    """The weight table has 2 ** bits rows for hashed features."""
    max_words: int = MAX_WORDS
    seed: int = 13

    def __post_init__(self) -> None:
        if self.passes < 1 or not self.l2 or min(self.l2) < 0:
            raise ConfigError(
                f"passes={self.passes}, l2={self.l2}: give at least one pass and one penalty, none below 0"
            )


@dataclass(frozen=True)
class Chosen:
    """Result of ``choose``: ``column`` of the weights holds those after pass ``number``."""

    number: int
    column: int
    f1: float
    """On the held-out questions, in percent."""
    answers: list[Prediction]


class SpanLogistic:
    """Logistic regression: call ``choose`` (or ``fit``) once, then ``predict`` with a penalty's column."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        rows = 2**settings.bits
        self.weight = np.zeros((rows, len(settings.l2)), np.float32)
        self._squares = np.zeros_like(self.weight)
        self._compact_row = np.zeros(rows, np.int64)
        self.statistics: CorpusStatistics | None = None

    def fit(self, train: QuestionSet) -> Iterator[dict[str, Any]]:
        """Train, yielding ``pass``, ``loss`` per penalty, ``questions`` and ``train_seconds`` per pass.

        Questions whose gold span is not a candidate are skipped. Raises DataError if all are.
        """
        passages = [list(group) for _, group in groupby(train.examples, key=lambda e: e.context)]
        self.statistics = self._statistics(passages)
        rng = Random(self.settings.seed)
        for number in range(1, self.settings.passes + 1):
            started = time.perf_counter()
            rng.shuffle(passages)
            losses, n_questions = np.zeros(len(self.settings.l2)), 0
            for examples in passages:
                loss, count = self._step(examples)
                losses += loss
                n_questions += count
            if not n_questions:
                raise DataError(f"{train.name}: no gold answer is a candidate span; raise max_words")
            yield {
                "pass": number,
                "loss": (losses / n_questions).tolist(),
                "questions": n_questions,
                "train_seconds": round(time.perf_counter() - started, 3),
            }

    def choose(
        self, train: QuestionSet, held_out: QuestionSet, on_pass: Callable[[dict[str, Any]], None]
    ) -> Chosen:
        """Train with early stopping and restore the pass and penalty with the highest F1 on ``held_out``.

        ``on_pass`` gets the values that ``fit`` yields and ``calibration_f1_by_l2``. Ties go to the earlier
        pass, then to the smaller column.
        """
        best: Chosen | None = None
        best_weights = self.weight[:, 0]
        for values in self.fit(train):
            predictions = [self.predict(held_out, column) for column in range(len(self.settings.l2))]
            f1 = [score(held_out, {a.id: a.text(math.inf) for a in answers}).f1 for answers in predictions]
            on_pass({**values, "calibration_f1_by_l2": f1})
            column = max(range(len(f1)), key=f1.__getitem__)
            if best is None or f1[column] > best.f1:
                best = Chosen(values["pass"], column, f1[column], predictions[column])
                best_weights = self.weight[:, column].copy()  # training goes on in place
            elif values["pass"] - best.number >= self.settings.patience:
                break
        assert best is not None, "at least one pass"
        self.weight[:, best.column] = best_weights
        return best

    def predict(self, questions: QuestionSet, column: int) -> list[Prediction]:
        """The most probable candidate of each question, in the order of the set."""
        weight = np.ascontiguousarray(self.weight[:, column, None])
        answers = []
        for context, group in groupby(questions.examples, key=lambda e: e.context):
            spans = passage(context, self.settings.max_words)
            features = self._features(spans)
            for example in group:
                if not len(spans):
                    answers.append(answer(example, spans, None, 0.0, 0.0))
                    continue
                scores = span_scores(spans, features.rows(example.question), weight)[:, 0]
                index = int(scores.argmax())
                probability = float(softmax(scores[:, None])[index, 0])
                answers.append(answer(example, spans, index, probability, float(scores[index])))
        return answers

    def _step(self, examples: Sequence[Example]) -> tuple[np.ndarray, int]:
        """Train on one passage: (summed loss (L,) of its questions, their number)."""
        spans = passage(examples[0].context, self.settings.max_words)
        targets = [(e, spans.index(e.answers[0].start, e.answers[0].end)) for e in examples if e.answers]
        features = self._features(spans)
        golds = [(features.rows(e.question), index) for e, index in targets if index is not None]
        loss = np.zeros(len(self.settings.l2))
        ids, shares = [], []
        for rows, gold in golds:
            probability = softmax(span_scores(spans, rows, self.weight))
            loss -= np.log(np.maximum(probability[gold], np.finfo(float).tiny))  # it may underflow
            probability[gold] -= 1  # gradient of the loss with respect to the scores
            for row_ids, share in row_gradients(spans, rows, probability):
                ids.append(row_ids.ravel())
                shares.append(np.repeat(share, row_ids.shape[1], axis=0))
        if golds:
            self._descend(np.concatenate(ids), np.concatenate(shares))
        return loss, len(golds)

    def _descend(self, ids: np.ndarray, shares: np.ndarray) -> None:
        """AdaGrad step (Duchi et al. 2011); the gradient of a row is the sum of its ``shares`` (M, L)."""
        touched = np.unique(ids)
        self._compact_row[touched] = np.arange(len(touched))  # other rows keep old numbers, never read
        rows = self._compact_row[ids]
        gradient = np.stack([np.bincount(rows, column, len(touched)) for column in shares.T], -1)  # (U, L)
        weight = self.weight[touched]
        gradient += 2 * np.array(self.settings.l2) * weight  # of the penalty l2 |w|²
        squares = self._squares[touched] + gradient**2
        self._squares[touched] = squares
        self.weight[touched] = weight - self.settings.lr * gradient / (np.sqrt(squares) + EPSILON)

    def _features(self, spans: PassageCandidates) -> PassageFeatures:
        assert self.statistics is not None, "fit first"
        return PassageFeatures(spans, self.statistics, len(self.weight))

    def _statistics(self, passages: Sequence[Sequence[Example]]) -> CorpusStatistics:
        idf, unseen = inverse_document_frequencies(group[0].context for group in passages)
        plain = CorpusStatistics(idf, unseen, {})
        values: dict[str, list[np.ndarray]] = {}
        for group in Random(self.settings.seed).sample(passages, min(SAMPLE, len(passages))):
            features = PassageFeatures(passage(group[0].context, self.settings.max_words), plain, 1)
            for name, array in features.values(group[0].question).items():
                values.setdefault(name, []).append(array)
        return CorpusStatistics(idf, unseen, bucket_edges({n: np.concatenate(v) for n, v in values.items()}))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the candidates, axis 0, in float64."""
    powers = np.exp(scores.astype(np.float64) - scores.max(0))
    return powers / powers.sum(0)


def _window(spans: PassageCandidates) -> tuple[np.ndarray, np.ndarray]:
    """(N,) first and last token of each candidate's window of neighbours within its sentence."""
    low = np.maximum(spans.first - NEAR, spans.sentence_first[spans.first])
    return low, np.minimum(spans.last + NEAR, spans.sentence_last[spans.last])


def span_scores(spans: PassageCandidates, rows: Rows, weight: np.ndarray) -> np.ndarray:
    """(N, L) scores of the candidates under a weight table (rows, L)."""

    def before(ids: np.ndarray) -> np.ndarray:
        """(T + 1, L) sum over the tokens before each position."""
        sums = weight[ids].sum(1, dtype=np.float64)
        return np.concatenate([np.zeros_like(sums[:1]), sums.cumsum(0)])

    a, b = spans.first, spans.last
    low, high = _window(spans)
    inside, left, right = before(rows.inside), before(rows.left), before(rows.right)
    ends = weight[rows.span].sum(1) + weight[rows.start].sum(1)[a] + weight[rows.end].sum(1)[b]
    # The sums inside, left and right of a span are differences of sums up to a token.
    return ends + inside[b + 1] - inside[a] + left[a] - left[low] + right[high + 1] - right[b + 1]


def row_gradients(
    spans: PassageCandidates, rows: Rows, gradient: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Gradient of ``span_scores`` given that of the scores (N, L): rows (M, K) and their shares (M, L)."""
    size = len(spans.tokens) + 1

    def sum_by_token(token: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(token, column, size) for column in gradient.T], -1)

    a, b = spans.first, spans.last
    low, high = _window(spans)
    first, past = sum_by_token(a), sum_by_token(b + 1)
    yield rows.span, gradient
    yield rows.start, first[:-1]
    yield rows.end, past[1:]
    # A sum over tokens x to y - 1 has the same gradient at each: add at x, subtract at y, accumulate.
    yield rows.inside, (first - past).cumsum(0)[:-1]
    yield rows.left, (sum_by_token(low) - first).cumsum(0)[:-1]
    yield rows.right, (past - sum_by_token(high + 1)).cumsum(0)[:-1]

"""Score records of a set of predictions; all rates in percent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qa_arch.types.text import Protocol


@dataclass(frozen=True, slots=True)
class Group:
    """Exact match and F1 (percent) over the ``total`` answerable or unanswerable questions."""

    exact: float
    f1: float
    total: int


@dataclass(frozen=True, slots=True)
class Answering:
    """Confusion matrix of answering and abstaining; "answered" is positive (thesis 3.1-3.4)."""

    answered_answerable: int
    answered_unanswerable: int
    abstained_answerable: int
    abstained_unanswerable: int

    @property
    def total(self) -> int:
        return self.answered + self.abstained_answerable + self.abstained_unanswerable

    @property
    def answered(self) -> int:
        return self.answered_answerable + self.answered_unanswerable

    @property
    def precision(self) -> float:
        """Share of the answered questions that are answerable; 0 if none was answered."""
        return _percent(self.answered_answerable, self.answered)

    @property
    def recall(self) -> float:
        """Share of the answerable questions that were answered; 0 if none is answerable."""
        return _percent(self.answered_answerable, self.answered_answerable + self.abstained_answerable)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        doubled = 2 * self.answered_answerable
        return _percent(doubled, doubled + self.answered_unanswerable + self.abstained_answerable)

    @property
    def accuracy(self) -> float:
        """Share of the questions with a correct choice between answering and abstaining ("AvNA")."""
        return _percent(self.answered_answerable + self.abstained_unanswerable, self.total)


@dataclass(frozen=True, slots=True)
class Oracle:
    """Scores at thresholds fitted on the scored questions themselves: upper bounds, not results."""

    exact: float
    exact_threshold: float
    f1: float
    f1_threshold: float


@dataclass(frozen=True, slots=True)
class AveragePrecision:
    """Areas under the precision-recall curves of the 2.0 evaluation, percent."""

    exact: float
    f1: float
    oracle: float
    """With full marks for every answerable question."""


@dataclass(frozen=True, slots=True)
class Scores:
    """All scores of one set of predictions at one null threshold, rates in percent."""

    protocol: Protocol
    exact: float
    f1: float
    total: int
    has_answer: Group | None
    """Over the answerable questions; None in protocol 1.1 or where there are none."""
    no_answer: Group | None
    token_precision: float
    """Mean over questions, against the gold answer of highest F1."""
    token_recall: float
    answering: Answering
    threshold: float
    """Null threshold: a null score above it means "no answer"."""
    oracle: Oracle | None = None
    average_precision: AveragePrecision | None = None

    def official(self) -> dict[str, Any]:
        """The keys of the official evaluation in its order, with its values to the last bit."""
        if self.protocol == "1.1":
            return {"exact_match": self.exact, "f1": self.f1}
        values: dict[str, Any] = {"exact": self.exact, "f1": self.f1, "total": self.total}
        for prefix, group in (("HasAns", self.has_answer), ("NoAns", self.no_answer)):
            if group:
                values |= {f"{prefix}_{key}": getattr(group, key) for key in ("exact", "f1", "total")}
        if best := self.oracle:
            values |= {"best_exact": best.exact, "best_exact_thresh": best.exact_threshold}
            values |= {"best_f1": best.f1, "best_f1_thresh": best.f1_threshold}
        if areas := self.average_precision:
            values |= {f"pr_{key}_ap": getattr(areas, key) for key in ("exact", "f1", "oracle")}
        return values

    def flat(self) -> dict[str, Any]:
        """``official()``, followed by token precision and recall and the answer-or-abstain figures."""
        values = self.official()
        values |= {"token_precision": self.token_precision, "token_recall": self.token_recall}
        for key in ("precision", "recall", "f1", "accuracy"):
            values[f"answerable_{key}"] = getattr(self.answering, key)
        for key in Answering.__slots__:
            values[key] = getattr(self.answering, key)
        return values


def _percent(part: int, total: int) -> float:
    return 100.0 * part / total if total else 0.0

"""How wide should F1 be smoothed before the null threshold is fitted?

    python experiments/decision/threshold_smoothing.py

Reads the committed calibration rows of ``decision`` (8 articles, 25 runs); dev is not used. At each width, in
standard deviations of the null odds (0: not smoothed):

- *lost*: the threshold is fitted without one article in turn; F1 that it loses on that article against the
  article's own best threshold, mean over articles and runs, and the largest mean of one run;
- *standard error*, of F1 of a run and of the difference of ``together`` and ``plain`` (means over seeds): two
  articles are set aside, and thresholds are fitted on two disjoint sets of 3 of the others. Half the mean
  square of the difference of what they give on the two articles is the variance of one, over all 560 such
  choices.
- *jackknife / true*: ratio of the variance that the delete-one jackknife of each set estimates to that one.

Unanswerable questions count as one half throughout, as the runs' ``calibration.prior`` has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qa_arch.metrics.abstention import class_weights, fit_threshold
from qa_arch.records import CALIBRATION, find_runs
from qa_arch.results.systems import Questions, load_questions

RECORDS = Path(__file__).parent / "records"
PRIOR = 0.5
WIDTHS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
Bools = npt.NDArray[np.bool_]


def score(rows: Questions, where: Bools, threshold: float) -> float:
    """F1 (percent) at a threshold on the questions ``where``."""
    answerable = rows.answerable[where]
    f1 = np.where(rows.null_odds[where] > threshold, ~answerable, rows.span_f1[where])
    negative, positive = class_weights(answerable.tolist(), PRIOR)
    return float(100 * np.mean(f1 * np.where(answerable, positive, negative)))


def fit(rows: Questions, where: Bools, width: float) -> float:
    columns = (rows.null_odds, rows.span_f1, rows.answerable)
    return fit_threshold(*(column[where].tolist() for column in columns), PRIOR, width or None)


class HeldOutFits:
    """Thresholds of one run at one width, each fitted once."""

    def __init__(self, rows: Questions, width: float) -> None:
        assert rows.article is not None, "the records of decision have articles"
        self.rows, self.width, self.article = rows, width, rows.article
        self.articles = np.unique(rows.article).tolist()
        self.known: dict[frozenset[int], float] = {}

    def on(self, articles: Iterable[int]) -> float:
        key = frozenset(articles)
        if key not in self.known:
            self.known[key] = fit(self.rows, self.among(key), self.width)
        return self.known[key]

    def among(self, articles: Iterable[int]) -> Bools:
        return np.isin(self.article, list(articles))

    def lost(self) -> float:
        """Mean over the left-out articles of the F1 lost by the threshold of the others."""
        losses = []
        for one in self.articles:
            inside = self.among([one])
            best = score(self.rows, inside, fit(self.rows, inside, 0.0))
            losses.append(best - score(self.rows, inside, self.on({*self.articles} - {one})))
        return float(np.mean(losses))

    def score(self, tested: Sequence[int], fitted_on: Iterable[int]) -> float:
        return score(self.rows, self.among(tested), self.on(fitted_on))


def variances(weighted: Sequence[tuple[float, HeldOutFits]]) -> tuple[float, float]:
    """Jackknife estimate and true variance of a sum of F1 on two articles, fitted on three others."""
    estimated, squares = [], []
    articles = weighted[0][1].articles
    for tested in combinations(articles, 2):
        others = {*articles} - {*tested}

        def total(fitted_on: Iterable[int], tested: Sequence[int] = tested) -> float:
            return sum(weight * fits.score(tested, fitted_on) for weight, fits in weighted)

        for chosen in map(set, combinations(sorted(others), 3)):
            left_out = [total(chosen - {omitted}) for omitted in chosen]
            estimated.append((len(chosen) - 1) * float(np.var(left_out)))
            squares.append((total(chosen) - total(others - chosen)) ** 2 / 2)
    return float(np.mean(estimated)), float(np.mean(squares))


def main() -> None:
    runs = [
        (record.model, load_questions(folder, record, CALIBRATION)) for folder, record in find_runs([RECORDS])
    ]
    print(f"{len(runs)} runs, {len(runs[0][1]):,} questions")
    for width in WIDTHS:
        fits = [(model, HeldOutFits(rows, width)) for model, rows in runs]
        losses = [run.lost() for _, run in fits]
        estimated, true = np.mean([variances([(1.0, run)]) for _, run in fits], axis=0)
        sides = {"plain": -0.2, "together": 0.2}  # five seeds each
        difference = variances([(sides[model], run) for model, run in fits if model in sides])
        print(
            f"width {width:g}: lost {np.mean(losses):.2f}, at most {max(losses):.2f}; standard error of a run"
            f" {np.sqrt(true):.2f}, jackknife / true variance {estimated / true:.2f}; of the difference"
            f" {np.sqrt(difference[1]):.2f}, {difference[0] / difference[1]:.2f}"
        )


if __name__ == "__main__":
    main()

"""At which share of unanswerable questions should the null threshold be fitted?

    python experiments/answer/threshold_prior.py

Reads the committed calibration rows of ``ablations`` (4 articles, 41.6% unanswerable) and the articles of
their questions from ``$QA_ARCH_DATA/squad``; dev is not used. Leaves out each article in turn, fits the
threshold on the other three, and compares F1 on the article with that at the article's own best threshold.
For testing, unanswerable questions are weighted to one half, their share in SQuAD 2.0's published dev set.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qa_arch.data.squad import read
from qa_arch.files import data_folder
from qa_arch.metrics.abstention import class_weights, fit_threshold
from qa_arch.records import CALIBRATION, find_runs
from qa_arch.results.systems import Questions, load_questions

RECORDS = Path(__file__).parents[1] / "ablations" / "records"
SQUAD = "squad/calibration-v2.0.json"
TESTED = 0.5
PRIORS = (None, 0.3, 0.4, 0.5, 0.6)
Bools = npt.NDArray[np.bool_]


def score(rows: Questions, where: Bools, threshold: float, prior: float | None) -> float:
    """F1 (percent) at a threshold on the questions ``where``, weighting unanswerable ones to ``prior``."""
    answerable = rows.answerable[where]
    abstained = rows.null_odds[where] > threshold
    f1 = np.where(abstained, ~answerable, rows.span_f1[where])
    negative, positive = class_weights(answerable.tolist(), prior)
    return float(100 * np.mean(f1 * np.where(answerable, positive, negative)))


def fit(rows: Questions, where: Bools, prior: float | None) -> float:
    columns = (rows.null_odds, rows.span_f1, rows.answerable)
    return fit_threshold(*(column[where].tolist() for column in columns), prior)


def regrets(rows: Questions, article: npt.NDArray[np.int64], tested: float | None) -> Iterator[list[float]]:
    """Per left-out article: F1 lost by the threshold of each prior."""
    for left_out in np.unique(article):
        inside = article == left_out
        best = score(rows, inside, fit(rows, inside, tested), tested)
        yield [best - score(rows, inside, fit(rows, ~inside, prior), tested) for prior in PRIORS]


def main() -> None:
    questions = read(Path(data_folder()) / SQUAD)
    ids = (example.id for example in questions.examples)
    article_of = dict(zip(ids, questions.article_numbers, strict=True))
    loaded = []
    for folder, record in find_runs([RECORDS]):
        rows = load_questions(folder, record, CALIBRATION)
        loaded.append((rows, np.array([article_of[id_] for id_ in rows.ids])))
    print(f"{len(loaded)} runs, {len(questions):,} questions of {len(questions.titles)} articles")
    for tested in (TESTED, None):
        lost = np.array([list(regrets(rows, article, tested)) for rows, article in loaded])
        share = "half" if tested else "its own share"
        print(f"tested at {share}: F1 below that at the article's best threshold")
        for column, prior in enumerate(PRIORS):
            losses = lost[:, :, column]
            better = (losses.mean(1) < lost[:, :, 0].mean(1)).mean()
            print(
                f"  fitted at {'own share' if prior is None else prior}: {losses.mean():.2f}, by article"
                f" {' '.join(f'{value:.2f}' for value in losses.mean(0))}; less than at the own share in"
                f" {better:.0%} of the runs"
            )


if __name__ == "__main__":
    main()

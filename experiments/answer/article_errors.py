"""Standard errors over articles and over questions, for every committed run whose scored set is available.

    python experiments/answer/article_errors.py

Reads the records of ``hypothesis`` and ``real_part`` (dev, fold A: 16 articles) and the articles of their
questions from ``$QA_ARCH_DATA/squad``; prints the ratio of the two standard errors, for the scores of single
runs and for the differences of two systems (means over their seeds).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from qa_arch.data.squad import read
from qa_arch.files import data_folder
from qa_arch.records import find_runs
from qa_arch.results.systems import load_questions

EXPERIMENTS = Path(__file__).parents[1]
RECORDS = {"hypothesis": "hypothesis/records", "real_part": "real_part/records/v2"}
FOLD_A = "squad/dev-v2.0.fold_a.json"
Floats = npt.NDArray[np.float64]


def ratio(scores: Floats, article: npt.NDArray[np.int64]) -> float:
    """Standard error of the mean over articles, divided by that over questions (linearised)."""
    deviations = np.bincount(article, scores - scores.mean())
    count = len(deviations)
    over_articles = np.sqrt(count / (count - 1) * (deviations**2).sum()) / len(scores)
    return float(over_articles / (scores.std(ddof=1) / np.sqrt(len(scores))))


def systems(folder: Path, article_of: Mapping[str, int]) -> tuple[dict[str, Floats], npt.NDArray[np.int64]]:
    """(model -> F1 (R, N), article of each of the N questions)."""
    runs: dict[str, list[Floats]] = {}
    for place, record in find_runs([folder]):
        rows = load_questions(place, record)
        runs.setdefault(record.model, []).append(rows.f1)
    return {model: np.stack(f1) for model, f1 in runs.items()}, np.array(
        [article_of[id_] for id_ in rows.ids]
    )


def main() -> None:
    questions = read(Path(data_folder()) / FOLD_A)
    ids = (example.id for example in questions.examples)
    article_of = dict(zip(ids, questions.article_numbers, strict=True))
    for name, place in RECORDS.items():
        by_model, article = systems(EXPERIMENTS / place, article_of)
        levels = [ratio(run, article) for runs in by_model.values() for run in runs]
        pairs = list(combinations(by_model.items(), 2))
        print(f"{name}: F1 of a run, {min(levels):.2f} to {max(levels):.2f}, median {median(levels):.2f}")
        for (a, of_a), (b, of_b) in pairs:
            print(f"{name}: F1 of {b} less {a}: {ratio(of_b.mean(0) - of_a.mean(0), article):.2f}")


if __name__ == "__main__":
    main()

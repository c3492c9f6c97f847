"""Do cosines tell paraphrases from near misses, and does such a score help to detect "no answer"?

Filled by: qa-arch train model=qa_lstm/c experiment=table_2_2 name=paraphrases data.open_dev=false, then
python experiments/paraphrases/scores.py RUN (see README.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from qa_arch.errors import RunError
from qa_arch.metrics.abstention import Bools, Floats, Ints, auroc, auroc_values
from qa_arch.metrics.significance import contrast, holm
from qa_arch.records import CALIBRATION, RECORDS, recorded
from qa_arch.results.effects import P_HOLM, P_VALUE, delta_columns, interval_column, interval_figures
from qa_arch.results.experiments import Wanted, records_table
from qa_arch.results.systems import load_aligned, stacked
from qa_arch.results.tables import Table, number, text, two_decimals

SCORERS = {"glove": "GloVe means", "qa_lstm": "QA-LSTM", "minilm": "MiniLM"}
SOURCES = (("rewording", "twin", "other"), ("generated", "opposite"), ("edit",))
"""Kinds of pairs by the data that they are made of."""
COMPARISONS = {
    "all: both paraphrases, twins and edits": (("rewording", "generated"), ("twin", "edit")),
    "rewordings, twins": (("rewording",), ("twin",)),
    "rewordings, Quoref's edits": (("rewording",), ("edit",)),
    "generated wordings, twins": (("generated",), ("twin",)),
    "generated wordings, Quoref's edits": (("generated",), ("edit",)),
    "generated wordings, opposites": (("generated",), ("opposite",)),
    "control: rewordings, other questions": (("rewording",), ("other",)),
}
"""Name -> kinds of paraphrases, kinds of near misses."""
DIFFERENCES = tuple(COMPARISONS)[:2]
"""Comparisons in which the scorers are compared with each other."""
MODELS = ("bert", "ablation_plain_verifier", "ablation_together")
FOLDS, DRAWS, SEED = 10, 1000, 13
TRAIN = "qa-arch train model=qa_lstm/c experiment=table_2_2 name=paraphrases data.open_dev=false"
Columns = Mapping[str, npt.NDArray[Any]]


def tables(folder: Path) -> list[Table]:
    runs = records_table(
        folder,
        "The QA-LSTM: model C of Table 2.2, top-1 on the held-out training articles",
        columns=("model", "seed", "accuracy", "mrr", "parameters", "seconds"),
        split=CALIBRATION,
        wanted=[Wanted("qa_lstm_c", TRAIN)],
    )
    if not (folder / RECORDS / "pairs.parquet").is_file():
        return [runs]
    pairs, sentences = (columns_of(folder / RECORDS / f"{name}.parquet") for name in ("pairs", "sentences"))
    return [*pair_tables(pairs), verifier_table(folder.parent / "answer", sentences), runs]


def columns_of(path: Path) -> Columns:
    return {name: np.array(column) for name, column in pq.read_table(path).to_pydict().items()}


# Pairs ----------------------------------------------------------------------------------------------


def pair_tables(pairs: Columns) -> list[Table]:
    """AUROC and accuracy of every scorer in every comparison, and differences between scorers."""
    rows: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    for name, (positives, negatives) in COMPARISONS.items():
        chosen = np.isin(pairs["kind"], (*positives, *negatives))
        kind, cluster = pairs["kind"][chosen], np.unique(pairs["cluster"][chosen], return_inverse=True)[1]
        positive = np.isin(kind, positives)
        scores = {key: pairs[key][chosen].astype(float) for key in SCORERS}
        draws = list(resampled(cluster, [np.isin(kind, source) for source in SOURCES]))
        areas = {key: area(score, positive) for key, score in scores.items()}
        drawn = {k: np.array([area(score[d], positive[d]) for d in draws]) for k, score in scores.items()}
        sizes = {"pairs": f"{positive.sum()} + {(~positive).sum()}", "clusters": int(cluster.max()) + 1}
        for key, scorer in SCORERS.items():
            row = {"comparison": name, **sizes, "scorer": scorer, "auroc": areas[key]}
            row["accuracy"] = held_out_accuracy(scores[key], positive, cluster)
            rows.append(row | interval("auroc", drawn[key]))
        for a, b in combinations(SCORERS, 2) if name in DIFFERENCES else ():
            row = {"comparison": name, "scorer": f"{SCORERS[b]} - {SCORERS[a]}"}
            row["delta"] = areas[b] - areas[a]
            differences.append(row | interval("delta", drawn[b] - drawn[a]))
    named = (text("comparison", "paraphrases, near misses"), text("scorer", "cosine of"))
    notes = [
        "AUROC: how often a paraphrase scores above a near miss, percent; 50 is chance, below it near misses"
        f" score higher; intervals: {DRAWS:,} bootstrap draws of clusters (articles; relations of the"
        " generator)",
        "accuracy: mean of paraphrases and of near misses, at a threshold fitted on the clusters of the"
        f" other {FOLDS - 1} of {FOLDS} folds; 50 is chance",
    ]
    columns = [
        *(*named, text("pairs", "pairs"), number("clusters", "clusters")),
        *(number("auroc", "AUROC", two_decimals), interval_column("auroc", weight=2)),
        number("accuracy", "accuracy", two_decimals),
    ]
    return [
        Table("Paraphrases against near misses", columns, rows, notes),
        Table("AUROC: differences of scorers", [*named, *delta_columns("Δ")], differences),
    ]


def area(score: Floats, positive: Bools) -> float:
    """AUROC in percent; NaN if a class is missing."""
    value = auroc(score, positive)
    return float("nan") if value is None else 100 * value


def interval(key: str, drawn: Floats) -> dict[str, float]:
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return {f"{key}_95_low": float(low), f"{key}_95_high": float(high)}


def resampled(cluster: Ints, sources: Sequence[Bools]) -> Iterator[Ints]:
    """``DRAWS`` bootstrap samples of rows: whole clusters, as many of each source as it has."""
    rng = np.random.default_rng(SEED)
    strata = [
        [np.flatnonzero(cluster == own) for own in np.unique(cluster[source])]
        for source in sources
        if source.any()
    ]
    for _ in range(DRAWS):
        picks = ((rows, rng.integers(len(rows), size=len(rows))) for rows in strata)
        yield np.concatenate([rows[number] for rows, numbers in picks for number in numbers])


def held_out_accuracy(score: Floats, positive: Bools, cluster: Ints) -> float:
    """Mean accuracy of both classes, percent, at thresholds fitted on other clusters; a paraphrase scores at
    least the threshold."""
    right = np.zeros(len(score), bool)
    for fold in range(FOLDS):
        inside = cluster % FOLDS == fold
        threshold = best_threshold(score[~inside], positive[~inside])
        right[inside] = (score[inside] >= threshold) == positive[inside]
    return balanced(right, positive)


def balanced(right: Bools, positive: Bools) -> float:
    return 50 * float(right[positive].mean() + right[~positive].mean())


def best_threshold(score: Floats, positive: Bools) -> float:
    """The lowest threshold of highest ``balanced`` accuracy, among the scores and infinity."""
    candidates = [*np.unique(score).tolist(), np.inf]
    return max(candidates, key=lambda threshold: balanced((score >= threshold) == positive, positive))


# The verifier ---------------------------------------------------------------------------------------


def verifier_table(answer: Path, sentences: Columns) -> Table:
    """Answerability by logistic regression on null odds, with and without the best sentence's cosine."""
    rows: list[dict[str, Any]] = []
    article = sentences["article"]
    for model in MODELS:
        runs = [(answer / place, record) for place, record in recorded(answer, f"seed*-{model}")]
        questions = load_aligned(runs, CALIBRATION)
        if list(questions[0].ids) != sentences["id"].tolist():
            raise RunError("sentences.parquet has other questions than the calibration rows of answer")
        answerable, odds = questions[0].answerable, stacked(questions, "null_odds")
        before = areas_of([run[:, None] for run in odds], answerable, article)
        for key, scorer in SCORERS.items():
            cosine = sentences[key].astype(float)
            alone = 100 * by_article(cosine, answerable, article).mean()
            after = areas_of([np.stack([run, cosine], 1) for run in odds], answerable, article)
            effect = contrast([after - before], articles=article)
            row = {"model": model, "scorer": scorer, "alone": alone}
            row |= {"before": before.mean(), "after": after.mean(), "delta": effect.delta, "p": effect.p}
            gains = [(after - before)[:, article == own].mean() for own in np.unique(article)]
            row["by_article"] = ", ".join(f"{gain:+.1f}" for gain in gains)
            rows.append(row | interval_figures("delta", effect.interval))
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    columns = [
        *(text("model", "null odds of"), text("scorer", "cosine of")),
        number("alone", "cosine alone", two_decimals),
        *(number("before", "null odds", two_decimals), number("after", "both", two_decimals)),
        *(*delta_columns("Δ"), P_VALUE, P_HOLM, text("by_article", "Δ by article")),
    ]
    notes = [
        'AUROC of "answerable" within each article, percent, mean over the questions of calibration (4'
        " articles) and 5 seeds; logistic regressions fitted on the other three articles; intervals and p"
        f" over articles and seeds, crossed; Holm over {len(rows)}",
        "Δ by article: Oxygen, Civil_disobedience, Economic_inequality, Rhine",
        "a regression on the null odds of trained models, not a verifier trained with the score",
    ]
    return Table("Null odds and the best sentence's cosine, calibration", columns, rows, notes)


def areas_of(features: Sequence[Floats], answerable: Bools, article: Ints) -> Floats:
    """Values (R, N) of ``by_article``, percent, of the held-out odds of R runs."""
    odds = (held_out_odds(run, answerable, article) for run in features)
    return np.stack([100 * by_article(run, answerable, article) for run in odds])


def by_article(score: Floats, answerable: Bools, article: Ints) -> Floats:
    """Per-question values, whose mean over an article is the AUROC within it (0..1)."""
    values = np.empty(len(score))
    for own in np.unique(article):
        values[article == own] = auroc_values(score[article == own], answerable[article == own])
    return values


def held_out_odds(features: Floats, answerable: Bools, article: Ints) -> Floats:
    """Log odds of "answerable" (N,) by the regression on ``features`` (N, F), fitted on other articles."""
    rows, odds = np.column_stack([np.ones(len(features)), features]), np.empty(len(features))
    for own in np.unique(article):
        inside = article == own
        odds[inside] = rows[inside] @ logistic(rows[~inside], answerable[~inside])
    return odds


def logistic(rows: Floats, true: Bools) -> Floats:
    """Weights (F,) of a logistic regression without a penalty, by Newton's method."""
    weights = np.zeros(rows.shape[1])
    for _ in range(20):
        probability = 1 / (1 + np.exp(-rows @ weights))
        curvature = (rows * (probability * (1 - probability))[:, None]).T @ rows
        weights += np.linalg.solve(curvature, rows.T @ (true - probability))
    return weights

"""Registered tests of the decision experiment, from its committed records.

    python experiments/decision/effects.py

Primary: three contrasts of F1 in fixed order, each tested only if the previous one is significant.
Secondary: the same contrasts of the AUROC of "no answer", and both parts against the plain head trained
longer, corrected by Holm. Without a test: the gain of longer training, the means of all arms (± standard
deviation over seeds), and the ensemble of the plain heads. Intervals are over articles, seeds and calibration
articles. Nothing is tested until all runs are scored.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qa_arch.evaluation.registration import read_registration
from qa_arch.metrics.confidence import Floats, auroc
from qa_arch.metrics.significance import Effect, holm
from qa_arch.metrics.threshold import fit_threshold
from qa_arch.records import CALIBRATION, DEV, Runs, find_runs
from qa_arch.results.questions import Questions, load_aligned, stacked
from qa_arch.results.samples import MEASURES, MeasureName, samples_of
from qa_arch.results.systems import System

HERE = Path(__file__).parent
LEVEL = 0.05
CONTRASTS = {
    "together_twins - plain": {"plain": -1.0, "together_twins": 1.0},
    "twins": {"plain": -0.5, "plain_twins": 0.5, "together": -0.5, "together_twins": 0.5},
    "head": {"plain": -0.5, "plain_twins": -0.5, "together": 0.5, "together_twins": 0.5},
}
LONGER = {"plain_longer": -1.0, "together_twins": 1.0}
REPORTED: tuple[MeasureName, ...] = ("f1", "spans", "auroc")


def main() -> None:
    registration = read_registration(HERE)
    assert registration is not None
    runs = find_runs([HERE / "records"]) if (HERE / "records").is_dir() else []
    systems = [System(arm, tuple(run for run in runs if run[1].model == arm)) for arm in registration.runs]
    planned = sum(map(len, registration.runs.values()))
    scored = sum(DEV in record.scores for _, record in runs)
    if scored < planned:
        sys.exit(f"{scored} of {planned} registered runs are scored; nothing is tested before the last")
    samples = samples_of(systems, DEV)
    tested = True
    for name, weights in CONTRASTS.items():
        effect = samples.contrast(weights, "f1")
        p = f"p {effect.p:.3f}" if tested else "not tested: previous one not significant"
        print(f"{describe('F1', name, effect)}, {p}")
        tested = tested and effect.p < LEVEL
    secondary = [("AUROC", name, samples.contrast(weights, "auroc")) for name, weights in CONTRASTS.items()]
    secondary.append(("F1", "together_twins - plain_longer", samples.contrast(LONGER, "f1")))
    corrected = holm([effect.p for *_, effect in secondary])
    for (measure, name, effect), p in zip(secondary, corrected, strict=True):
        print(f"{describe(measure, name, effect)}, p {effect.p:.3f}, Holm {p:.3f}")
    print(describe("F1", "plain_longer - plain", samples.effect("plain", "plain_longer", "f1")))
    for arm in registration.runs:
        means = {MEASURES[measure]: samples.scores(arm, measure).mean(1) for measure in REPORTED}
        figures = (f"{name} {mean.mean():.1f} ± {mean.std(ddof=1):.1f}" for name, mean in means.items())
        print(f"{arm}: {'; '.join(figures)}")
    figures = (f"{MEASURES[name]} {value:.1f}" for name, value in ensemble(systems[0].runs).items())
    print(f"ensemble of {systems[0].label}: {'; '.join(figures)}")


def ensemble(runs: Runs) -> dict[MeasureName, float]:
    """Scores on the test set, in percent, of the ``vote`` of ``runs`` at its own fitted null threshold."""
    fitted_on, test = (load_aligned(runs, split) for split in (CALIBRATION, DEV))
    fitted = runs[0][1].threshold
    assert fitted is not None, "registered runs have a calibration split"
    odds, spans = vote(fitted_on)
    threshold = fit_threshold(
        odds.tolist(), spans.tolist(), fitted_on[0].answerable.tolist(), prior=fitted.prior
    )
    odds, spans = vote(test)
    answerable = test[0].answerable
    area = auroc(-odds, answerable)
    assert area is not None, "the test set has questions of both kinds"
    f1 = np.where(odds > threshold, ~answerable, spans).mean()
    return {"f1": 100 * f1, "spans": 100 * spans[answerable].mean(), "auroc": 100 * area}


def vote(rows: Sequence[Questions]) -> tuple[Floats, Floats]:
    """Ensemble from the answers of R runs, as their weights are not kept.

    Returns the mean log odds of "no answer" and the F1 of the span, among the best spans of the runs, with
    the largest sum of probabilities, shape (N,) each.
    """
    start, end, probability = (stacked(rows, name) for name in ("start", "end", "probability"))
    same = (start[:, None] == start) & (end[:, None] == end)  # (R, R, N)
    chosen = (same * probability).sum(1).argmax(0)
    f1 = np.take_along_axis(stacked(rows, "span_f1"), chosen[None], 0)[0]
    return stacked(rows, "null_odds").mean(0), f1


def describe(measure: str, name: str, effect: Effect) -> str:
    low, high = effect.interval
    return f"{measure}, {name}: {effect.delta:+.2f} ({low:+.2f} .. {high:+.2f})"


if __name__ == "__main__":
    main()

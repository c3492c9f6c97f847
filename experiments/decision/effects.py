"""The registered tests of the decision, from its committed records.

    python experiments/decision/effects.py

Primary: three contrasts of F1 in fixed order, each tested only if the one before it is significant.
Secondary: the same of the area under the curve of "no answer", and both parts against the plain head trained
longer, corrected by Holm. Over articles, seeds and calibration articles; nothing is tested before all runs
are there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qa_arch.evaluation.registration import read_registration
from qa_arch.metrics.significance import Effect, holm
from qa_arch.records import DEV, find_runs
from qa_arch.results.samples import samples_of
from qa_arch.results.systems import System

HERE = Path(__file__).parent
LEVEL = 0.05
CONTRASTS = {
    "together_twins - plain": {"plain": -1.0, "together_twins": 1.0},
    "twins": {"plain": -0.5, "plain_twins": 0.5, "together": -0.5, "together_twins": 0.5},
    "head": {"plain": -0.5, "plain_twins": -0.5, "together": 0.5, "together_twins": 0.5},
}
LONGER = {"plain_longer": -1.0, "together_twins": 1.0}


def main() -> None:
    registration = read_registration(HERE)
    assert registration is not None
    runs = find_runs([HERE / "records"]) if (HERE / "records").is_dir() else []
    systems = [System(arm, tuple(run for run in runs if run[1].model == arm)) for arm in registration.runs]
    planned = sum(map(len, registration.runs.values()))
    scored = sum(DEV in record.scores for _, record in runs)
    if scored < planned:
        sys.exit(f"{scored} of {planned} registered runs are scored; nothing is tested before the last")
    given = samples_of(systems, DEV)
    goes_on = True
    for name, weights in CONTRASTS.items():
        found = given.contrast(weights, "f1")
        print(told("F1", name, found), "" if goes_on else "(not tested: the one before is not significant)")
        goes_on = goes_on and found.p < LEVEL
    secondary = [("AUROC", name, given.contrast(weights, "auroc")) for name, weights in CONTRASTS.items()]
    secondary.append(("F1", "together_twins - plain_longer", given.contrast(LONGER, "f1")))
    for (measure, name, found), p in zip(secondary, holm([found.p for *_, found in secondary]), strict=True):
        print(told(measure, name, found), f"Holm {p:.3f}")


def told(measure: str, name: str, found: Effect) -> str:
    low, high = found.interval
    return f"{measure}, {name}: {found.delta:+.2f} ({low:+.2f} .. {high:+.2f}), p {found.p:.3f}"


if __name__ == "__main__":
    main()

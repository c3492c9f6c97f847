"""What distillation from a mixed ensemble adds, and what the head adds: the four arms of plan.md.

Filled by: the tuning of README.md; then, from the commit that registered.json names, one sweep per arm,
qa-arch evaluate --run RUN --final for each run, and qa-arch tables runs/ensemble_distillation --publish
experiments/ensemble_distillation/records
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qa_arch.metrics.significance import in_order
from qa_arch.records import DEV, recorded
from qa_arch.registration import read_registration
from qa_arch.results.comparisons import P_HOLM, P_VALUE, delta_columns, effect_figures
from qa_arch.results.experiments import Wanted, runs_table
from qa_arch.results.samples import samples_of
from qa_arch.results.systems import System
from qa_arch.results.tables import Table, text

ARMS: Mapping[str, str] = {
    "plain": "model=bert",
    "together": "model=ablation/together loss=verifier_twins",
}
"""The arms that need no teacher; the commands of the other two name the ten runs of these."""
SEEDS = "seed=13,14,15,16,17"
TESTS = (("together_distilled", "plain"), ("together_distilled", "plain_distilled"))
"""The tests of F1 on the test set, in the plan's order."""


def tables(folder: Path) -> list[Table]:
    wanted = [
        Wanted(
            name,
            f"qa-arch train -m experiment=ensemble_distillation model.name={name} {settings} {SEEDS}",
        )
        for name, settings in ARMS.items()
    ]
    runs = runs_table(
        folder,
        "Distillation from a mixed ensemble: MiniLM-L6, 15 articles of dev",
        columns=(
            *("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "spans_f1", "auroc"),
            *("null_threshold", "parameters", "seconds"),
        ),
        wanted=wanted,
        notes=["the commands also have the tuned settings; the distilled arms follow: plan.md"],
        sort=("model", "seed"),
    )
    arms = scored_arms(folder)
    return [runs, tests_table(arms)] if arms else [runs]


def scored_arms(folder: Path) -> list[System]:
    """The registered arms with all their runs; none before the last registered run is scored."""
    registration = read_registration(folder)
    if registration is None:
        return []
    runs = [(folder / place, record) for place, record in recorded(folder, "**") if DEV in record.scores]
    if len(runs) < sum(map(len, registration.runs.values())):
        return []
    return [System(arm, tuple(run for run in runs if run[1].model == arm)) for arm in registration.runs]


def tests_table(arms: list[System]) -> Table:
    samples = samples_of(arms, DEV)
    effects = [samples.effect(baseline, system, "f1") for system, baseline in TESTS]
    adjusted = in_order([[effect.p] for effect in effects])
    rows = [
        {"model": f"{system} - {baseline}", **effect_figures(effect, p)}
        for (system, baseline), effect, (p,) in zip(TESTS, effects, adjusted, strict=True)
    ]
    columns = [
        text("model", "difference"),
        *delta_columns("ΔF1"),
        P_VALUE,
        replace(P_HOLM, heading="p, in order"),
    ]
    return Table("Registered tests of F1", columns, rows)

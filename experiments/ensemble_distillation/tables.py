"""What distillation from a mixed ensemble adds, and what the head adds: the four arms of plan.md.

Filled by: the tuning of README.md, published to records/tuning; then, from the commit that registered.json
names, card.py run teachers, students and score, and qa-arch tables 'runs/ensemble_distillation/*-s1[3-7]'
--publish experiments/ensemble_distillation/records
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qa_arch.files import read_yaml
from qa_arch.provenance import read_registration
from qa_arch.records import CALIBRATION, DEV
from qa_arch.results.effects import P_HOLM, P_VALUE, delta_columns, effects, samples_of
from qa_arch.results.experiments import Wanted, drawn_table, records_table, registered_systems
from qa_arch.results.systems import System
from qa_arch.results.tables import Table, text

TESTS: Mapping[str, Mapping[str, float]] = {
    f"together_distilled - {baseline}": {baseline: -1, "together_distilled": 1}
    for baseline in ("plain", "plain_distilled")
}
"""The tests of F1 on the test set, in the plan's order."""


def tables(folder: Path) -> list[Table]:
    plan = read_yaml(folder / "plan.yaml")
    seeds = ",".join(map(str, plan["seeds"]))
    wanted = [
        Wanted(name, f"qa-arch train -m {settings} seed={seeds}")
        for name, settings in plan["arms"].items()
        if "distillation=" not in settings  # the commands of the others name the ten runs of these
    ]
    runs = records_table(
        folder,
        "Distillation from a mixed ensemble: MiniLM-L6, 15 articles of dev",
        columns=(
            *("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "forced_f1", "auroc"),
            *("null_threshold", "parameters", "seconds"),
        ),
        records="*-s1[3-7]",
        wanted=wanted,
        notes=["the commands also have the tuned settings; the distilled arms follow: plan.md"],
        sort=("model", "seed"),
    )
    registration = read_registration(folder)
    arms = registered_systems(folder, registration.runs) if registration else []
    columns = ("model", "seed", "f1", "forced_f1", "auroc")
    tuning = drawn_table(folder, "Tuning: the trials so far, calibration", columns, "tuning/*", CALIBRATION)
    tests = tests_table(arms) if arms else None
    return [table for table in (runs, tests, tuning) if table is not None]


def tests_table(arms: list[System]) -> Table:
    tested = effects(samples_of(arms, DEV), TESTS, "f1", list(TESTS))
    rows = [{"model": row.name, **row.figures} for row in tested]
    columns = [
        text("model", "difference"),
        *delta_columns("ΔF1"),
        P_VALUE,
        replace(P_HOLM, heading="p, in order"),
    ]
    return Table("Registered tests of F1", columns, rows)

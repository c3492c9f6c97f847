"""Head and twins, a 2 × 2 design: does the proposed model with both beat the plain span head?

Filled by: the five commands of README.md; then qa-arch evaluate --run RUN --final for each, and
qa-arch tables runs/decision --publish experiments/decision/records
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qa_arch.metrics.abstention import Floats, auroc, fit_threshold
from qa_arch.provenance import read_registration
from qa_arch.records import CALIBRATION, DEV, Runs
from qa_arch.results.effects import (
    MEASURES,
    P_HOLM,
    P_VALUE,
    MeasureName,
    Samples,
    corrected,
    delta_columns,
    effects,
    mean_column,
    mean_figures,
    samples_of,
)
from qa_arch.results.experiments import (
    Wanted,
    draw_differences,
    records_table,
    registered_systems,
    save_figure,
)
from qa_arch.results.systems import Questions, System, load_aligned, stacked
from qa_arch.results.tables import Table, number, text

ARMS = {
    "plain": "model=bert",
    "plain_twins": "model=bert loss=twins",
    "together": "model=ablation/together",
    "together_twins": "model=ablation/together loss=twins loss.verifier_null_weight=balanced",
    "plain_longer": "model=bert trainer.epochs=4",
}
CONTRASTS: Mapping[str, Mapping[str, float]] = {
    "together_twins - plain": {"plain": -1, "together_twins": 1},
    "main effect of twins": {"plain": -0.5, "plain_twins": 0.5, "together": -0.5, "together_twins": 0.5},
    "main effect of the head": {"plain": -0.5, "plain_twins": -0.5, "together": 0.5, "together_twins": 0.5},
}
REPORTED: Sequence[MeasureName] = ("f1", "forced_f1", "auroc")


def tables(folder: Path) -> list[Table]:
    seeds = "seed=13,14,15,16,17"
    wanted = [
        Wanted(name, f"qa-arch train -m experiment=decision model.name={name} {settings} {seeds}")
        for name, settings in ARMS.items()
    ]
    runs = records_table(
        folder,
        "Head and twins: MiniLM-L6 on the swapped split, 15 articles of dev",
        columns=(
            *("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "forced_f1", "auroc"),
            *("null_threshold", "parameters", "seconds"),
        ),
        wanted=wanted,
        sort=("model", "seed"),
    )
    arms = _arms(folder)
    if not arms:
        return [runs]
    samples = samples_of(arms, DEV)
    return [runs, tests_table(samples), scores_table(samples, arms)]


def figures(folder: Path) -> list[Sequence[Path]]:
    """Draw the registered contrasts."""
    arms = _arms(folder)
    if not arms:
        return []
    tested = [row for row in tests_table(samples_of(arms, DEV)).rows if row["model"] in CONTRASTS]
    panels = {
        heading: Table("", [], [row for row in tested if row["measure"] == heading])
        for heading in (MEASURES["f1"], MEASURES["auroc"])
    }
    caption = (
        "Bars: 95% intervals, not corrected for the number of tests. Grey: p is 0.05 or more after correction"
        " (F1: in the plan's fixed order; AUROC: Holm), so the difference may be chance."
    )
    title = "Head and twins: 15 articles of SQuAD 2.0, 11,209 training questions"
    return [save_figure(lambda: draw_differences(panels, title, caption, {}), folder / "differences")]


def _arms(folder: Path) -> list[System]:
    registration = read_registration(folder)
    assert registration is not None
    return registered_systems(folder, registration.runs)


def tests_table(samples: Samples) -> Table:
    """The tests of plan.md: primary ones in fixed order, secondary ones corrected by Holm, and the gain of
    longer training, which is reported without a test."""
    longer = {"together_twins - plain_longer": {"plain_longer": -1.0, "together_twins": 1.0}}
    untested = {"plain_longer - plain": {"plain": -1.0, "plain_longer": 1.0}}
    primary = effects(samples, CONTRASTS, "f1", list(CONTRASTS))
    secondary = [*effects(samples, CONTRASTS, "auroc", None), *effects(samples, longer, "f1", None)]
    families = {
        "primary": primary,
        "secondary": corrected(secondary),
        "not tested": effects(samples, untested, "f1", None),
    }
    rows = [
        {"family": family, "model": row.name, "measure": MEASURES[row.measure], **row.figures}
        | ({} if row.p is not None else {"p": None})
        for family, tested in families.items()
        for row in tested
    ]
    variance = primary[0].effect.variance
    notes = [
        f"intervals and p: over {variance.units} articles and seeds, crossed, and for F1 the null threshold"
        f" over {variance.calibration_units} calibration articles; Student's t",
        "p, corrected: primary tests in this order, each only if those before it are significant; secondary"
        f" ones by Holm over {len(secondary)}",
    ]
    columns = [
        *(text("family", "tests"), text("model", "difference"), text("measure", "measure")),
        *(*delta_columns("Δ"), P_VALUE, replace(P_HOLM, heading="p, corrected")),
    ]
    return Table("Registered tests", columns, rows, notes)


def scores_table(samples: Samples, arms: Sequence[System]) -> Table:
    """Means of the arms over seeds, and the ensembles of each and of all; only the first was registered."""
    rows = []
    for arm in arms:
        row = {"model": arm.label, "seeds": len(arm.runs)}
        for measure in REPORTED:
            row |= mean_figures(measure, samples.scores(arm.label, measure))
        rows.append(row)
    ensembles = {f"ensemble of {arm.label}": arm.runs for arm in arms}
    ensembles["ensemble of all runs"] = [run for arm in arms for run in arm.runs]
    for label, runs in ensembles.items():
        scores = {f"{measure}_mean": value for measure, value in ensemble(runs).items()}
        rows.append({"model": label, "seeds": len(runs), **scores})
    columns = [
        *(text("model", "model"), number("seeds", "seeds")),
        *(mean_column(measure, MEASURES[measure]) for measure in REPORTED),
    ]
    notes = [
        "± standard deviation over seeds; an ensemble votes among the answers of its runs; ensembles are not"
        " tested, and only that of plain was planned"
    ]
    return Table("Scores of all arms", columns, rows, notes)


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
    return {"f1": 100 * f1, "forced_f1": 100 * spans[answerable].mean(), "auroc": 100 * area}


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

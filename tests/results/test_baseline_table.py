"""Tables against a baseline: the right scores, numbers for programs, text for people."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from qa_arch.errors import RunError
from qa_arch.records import find_runs, read_questions
from qa_arch.results.comparisons import against_baseline
from qa_arch.results.systems import find_system, group_by_system
from qa_arch.results.tables import markdown, render


def test_a_table_against_a_baseline(sides):
    folder, *_ = sides
    groups = group_by_system(
        find_runs([folder / "poor-1", folder / "poor-2", folder / "good-1", folder / "x"])
    )
    table = against_baseline(groups, find_system(groups, "poor"))
    rows = {row["model"]: row for row in table.rows}
    assert list(rows) == ["poor", "good", "bert"]
    assert "delta" not in rows["poor"]
    assert rows["poor"]["f1_sd"] > 0
    assert rows["good"]["f1_sd"] is None
    assert rows["good"]["delta"] == pytest.approx(rows["good"]["f1_mean"] - rows["poor"]["f1_mean"])
    assert "Holm over 2 comparisons" in table.notes
    spans = against_baseline(groups, find_system(groups, "poor"), measure="spans")
    found = [read_questions(folder / f"poor-{seed}") for seed in (1, 2)]
    means = [100 * np.array(run["span_f1"])[run["answerable"]].mean() for run in found]
    measured = spans.rows[0]["spans_mean"], spans.rows[0]["spans_sd"]
    assert measured == pytest.approx((np.mean(means), np.std(means, ddof=1)))
    assert "f1_mean" not in spans.rows[0]
    assert spans.rows[1]["delta"] > 0
    assert spans.notes[0].startswith(f"{sum(found[0]['answerable'])} questions")
    with pytest.raises(RunError, match=r"'nobody'.*poor; good; bert"):
        find_system(groups, "nobody")
    twice = group_by_system(
        [*find_runs([folder / "poor-1", folder / "good-1"]), (folder / "copy", groups[1].record)]
    )
    with pytest.raises(RunError, match=r"good: seed 1 comes twice \(.*good-1, .*copy\)"):
        against_baseline(twice, find_system(twice, "poor"))


def test_a_run_is_compared_with_the_run_of_its_seed(sides):
    folder, *_ = sides
    systems = group_by_system(find_runs([folder / "poor-1", folder / "poor-2", folder / "good-1"]))
    parent, child = find_system(systems, "poor"), find_system(systems, "good")
    table = against_baseline(systems, parent, paired=True)
    f1 = {
        run.name: 100 * np.mean(read_questions(run)["f1"]) for run in (folder / "poor-1", folder / "good-1")
    }
    (delta,) = (row["delta"] for row in table.rows if row["model"] == "good")
    assert delta == pytest.approx(f1["good-1"] - f1["poor-1"])
    assert "against poor, run by run of the same seed; " in table.notes[1]
    alone = [replace(parent, runs=parent.runs[1:]), child]
    with pytest.raises(RunError, match="good: no run of poor has the seed 1"):
        against_baseline(alone, alone[0], paired=True)


def test_programs_read_numbers_where_people_read_intervals(sides):
    _, a, b, _ = sides
    a, b = replace(a, label="poor"), replace(b, label="good, one seed", runs=b.runs[:1])
    table = against_baseline([a, b], a)
    (plain,) = json.loads(render([table], "json"))
    poor, good = plain["rows"]
    figures = [f"{key}_{part}" for key in ("exact", "f1") for part in ("mean", "sd", "95_low", "95_high")]
    tests = ["delta", "delta_95_low", "delta_95_high", "p", "p_holm"]
    assert list(poor) == ["model", "seeds", *figures]
    assert list(good) == ["model", "seeds", *figures, *tests]
    assert all(isinstance(poor[key], float) for key in figures)
    assert [key for key in good if not isinstance(good[key], float)] == [
        "model",
        "seeds",
        "exact_sd",
        "f1_sd",
    ]
    assert good["delta_95_low"] < good["delta"] < good["delta_95_high"]
    assert 0.001 < good["p"] == good["p_holm"] < 0.05
    first, second = csv.DictReader(io.StringIO(render([table], "csv")))
    assert list(first) == ["table", "model", "seeds", *figures, *tests]
    assert [second[key] for key in tests] == [str(good[key]) for key in tests]
    assert second["f1_sd"] == first["p"] == ""
    shown = markdown(table).splitlines()[4:6]
    mean, sd, low, high = (poor[f"f1_{part}"] for part in ("mean", "sd", "95_low", "95_high"))
    assert f"| {mean:.2f} ± {sd:.2f} | {low:.2f} .. {high:.2f} | – | – | – | – |" in shown[0]
    low, high = good["delta_95_low"], good["delta_95_high"]
    assert f"| {good['f1_mean']:.2f} |" in shown[1]
    assert (
        f"| {good['delta']:+.2f} | {low:+.2f} .. {high:+.2f} | {good['p']:.3f} | {good['p']:.3f} |"
        in shown[1]
    )


def test_figures_in_full_are_the_same_on_every_machine(sides):
    """Sums differ in their last digits from processor to processor; committed tables must not."""
    _, a, b, _ = sides
    numbers = [value for row in against_baseline([a, b], a).rows for value in row.values()]
    numbers = [value for value in numbers if isinstance(value, float)]
    assert numbers == [round(value, 6) for value in numbers]

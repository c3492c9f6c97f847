"""The figure of scores against costs: which points, and which of them are on the front."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from runpy import run_path

from qa_arch.records import Cost, write_record
from qa_arch.results.columns import named
from qa_arch.results.tables import Table

SCRIPT = run_path(str(Path(__file__).parents[2] / "experiments/compression/tables.py"))
front, points, pareto_plot = (SCRIPT[name] for name in ("front", "points", "pareto_plot"))


def row(model, f1, cost):
    return {"model": model, "f1": f1, "exact": None, "weights_mb": cost, "seed": 1}


def test_the_front_is_what_nothing_beats():
    rows = [
        row("a", 50.0, 10),
        row("b", 60.0, 20),
        row("c", 55.0, 20),
        row("d", 60.0, 30),
        row("e", 70.0, 40),
    ]
    assert [r["model"] for r in front(rows, "weights_mb", "f1")] == ["a", "b", "e"]
    assert [r["model"] for r in front(rows[::-1], "weights_mb", "f1")] == ["a", "b", "e"]
    assert front([row("a", 50.0, 10), row("b", 50.0, 10)], "weights_mb", "f1") == [row("a", 50.0, 10)]


def test_a_point_has_both_figures():
    table = Table("T", named(["model", "f1"]), [row("a", 50.0, None), row("b", None, 3), row("c", 50.0, 3)])
    assert [r["model"] for r in points(table, "weights_mb", "f1")] == ["c"]


COST = Cost(
    baseline="bert-s1 (0123)",
    engine="torch",
    precision="fp32",
    processor="made up",
    threads=1,
    questions=5,
    repeats=3,
    latency_ms=20.0,
    latency_ratio=1.0,
    memory_mb=100.0,
    memory_ratio=1.0,
    measured="2026-01-01T00:00:00+00:00",
)


def test_a_figure_of_records_has_a_point_for_each_and_the_same_bytes(make_record, tmp_path):
    folder = tmp_path / "experiment"
    whole = replace(make_record("bert"), weights_bytes=90_000_000, cost=COST)
    half = replace(COST, latency_ratio=0.5, memory_ratio=0.6)
    small = replace(make_record("bert-int8"), weights_bytes=58_000_000, cost=half)
    graph = replace(
        small, model="bert", cost=replace(COST, engine="onnx", precision="int8", latency_ratio=0.4)
    )
    assert pareto_plot(folder, "pareto", "T") == ()
    write_record(folder / "records" / "torch" / "a", make_record("bert"))
    assert pareto_plot(folder, "pareto", "T") == ()
    for name, record in (("a", whole), ("b", small), ("c", graph)):
        write_record(folder / "records" / "torch" / name, record)
    svg, png = pareto_plot(folder, "pareto", "The figure")
    text = svg.read_text(encoding="utf-8")
    assert png.is_file()
    for words in (
        "The figure",
        "bert-int8",
        "bert, ONNX int8",
        "× latency",
        "MB on disk",
        "in turn with it",
    ):
        assert words in text, words
    before = svg.read_bytes()
    pareto_plot(folder, "pareto", "The figure")
    assert svg.read_bytes() == before

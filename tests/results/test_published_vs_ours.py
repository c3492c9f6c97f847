"""A published table with our runs beside it."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from qa_arch.records import SplitFacts, read_record, write_record
from qa_arch.results.tables import markdown

SCRIPT = run_path(str(Path(__file__).parents[2] / "experiments/table_2_3/tables.py"))
PublishedRow, published_vs_ours, size_curves, by_size, SizePoint, SizeScores = (
    SCRIPT[name]
    for name in ("PublishedRow", "published_vs_ours", "size_curves", "by_size", "SizePoint", "SizeScores")
)

ROWS = [
    PublishedRow("Boundary", 61.1, 71.2, 882_452, 150, records="b", command="qa-arch train model=b"),
    PublishedRow("Sequence", 54.4, records="s", command="qa-arch train model=s"),
    PublishedRow("DCR", 62.5, note="published only"),
]


def made(folder, **options):
    return published_vs_ours(folder, "T", ROWS, notes=["ours are small"], **options)


def test_a_row_shows_the_mean_of_its_runs(tmp_path, make_record):
    for name, exact, epochs in (("b/one", 20.0, 3), ("b/two", 30.0, 5)):
        record = make_record("boundary", exact, epochs=[{"epoch": n} for n in range(epochs)])
        record.data["train"] = SplitFacts(questions=100)
        record.config["glove"] = {"use": True, "path": "$QA_ARCH_DATA/glove/glove.6B.50d.txt"}
        write_record(tmp_path / "records" / name, record)
    table = made(tmp_path)
    first, second, third = table.rows
    assert (first["exact"], first["our_exact"], first["runs"]) == (61.1, 25.0, 2)
    assert (first["train_questions"], first["epochs"], first["vectors"]) == (100, 4, "glove.6B.50d")
    assert (second["our_exact"], second.get("our_f1")) == ("to be run", None)
    assert third["our_exact"] is None
    assert "Sequence, to be run: `qa-arch train model=s`" in table.notes
    assert not any("Boundary, to be run" in note for note in table.notes)
    assert "DCR: published only" in table.notes
    lines = markdown(table).splitlines()
    assert lines[4].startswith("| Boundary | 150 | 882,452 | 61.1 | 71.2 | 25.0 |")


def test_scores_on_the_training_questions_stand_beside_dev(tmp_path, make_record):
    for name, exact, own in (("b/one", 20.0, 50.0), ("b/two", 30.0, 70.0), ("b/three", 25.0, None)):
        record = make_record("boundary", exact, protocol="1.1")
        record.data["train"] = SplitFacts(questions=100)
        if own is not None:
            record.scores["train"] = make_record("boundary", own, protocol="1.1").scores["dev"]
        write_record(tmp_path / "records" / name, record)
    table = made(tmp_path)
    assert [row.get("train_exact") for row in table.rows] == [60.0, None, None]
    assert "EM, its training questions" in markdown(table)
    runs = [(path.parent, read_record(path.parent)) for path in tmp_path.rglob("run.json")]
    assert by_size(runs, "dev") == [SizeScores(100, 25.0, 30.0, train_exact=60.0)]
    more = make_record("boundary", 40.0, protocol="1.1")
    more.data["train"] = SplitFacts(questions=400)
    write_record(tmp_path / "records" / "s" / "one", more)
    assert (
        "<!-- EM, its training questions -->"
        in size_curves(tmp_path, "sizes", "More", ["b", "s"])[0].read_text()
    )

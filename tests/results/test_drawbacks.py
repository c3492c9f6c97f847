"""What models cost and where they fail, in a table of another experiment's runs."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

drawbacks_table = run_path(str(Path(__file__).parents[2] / "experiments/drawbacks/tables.py"))[
    "drawbacks_table"
]

ROWS = {
    "exact": [1, 0, 0, 0, 1, 0],
    "f1": [1, 0.5, 0, 0, 1, 0],
    "abstained": [False, False, False, True, True, False],
    "span_exact": [1, 0, 0, 1, 0, 0],
}
"""Of the three answerable questions one boundary error and one abstention; two of three undue answers."""


def experiment(folder):
    """An experiment whose records are the runs below ``folder``."""
    records = folder.parent / "experiment" / "records"
    records.parent.mkdir(exist_ok=True)
    if not records.exists():
        records.symlink_to(folder)
    return records.parent


def drawbacks(folder, records="**") -> list:
    """The rows of a table of the runs below ``folder``."""
    return list(drawbacks_table(experiment(folder), "T", records=records).rows)


def times(n: int) -> dict:
    return {name: values * n for name, values in ROWS.items()}


def epochs(*seconds):
    return [{"epoch": n, "train_seconds": value} for n, value in enumerate(seconds)]


def test_a_row_is_the_mean_over_seeds_and_its_failures_those_of_all_questions(make_run, question_set):
    questions = question_set(again=10)
    about = {"name": "made-up", "fingerprint": questions.fingerprint, "protocol": "2.0", "questions": 60}
    data = {
        "train": {"fingerprint": "t", "questions": 900, "truncated_questions": 3},
        "dev": about | {"unanswerable": 30, "windows": 75, "truncated_questions": 1},
    }
    for seed, memory, seconds in ((1, 100.0, (10, 30)), (2, 300.0, (40,))):
        folder = make_run(
            f"bert-{seed}",
            questions,
            seed=seed,
            rows=times(10),
            data=data,
            epochs=epochs(*seconds),
            peak_memory_mb=memory,
        )
    (row,) = drawbacks(folder.parent)
    assert (row["model"], row["runs"], row["parameters"]) == ("bert", 2, 1_234_567)
    assert (row["peak_memory_mb"], row["epoch_seconds"]) == (200, 30)
    assert (row["cut"], row["extra"]) == (4, 25)
    assert row["boundary"] == row["not_answered"] == pytest.approx(100 / 3)
    assert row["undue"] == pytest.approx(200 / 3)
    # entity_swap: 10 of 10 undue; answerable: 10 of 30 right; negation: 10 of 20.
    assert row["worst"] == "entity_swap 0.0, answerable 33.3"


def test_kinds_of_few_questions_are_not_named_and_untagged_data_has_two(make_run, question_set):
    tagged = make_run("a", question_set(again=5), rows=times(5))
    (row,) = drawbacks(tagged.parent, tagged.name)
    assert row["worst"] == ""  # 15 answerable, 10 negations, 5 entity swaps: all below 20
    plain = make_run("b", question_set(again=10), rows=times(10) | {"kind": [None] * 60})
    (row,) = drawbacks(plain.parent, plain.name)
    assert row["worst"] == "answerable 33.3, unanswerable 33.3"
    words = {"kind": [None] * 60, "word": ["who", "who", "when", "when", "why", "why"] * 10}
    asked = make_run("c", question_set(again=10), rows=times(10) | words)
    (row,) = drawbacks(asked.parent, asked.name)
    # who: exact 1 of 2, when: 0 of 2, one of them unanswered, why: 1 of 2, each ten times.
    assert row["worst"].startswith("when ")
    assert "unanswerable" not in row["worst"]

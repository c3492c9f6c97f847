"""Tables of answer selection: own columns and note, separate from spans."""

import json
from pathlib import Path

import pytest

from qa_arch.errors import RunError
from qa_arch.records import parse_record
from qa_arch.results.columns import runs_table
from qa_arch.results.experiments import experiment_tables
from qa_arch.results.tables import markdown
from tests.results.conftest import flat_record, nested, script


@pytest.fixture
def make_selection():
    def make(model="qa_lstm_a", accuracy=40.0, **changes):
        point = {"accuracy": accuracy, "mrr": accuracy + 20, "questions": 50}
        point |= {"protocol": "selection", "metric_version": "selection-1"}
        split_facts = {"name": "dev", "fingerprint": "s1", "protocol": "selection", "questions": 50}
        fields = {
            "scores": {"dev": {"ranked": point}},
            "data": {"train": {"fingerprint": "t"}, "dev": split_facts | {"candidates": 4.25}},
            "references": {"dev": {"word-overlap": point | {"accuracy": 80.0}}},
            "threshold": None,
        }
        return parse_record(nested(flat_record(model) | fields | changes))

    return make


def test_selection_rows_columns_and_note(make_selection, make_record):
    failed = make_selection("qa_lstm_i", status="oom", scores={}, references={})
    table = runs_table([(Path("a"), make_selection()), (Path("i"), failed)])
    assert [column.key for column in table.columns] == ["model", "accuracy", "mrr", "parameters", "seconds"]
    overlap, run, _ = table.rows
    assert (overlap["model"], overlap["accuracy"]) == ("word-overlap", 80.0)
    assert (run["accuracy"], run["mrr"], run["seconds"]) == (40.0, 60.0, 61.25)
    assert "50 questions, 4.2 candidates each" in table.notes[0]
    assert not any("null threshold" in note for note in table.notes)
    assert "| qa_lstm_i | OOM | – |" in markdown(table)
    with pytest.raises(RunError, match="are not comparable"):
        runs_table([(Path("a"), make_selection()), (Path("b"), make_record())])


def test_sets_table_of_selection_counts(tmp_path):
    sets = '[DataSet("one", "one.json"), DataSet("two", "two.json", source="x:two")]'
    call = f'sets_table(folder, "Sets", {sets}, columns=["questions", "answers"])'
    script(tmp_path, call)
    (tmp_path / "records").mkdir()
    counts = {"questions": 3, "answers": 4, "question_words": 9}
    (tmp_path / "records" / "one.json").write_text(json.dumps(counts))
    (table,) = experiment_tables(tmp_path)
    assert [dict(row) for row in table.rows] == [
        {"set": "one", "questions": 3, "answers": 4},
        {"set": "two", "questions": None, "answers": None},
    ]
    assert "qa-arch stats --data x:two --json" in table.notes[0]

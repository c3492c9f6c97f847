"""Reading records back: whole, or an error that says what to do."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from qa_arch.errors import RunError
from qa_arch.results.openings import OPENINGS, Opening, append_opening, opened_note, read_openings
from qa_arch.results.record import RECORD, find_records, read_questions, read_record, write_questions

OPENING = Opening(
    date="2026-01-02T03:04:05", commit="abcdef012", config_hash="9" * 64, run="r", data="d", fingerprint="f"
)


def test_round_trip(make_record, tmp_path):
    record = make_record()
    assert record.write(tmp_path) == tmp_path / RECORD
    assert read_record(tmp_path) == read_record(tmp_path / RECORD) == record


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2"),
        ({"colour": "red"}, "colour"),
        ({"status": "fine"}, "'fine'"),
    ],
)
def test_records_that_cannot_be_used(make_record, tmp_path, change, said):
    (tmp_path / RECORD).write_text(json.dumps(asdict(make_record()) | change))
    with pytest.raises(RunError, match=said):
        read_record(tmp_path)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"schema": 1}', "\xff"])
def test_files_that_are_no_records(tmp_path, text):
    if text is not None:
        (tmp_path / RECORD).write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=RECORD):
        read_record(tmp_path)


def test_find_records(make_record, tmp_path):
    for name in ("b", "a/deep", "a"):
        make_record(name).write(tmp_path / name)
    found = find_records([tmp_path, tmp_path / "a"])
    assert [record.model for _, record in found] == ["a/deep", "a", "b"]
    with pytest.raises(RunError, match="nowhere"):
        find_records([tmp_path / "nowhere"])


def test_questions(tmp_path):
    columns = {"id": ["q1", "q2"], "f1": [0.5, 1.0], "kind": ["negation", None], "start": [3, -1]}
    write_questions(tmp_path, columns)
    assert read_questions(tmp_path) == columns
    with pytest.raises(RunError, match="did not finish"):
        read_questions(tmp_path / "none")


def test_what_other_experiments_saw_of_the_set_is_told(tmp_path):
    """A set is worn out by every look at it, whoever looked."""
    other = replace(OPENING, fingerprint="another set")
    for name, opening in (("here", OPENING), ("there", OPENING), ("there", OPENING), ("there", other)):
        append_opening(tmp_path / name, opening)
    append_opening(tmp_path / "third", other)
    note = opened_note(tmp_path / "here", {OPENING.fingerprint})
    assert note is not None
    assert note.startswith("dev was opened once: ")
    assert note.endswith("; the same set was opened 2 times for there")
    assert opened_note(tmp_path / "third", {OPENING.fingerprint}) is None


def test_openings_only_grow(tmp_path):
    folder = tmp_path / "trial"
    assert read_openings(folder) == ()
    for _ in range(2):
        append_opening(folder, OPENING)
    assert read_openings(folder) == (OPENING, OPENING)
    assert len((folder / OPENINGS).read_text().splitlines()) == 2
    note = opened_note(folder, {OPENING.fingerprint})
    assert note is not None
    assert "2 times" in note
    assert "r on 2026-01-02 (commit abcdef0, config 99999999)" in note
    with (folder / OPENINGS).open("a") as file:
        file.write('{"date": 1}\n')
    with pytest.raises(RunError, match="line 3"):
        read_openings(folder)

"""Reading records back: in full, or an error that names the remedy."""

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from broken_records import changed

from qa_arch.errors import RunError
from qa_arch.files import LOCK, hold
from qa_arch.provenance import (
    DEV_ACCESS_LOG,
    DevAccess,
    dev_access_note,
    log_dev_access,
    read_dev_accesses,
)
from qa_arch.records import (
    RECORD,
    RECORDS,
    find_runs,
    parse_record,
    read_questions,
    read_record,
    recorded,
    write_questions,
    write_record,
)
from qa_arch.results.columns import runs_table
from qa_arch.results.errors import summarise

ACCESS = DevAccess(
    date="2026-01-02T03:04:05", commit="abcdef012", config_hash="9" * 64, run="r", data="d", fingerprint="f"
)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"schema": 1}', "\xff"])
def test_files_that_are_not_records_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / RECORD).write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=RECORD):
        read_record(tmp_path)


def test_damaged_record_is_read_or_refused_by_file_and_field(tmp_path):
    """Whatever value a field has, reading gives a record that can be shown, or a one-line error."""
    (path,) = Path("experiments/synthetic/records").glob("bert-*/run.json")
    raw = shortened(json.loads(path.read_text()))
    refused = []
    for keys in key_paths(raw):
        for value in (None, "x", [[]]):
            try:
                record = parse_record(changed(raw, keys, value), "a/run.json")
            except RunError as error:
                refused.append(str(error))
            else:
                if keys[0] != "config":
                    summarise(tmp_path, record)
                    runs_table([(tmp_path, record)])
    assert len(refused) > 180
    assert all(line.startswith("a/run.json: ") and "\n" not in line for line in refused)


def shortened(value):
    """``value`` with at most two items per list, and two per mapping of many numbers."""
    if isinstance(value, dict):
        many = len(value) > 9 and all(isinstance(item, int | float) for item in value.values())
        return {key: shortened(item) for key, item in list(value.items())[: 2 if many else None]}
    return [shortened(item) for item in value[:2]] if isinstance(value, list) else value


def key_paths(value, prefix=()):
    """Key path of every value in nested mappings and lists; of ``config`` only the sections."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*prefix, key)
        if prefix != ("config",):
            yield from key_paths(item, (*prefix, key))


def test_records_inside_a_run_folder_are_skipped(make_record, tmp_path):
    """A model folder holds the record of the classifier it uses, an experiment may be called ``model``, and
    a glob also matches other files."""
    names = ("x/a", "x/a/model/types", "x/.b.1234.unfinished", "x/model/c", "x/model/c/model/types")
    for name in names:
        write_record(tmp_path / RECORDS / name, make_record(name))
    runs = ["x/a", "x/model/c"]
    assert [record.model for _, record in find_runs([tmp_path])] == runs
    assert [record.model for _, record in recorded(tmp_path, "x")] == runs
    (tmp_path / RECORDS / "x" / "table.json").write_text("{}")  # as ``train --models`` leaves it
    assert [record.model for _, record in find_runs([f"{tmp_path}/{RECORDS}/x/*"])] == runs
    types = tmp_path / RECORDS / "x" / "a" / "model" / "types"
    assert [record.model for _, record in find_runs([types])] == ["x/a/model/types"]


def test_runs_that_cannot_be_reached_are_named(make_record, tmp_path, monkeypatch):
    """Without them a table would be another one. Folders without runs of their own do not matter."""
    for name in ("a", "closed", "lost"):
        write_record(tmp_path / name, make_record(name))
    (tmp_path / "a" / "model").mkdir()
    (tmp_path / "lost" / RECORD).rename(tmp_path / "record")
    (tmp_path / "lost" / RECORD).symlink_to(tmp_path / "gone")
    unreadable, scan = (tmp_path / "closed", tmp_path / "a" / "model"), os.scandir

    def refuse(path):
        if Path(path) in unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    problems = []
    assert [record.model for _, record in find_runs([tmp_path], unreadable=problems)] == ["a"]
    assert [problem.partition(": ")[0] for problem in problems] == [
        str(tmp_path / "closed"),
        str(tmp_path / "lost" / RECORD),
    ]
    with pytest.raises(RunError, match=f"{tmp_path}/closed: cannot be read .Permission denied.*; .*lost"):
        find_runs([tmp_path])


def test_question_rows_round_trip(tmp_path):
    columns = {"id": ["q1", "q2"], "f1": [0.5, 1.0], "kind": ["negation", None], "start": [3, -1]}
    columns |= {"null_odds": [0.1, math.inf], "abstained": [True, False], "confidence": [0.1, math.nan]}
    write_questions(tmp_path, columns)
    rows = read_questions(tmp_path)
    assert rows.pop("confidence") == pytest.approx(columns.pop("confidence"), rel=1e-6, nan_ok=True)
    assert rows == columns
    with pytest.raises(RunError, match="did not finish"):
        read_questions(tmp_path / "none")


def test_dev_access_note_counts_other_experiments(tmp_path):
    """Every evaluation on a set wears it out, whichever experiment ran it."""
    other = replace(ACCESS, fingerprint="another set")
    for name, access in (("here", ACCESS), ("there", ACCESS), ("there", ACCESS), ("there", other)):
        log_dev_access(tmp_path / name, access)
    log_dev_access(tmp_path / "third", other)
    note = dev_access_note(tmp_path / "here", {ACCESS.fingerprint})
    assert note is not None
    assert note.startswith("dev was scored once: ")
    assert note.endswith("; the same set was scored 2 times for there")
    assert dev_access_note(tmp_path / "third", {ACCESS.fingerprint}) is None


def test_dev_accesses_are_appended(tmp_path):
    folder = tmp_path / "trial"
    assert read_dev_accesses(folder) == ()
    for _ in range(2):
        log_dev_access(folder, ACCESS)
    assert read_dev_accesses(folder) == (ACCESS, ACCESS)
    assert len((folder / DEV_ACCESS_LOG).read_text().splitlines()) == 2
    note = dev_access_note(folder, {ACCESS.fingerprint})
    assert note is not None
    assert "2 times" in note
    assert "r on 2026-01-02 (commit abcdef0, config 99999999)" in note
    with (folder / DEV_ACCESS_LOG).open("a") as file:
        file.write('{"date": 1}\n')
    with pytest.raises(RunError, match="line 3"):
        read_dev_accesses(folder)


def test_running_record_with_a_free_lock_is_killed(make_record, tmp_path):
    """Killed: the lock exists but is not held. A live run holds it, and a copied record has none."""
    write_record(tmp_path, replace(make_record(), status="running"))
    assert read_record(tmp_path).status == "running"
    with hold(tmp_path, "run"):
        assert read_record(tmp_path).status == "running"
    (tmp_path / LOCK).write_text("process 1 on elsewhere")
    assert read_record(tmp_path).status == "killed"

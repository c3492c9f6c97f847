"""Records and question rows: read back in full, published without local paths, and refused by file, fault and
remedy if they are unusable."""

import errno
import json
import math
import os
import random
from dataclasses import replace
from datetime import datetime
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken_records import changed

from qa_arch import records
from qa_arch.errors import RunError
from qa_arch.files import LOCK, hold, write_json
from qa_arch.records import (
    QUESTIONS,
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
from qa_arch.results.notebooks import Run
from qa_arch.results.publish import local, publish
from qa_arch.results.systems import question_columns


def test_damaged_record_is_read_or_refused_by_file_and_field(tmp_path, qa_arch):
    """Whatever value a field has, reading gives a record that can be shown, or a one-line error."""
    (path,) = Path("experiments/synthetic/records").glob("bert-*/run.json")
    raw = shortened(json.loads(path.read_text()))
    refused = []
    for keys in key_paths(raw):
        for value in (None, "x", [[]]):
            try:
                record = parse_record(damaged := changed(raw, keys, value), "a/run.json")
            except RunError as error:
                refused.append(str(error))
            else:
                if keys[0] != "config":
                    (tmp_path / RECORD).write_text(json.dumps(damaged))
                    assert qa_arch("show", tmp_path)[0] == 0, (keys, value)
                    runs_table([(tmp_path, record)])
    assert len(refused) > 180
    assert all(line.startswith("a/run.json: ") and "\n" not in line for line in refused)
    for name, text in (("list", "[]"), ("schema", '{"schema": 1}'), ("latin", "\xff"), ("none", None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / RECORD).write_bytes(text.encode("latin-1"))
        with pytest.raises(RunError, match=RECORD):
            read_record(tmp_path / name)
    _, _, err = qa_arch("tables", tmp_path)
    assert [f"{tmp_path}/{name}/" in err for name in ("list", "schema", "latin")] == [True] * 3, "all at once"


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


def test_running_record_with_a_free_lock_is_killed(make_record, tmp_path):
    """Killed: the lock exists but is not held. A live run holds it, and a copied record has none."""
    write_record(tmp_path, replace(make_record(), status="running"))
    assert read_record(tmp_path).status == "running"
    with hold(tmp_path, "run"):
        assert read_record(tmp_path).status == "running"
    (tmp_path / LOCK).write_text("process 1 on elsewhere")
    assert read_record(tmp_path).status == "killed"


@pytest.fixture
def run(tmp_path, make_record, monkeypatch):
    """A finished run whose config names files in the data folder and the working folder, and a hub set."""
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    config = {
        "name": "trial",
        "data": {
            "train": [str(tmp_path / "data" / "squad" / "train.json")],
            "dev": "hub:rajpurkar/squad_v2:train",
        },
        "features": {"cache_dir": str(tmp_path / ".cache")},
    }
    folder = tmp_path / "runs" / "bert-s13-c0ffee00"
    write_record(folder, make_record(config=config, scores={"calibration": {}, "dev": {}}))
    write_questions(folder, {"id": ["q1"], "f1": [0.5]})
    write_questions(folder / "sets" / "calibration", {"id": ["q2"], "f1": [0.0]})
    write_questions(folder / "sets" / "never-recorded", {"id": ["q3"], "f1": [0.0]})
    (folder / "predictions.json").write_text("{}")
    return folder


def test_publish_copies_record_and_rows_with_portable_paths(run, tmp_path) -> None:
    error = f"DataError: {tmp_path}/runs/x.json and /mnt/alice/disk/b.json are gone"
    write_record(run, replace(read_record(run), error=error))
    target = publish(run, tmp_path / "records")
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert files == [QUESTIONS, RECORD, f"sets/calibration/{QUESTIONS}"]
    assert str(tmp_path) not in (target / RECORD).read_text()
    config = read_record(target).config
    paths = {"train": ["$QA_ARCH_DATA/squad/train.json"], "dev": "hub:rajpurkar/squad_v2:train"}
    assert (config["data"], config["features"]["cache_dir"]) == (paths, "./.cache")
    before, after = (json.loads((folder / RECORD).read_text()) for folder in (run, target))
    assert {**before, "config": None, "error": None} == {**after, "config": None, "error": None}
    again = publish(target, tmp_path / "again")
    assert read_record(again).error == "DataError: runs/x.json and …/disk/b.json are gone"


def test_local_inverts_portable_paths(run, tmp_path, monkeypatch) -> None:
    config = {**read_record(run).config, "types": f"types:{tmp_path}/data/t.json"}
    write_record(run, replace(read_record(run), config=config))
    published = read_record(publish(run, tmp_path / "records")).config
    assert local(published) == {**config, "features": {"cache_dir": "./.cache"}}
    monkeypatch.delenv("QA_ARCH_DATA")
    assert local(published)["data"]["train"] == ["data/squad/train.json"]


def test_other_paths_are_refused_by_config_key(run, tmp_path, make_record) -> None:
    write_record(run, make_record(config={"glove": {"path": "/somewhere/glove.txt"}}))
    with pytest.raises(RunError, match=r"config\.glove\.path: /somewhere/glove\.txt .* set QA_ARCH_DATA"):
        publish(run, tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_publish_refuses_to_replace_another_run(run, tmp_path) -> None:
    """A rescored run replaces its copy; a copy has neither weights nor predictions."""
    target = publish(run, tmp_path / "records")
    own, before = read_record(run), (target / RECORD).read_bytes()
    for change in ({"run_hash": "e" * 64}, {"created": "2031-01-01T00:00:00+00:00"}):
        write_record(run, replace(own, **change))
        with pytest.raises(RunError, match=rf"{target}: holds another run \(.*\) than {run} .* remove"):
            publish(run, tmp_path / "records")
        assert (target / RECORD).read_bytes() == before
    write_record(run, replace(own, scores={"dev": {}}))
    assert publish(run, tmp_path / "records") == target
    assert read_record(target).scores == {"dev": {}}
    assert sorted(path.name for path in target.iterdir()) == [QUESTIONS, RECORD]
    with pytest.raises(RunError, match=r"holds predictions\.json, which is not part of a published copy"):
        publish(run, run.parent)
    assert (run / "predictions.json").is_file()


COMMANDS = {
    "show": ["show", "{bad}"],
    "compare": ["compare", "{good}", "{bad}"],
    "baseline": ["compare", "{runs}", "--baseline", "bert"],
    "tables": ["tables", "{runs}"],
    "publish": ["tables", "{runs}", "--publish", "{runs}/../out"],
}


@pytest.fixture
def runs(make_run, question_set):
    """Folder with a good run and one for the test to damage."""
    good = make_run("good", question_set(), seed=1)
    make_run("worse", question_set(), model="albert", seed=1)
    return good.parent


@pytest.fixture
def call(runs, qa_arch):
    names = {"good": runs / "good", "bad": runs / "worse", "runs": runs}
    return lambda command: qa_arch(*(word.format(**names) for word in COMMANDS[command]))


def with_field(*path, value):
    return lambda record: json.dumps(changed(json.loads(record), path, value))


DEEP = "[" * 100_000 + "]" * 100_000
DAMAGE = {
    "nested beyond the recursion limit": (
        lambda record: record.replace('"config": {', f'"config": {{"deep": {DEEP}, '),
        "cannot be read (maximum recursion depth exceeded",
    ),
    "with a number of 400 digits": (
        with_field("seed", value=10**400),
        "cannot be read (int too large to convert to float)",
    ),
    "with a lone surrogate as model": (with_field("model", value="\ud800"), "surrogates not allowed"),
    "with a model on two lines": (
        with_field("model", value="a\nb\x1b[31m"),
        r"model: 'a\nb\x1b[31m' must be one line without control characters",
    ),
    "with a split outside the run folder": (
        with_field("scores", "../../../esc", value={}),
        "'../../../esc' cannot be the name of a folder",
    ),
    "with rows outside the run folder": (
        with_field("rows", "../../../esc", value="0"),
        "'../../../esc' cannot be the name of a folder",
    ),
    "of an experiment outside the checkout": (
        with_field("name", value="trial/../../esc"),
        "'trial/../../esc' cannot be the name",
    ),
    "with a config of an experiment outside the checkout": (
        with_field("config", "name", value="../esc"),
        "config.name: '../esc' cannot be the name",
    ),
    "with a threshold that is no number": (
        with_field("threshold", value={"value": math.nan, "fitted_on": "calibration"}),
        "threshold.value: expected a number, got nan",
    ),
    "with a threshold smoothed over nothing": (
        with_field("threshold", value={"value": 0, "fitted_on": "calibration", "width": 0}),
        "threshold.width: 0.0 is out of range, it must be >= 0.01 and <= 100",
    ),
    "with a prior that is no share": (
        with_field("threshold", value={"value": 0, "fitted_on": "calibration", "prior": 7}),
        "threshold.prior: 7.0 is out of range, it must be >= 0 and <= 1",
    ),
    "of an earlier schema": (
        with_field("schema", value=2),
        "record of schema 2, this version reads 4; migrate it: python experiments/migrate_records.py ",
    ),
    "with the weights of an epoch that it lacks": (
        with_field("best_epoch", value=9),
        "best_epoch: 9 is none of the 2 epochs",
    ),
    "half written": (lambda record: record[: len(record) // 2], "cannot be read"),
    "with an unknown field": (with_field("surprise", value=1), "surprise"),
}


@pytest.mark.parametrize(("damage", "command"), list(zip(DAMAGE, cycle(COMMANDS))))
def test_unreadable_record_is_refused_by_name_but_skipped_by_report(
    runs, call, qa_arch, tmp_path, damage, command
):
    change, message = DAMAGE[damage]
    path = runs / "worse" / RECORD
    path.write_text(change(path.read_text()))
    code, out, err = call(command)
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert err.startswith(f"qa-arch: {path}: ")
    assert message in err
    if damage == "with a split outside the run folder":
        code, out, err = qa_arch("report", runs, "--out", tmp_path / "report.html")
        assert code == 0
        assert f"not used: {path}: " in err
        assert ": 1 run," in out


def test_damaged_or_missing_question_rows_are_refused(runs, call, make_record):
    path = runs / "worse" / QUESTIONS

    def refusal(command):
        code, out, err = call(command)
        assert (code, out) == (5, "")
        return err

    content = path.read_bytes()
    path.write_bytes(content[:100])
    err = refusal("compare")
    assert f"{path}: not readable" in err
    assert "score the run again" in err
    path.unlink()
    err = refusal("baseline")
    assert f"{path}: missing" in err
    assert f"qa-arch evaluate --run {path.parent}" in err
    with pytest.raises(RunError, match="qa-arch evaluate --run 'a run' --data FILE"):
        question_columns(Path("a run"), make_record())
    path.write_bytes(content)
    record = json.loads((path.parent / RECORD).read_text())
    for change in ({"fingerprint": "other"}, {"protocol": "1.1"}):
        write_json(path.parent / RECORD, changed(record, ("data", "dev"), record["data"]["dev"] | change))
        for command in ("compare", "baseline"):
            err = refusal(command)
            assert [part in err for part in ("are not comparable", "/good", "/worse")] == [True] * 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("id", ["a"], "id is list<"),
        ("id", 7, "id is int64"),
        ("start", "x", "(a column has the wrong type: start is string)"),
        ("f1", 2.0, "f1 is not between 0 and 1"),
        ("exact", math.nan, "exact is not between 0 and 1"),
        ("answerable", "no", "answerable is string"),
        ("abstained", None, "abstained is null"),
        ("other", [1], "other is list<"),
    ],
)
def test_values_of_another_type_in_question_rows_are_refused(runs, call, name, value, message):
    path = runs / "worse" / QUESTIONS
    columns = read_questions(path.parent)
    pq.write_table(pa.table(columns | {name: [value] * len(columns["id"])}), path)
    code, out, err = call("baseline")
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert f"{path}: not readable " in err or "between" in message
    assert message in err


def test_questions_without_an_id_or_not_in_utf8_are_refused(runs, call):
    path = runs / "worse" / QUESTIONS
    columns = read_questions(path.parent)
    write_questions(path.parent, columns | {"id": [None, *columns["id"][1:]]})
    assert "a row has no id" in call("baseline")[2]
    write_questions(path.parent, columns)
    table = pq.read_table(path)
    _, offsets, text = table["id"].combine_chunks().buffers()
    invalid = pa.StringArray.from_buffers(len(table), offsets, pa.py_buffer(b"\xff" * text.size))
    pq.write_table(table.set_column(0, "id", invalid), path)
    code, _, err = call("baseline")
    assert (code, err.count("\n")) == (5, 1)
    assert f"{path}: not readable (" in err


@pytest.mark.parametrize(
    ("ids", "limit", "message"),
    [
        (["1", "2"] * 20, "MOST_VALUES", "80 values"),
        ([f"{n:02d}" for n in range(40)], "MOST_BYTES", "MiB of values"),
    ],
    ids=["listed", "prefixed"],
)
def test_question_rows_that_repeat_a_long_text_are_refused(tmp_path, monkeypatch, ids, limit, message):
    """As an entry of the column's list of texts, or as a prefix of others: the file has it once."""
    write_questions(tmp_path, {"id": [10**5 * "x" + id_ for id_ in ids], "kind": ["answerable"] * 40})
    assert (tmp_path / QUESTIONS).stat().st_size < 2000
    assert len(read_questions(tmp_path)["id"]) == 40
    monkeypatch.setattr(records, limit, 10, raising=False)
    with pytest.raises(RunError, match=rf"not readable \(.*{message}"):
        read_questions(tmp_path)


def test_rows_of_another_scoring_are_refused(runs, call, qa_arch, tmp_path):
    """As a command leaves them that was killed between rows and record."""
    folder = runs / "worse"
    record, columns = read_record(folder), read_questions(folder)
    write_record(folder, replace(record, rows={"dev": write_questions(folder, columns)}))
    assert call("compare")[0] == 0
    write_questions(folder, columns | {"f1": columns["f1"][::-1]})
    for command in COMMANDS:
        code, out, err = call(command)
        assert (code, err.count("\n")) == (5, 1)
        assert out == "" or command == "publish"  # of the runs before it
        assert f"{folder / QUESTIONS}: are not the rows that the scores in {RECORD} belong to; score" in err
        assert f"qa-arch evaluate --run {folder} --data FILE" in err
    with hold(folder, "run"):
        assert "it is being scored again; repeat this" in call("show")[2]
    assert "not used: " in qa_arch("report", runs, "--out", tmp_path / "report.html")[2]
    for read in (lambda: question_columns(folder, read_record(folder)), lambda: Run(folder)):
        with pytest.raises(RunError, match="are not the rows"):
            read()


def test_terminal_escapes_in_a_record_are_not_printed(runs, call, monkeypatch):
    """In model, commit and error, also with the colours that rich draws on a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    path, odd = runs / "worse" / RECORD, "\x1b]0;owned\x07\x1b[2J"
    fields = {"model": f"al{odd}bert", "commit": odd, "status": "failed", "error": f"lost {odd}"}
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    for command in COMMANDS:
        code, out, err = call(command)
        assert code != 70
        assert not [escape for escape in ("\x1b]", "\x1b[2J", "\x07") if escape in out + err]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_damaged_question_rows_are_never_a_bug(runs, call, seed, qa_arch, tmp_path):
    """150 files with changed bytes, or with a column of other values; none ends in exit 70."""
    rng, path = random.Random(seed), runs / "worse" / QUESTIONS
    content, columns = path.read_bytes(), read_questions(path.parent)
    values = (["a"], {"a": 1}, b"\xff", None, math.inf, math.nan, 2**62, -1, "x", True, datetime(2026, 1, 1))
    for number in range(10):
        if number % 2:
            damaged = bytearray(content)
            for _ in range(rng.choice([1, 1, 3, 20])):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(damaged)
        else:
            name, value = rng.choice(list(columns)), rng.choice(values)
            pq.write_table(pa.table(columns | {name: [value] * len(columns["id"])}), path)
        for command in ("show", "compare", "baseline", "tables"):
            assert call(command)[0] in (0, 5)
        assert qa_arch("report", runs, "--out", tmp_path / "report.html")[0] in (0, 5)

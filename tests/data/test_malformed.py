"""Every known fault of a data file, and its error message."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broken_records import REMOVED, changed
from pyarrow import parquet

from qa_arch.data.sources import open_passages
from qa_arch.data.squad import read
from qa_arch.errors import DataError, FaultyRecordError
from qa_arch.types import Gold

CONTEXT = "The old mill stands by the weir. A mill-wheel turns at dawn."
FIRST = {"id": "q1", "question": "What stands by the weir?", "is_impossible": False,
         "answers": [{"text": "The old mill", "answer_start": 0}]}  # fmt: skip
SECOND = {"id": "q2", "question": "Who built it?", "answers": [], "is_impossible": True,
          "plausible_answers": [{"text": "mill", "answer_start": 8}]}  # fmt: skip
ARTICLE = {"title": "Old mill", "paragraphs": [{"context": CONTEXT, "qas": [FIRST, SECOND]}]}
GOOD: dict[str, Any] = {"version": "v2.0", "data": [ARTICLE]}
FLAT: dict[str, Any] = {
    "id": "f1",
    "title": "Old mill",
    "context": CONTEXT,
    "question": "When does it turn?",
    "answers": {"text": ["at dawn"], "answer_start": [52]},
}
PARAGRAPH = ("data", 0, "paragraphs", 0)
Q1, Q2 = (*PARAGRAPH, "qas", 0), (*PARAGRAPH, "qas", 1)
GOLD = (*Q1, "answers", 0)
AT_Q1 = "data[0].paragraphs[0].qas[0], question 'q1', "

# One faulty record in a valid file: (path of the field, its value, parts of the message).
RECORD_CASES = {
    "no_id": ((*Q1, "id"), REMOVED, ["data[0].paragraphs[0].qas[0], id: is missing; add a string"]),
    "duplicate_id": ((*Q2, "id"), "q1", ["question 'q1', id: is a duplicate", "qas[0] of", "its own id"]),
    "half_pair": ((*Q1, "question"), "a \ud83d?", [AT_Q1, "a lone surrogate at character 2"]),
    "text_as_answers": (
        (*Q1, "answers"),
        "mill",
        [AT_Q1, "answers: is a string ('mill'); it must be a list, or {\"text\": [...]"],
    ),
    "empty_answers": ((*Q1, "answers"), [], [AT_Q1, "answers: is empty", "set is_impossible to true"]),
    "bool_as_start": ((*GOLD, "answer_start"), False, ["is a boolean (False)", "an integer"]),
    "several_places": (GOLD, {"text": "mill", "answer_start": 1}, ["at 8 and 35;", "correct answer_start"]),
    "nowhere": (GOLD, {"text": "the mill", "answer_start": 0}, ["'the mill' occurs nowhere", "correct"]),
    "plausible": ((*Q2, "plausible_answers", 0, "answer_start"), 9, ["plausible_answers[0]", "at 8"]),
    "impossible_text": ((*Q1, "is_impossible"), "no", ["is_impossible: is a string", "a boolean"]),
    "half_as_id": ((*Q1, "id"), 2.5, ["id: is a number (2.5); it must be a string: correct it"]),
    "impossible_answered": ((*Q1, "is_impossible"), True, ["is true, but 'The old mill' is given"]),
    "possible_unanswered": ((*Q2, "is_impossible"), False, ["question 'q2', answers: is empty"]),
}
# Faults in what all questions of the file share: skipping leaves no question.
SHARED_CASES = {
    "no_context": ((*PARAGRAPH, "context"), REMOVED, [AT_Q1, "context: is missing"]),
    "no_qas": ((*PARAGRAPH, "qas"), REMOVED, ["data[0].paragraphs[0].qas: is missing", "a list"]),
    "text_as_paragraph": (PARAGRAPH, CONTEXT, ["data[0].paragraphs[0]: is a string", "an object"]),
}
FLAT_CASES = {
    "no_answers": (("answers",), REMOVED, ["record [0], question 'f1', answers: is missing"]),
    "unequal": (("answers", "answer_start"), [52, 53], ["answers: has 1 text and 2 answer_start"]),
    "impossible": (("is_impossible",), True, ["is_impossible: is true, but", "'at dawn'"]),
}
# Faults of a whole file, which cannot be skipped: (name, content, parts).
FILE_CASES = [
    ("empty.json", b"", ["the file is empty"]),
    ("cut_short.json", b'{"data": [\n  {"title": "A"', ["line 2, column 16", "fetch the file again"]),
    ("line.jsonl", json.dumps(FLAT).encode() + b"\n\n{,}\n", ["broken JSON at line 3, column 2"]),
    ("first.jsonl.gz", gzip.compress(b'\n{"id": "a"\n{"id": "b"}\n'), ["broken JSON at line 2, column 11"]),
    ("bottomless.json", b"[" * 100_000, ["broken JSON", "recursion"]),
    ("utf_16.json", json.dumps(GOOD).encode("utf-16"), ["is not UTF-8 text", "iconv"]),
    ("torn.json.gz", b"\x1f\x8b\x08\x00rest", ["cannot be read", "fetch it again"]),
    ("no_data.json", b'{"version": "v2.0", "questions": []}', ["holds {'version': 'v2.0', 'questions': []}"]),
    ("prodigy.jsonl", b'{"text": "A", "question": "?", "_input_hash": 1}', ["a Prodigy export"]),
    ("min.json", b'[{"id": 1, "question": "?", "annotator": 1, "annotation_id": 2}]', ["is a Label Studio"]),
    ("cmrc.json", b'[{"context_id": "D", "context_text": "A", "qas": []}]', ["squad-style-data", "not read"]),
    ("mrqa.jsonl", b'{"context": "A", "context_tokens": [], "qas": []}', ["MRQA file without its first"]),
    ("torn.parquet", b"PAR1", ["torn.parquet: cannot be read (", "write the file again"]),
    ("columns.csv", b"id,question,context,answer\n", ["no column answers, but 'id, ", "columns are"]),
    ("twice.csv", b"id,context,question,answers,,context,\n", ["has several columns context; keep one"]),
    ("semicolon.csv", b"id;question;answers;starts;context\na;Q?;;;Ada; who\n", ["that contain a semicolon"]),
    ("comma.csv", b"id,question,answers,starts,context\na,Q?,,,Ada, who\n", ["line 2: more cells than"]),
    ("short.csv", b"id,question,context,answers\na,Q?,Ada\n", ["line 2: ends before answers; complete"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([b"\xff"]).view(pa.string()), "rows.parquet: cannot be read ('utf-8' codec"),
        (pa.array([b"A mill."]), "context: is of type bytes (b'A mill.'); it must"),
    ],
    ids=["UTF-8", "bytes"],
)
def test_faulty_column_of_parquet_is_refused(tmp_path, column, message):
    table = pa.table({"id": ["a"], "question": ["Q?"], "context": column, "answers": [[]]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError) as caught:
        read(tmp_path / "rows.parquet")
    assert message in str(caught.value)


def assert_refused(source, parts: list[str], on_error: str = "raise", error=DataError) -> None:
    with pytest.raises(error) as caught:
        read(source, on_error=on_error)
    message = str(caught.value)
    assert message.startswith(f"{source}: ")
    assert "\n" not in message
    assert [part for part in parts if part not in message] == [], message


def write_set(folder: Path, content: Any) -> Path:
    path = folder / "set.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("case", [*RECORD_CASES, *FLAT_CASES])
def test_faulty_question_raises_or_is_skipped(tmp_path, case):
    if case in FLAT_CASES:
        path, value, parts = FLAT_CASES[case]
        other = {**FLAT, "id": "f2", "answers": {"text": [], "answer_start": []}}
        file = write_set(tmp_path, [changed(FLAT, path, value), other])
    else:
        path, value, parts = RECORD_CASES[case]
        file = write_set(tmp_path, changed(GOOD, path, value))
    assert_refused(file, parts, error=FaultyRecordError)
    questions = read(file, on_error="skip")
    assert len(questions) == 1
    (problem,) = questions.skipped
    assert [part for part in parts if part not in str(problem)] == []


@pytest.mark.parametrize("case", SHARED_CASES)
def test_faulty_paragraph_or_article_is_refused(tmp_path, case):
    path, value, parts = SHARED_CASES[case]
    file = write_set(tmp_path, changed(GOOD, path, value))
    assert_refused(file, parts)
    with pytest.raises(DataError, match=r"no question is left: all \d records are faulty"):
        read(file, on_error="skip")


@pytest.mark.parametrize(("name", "content", "parts"), FILE_CASES, ids=lambda case: str(case)[:12])
def test_faulty_file_raises_even_when_skipping(tmp_path, name, content, parts):
    file = tmp_path / name
    file.write_bytes(content)
    assert_refused(file, parts)
    assert_refused(file, parts, on_error="skip")


def test_large_file_in_a_tiny_gzip_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("qa_arch.files.MAX_JSON_BYTES", 2**20)
    file, packed = tmp_path / "set.json.gz", gzip.compress(b" " * 2**21 + json.dumps(GOOD).encode())
    file.write_bytes(packed)
    assert_refused(file, ["over 1 MiB and 100 times its size", "fetch it again"])
    monkeypatch.setattr("qa_arch.files.MAX_RATIO", 2000)
    assert len(read(file)) == 2


@pytest.mark.parametrize("start", ["first", "[1e999]", "0.5"])
def test_faulty_row_or_line_is_named_by_its_number(tmp_path, start):
    file = tmp_path / "set.csv"
    rows = ["id,question,context,answers,starts", f"a,Q?,Text,Text,{start}", "b,Q?,A [draft,[draft,2.0"]
    file.write_text("\n".join(rows))
    assert_refused(file, ["line 2, question 'a', answers[0].answer_start: is ", "must be an integer"])
    (example,) = read(file, on_error="skip").examples
    assert example.answers == (Gold("[draft", 2),)
    file = tmp_path / "set.jsonl"
    file.write_text(f"{json.dumps(FLAT)}\n\n[1]\n", encoding="utf-8")
    assert_refused(file, ["line 3: is a list", "it must be an object"])


def test_duplicate_in_another_file_names_both(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for file in (first, second):
        file.write_text(json.dumps(GOOD), encoding="utf-8")
    with pytest.raises(DataError, match=rf"^{second}: .*duplicate: .*qas\[0\] of {first}"):
        read([first, second])
    questions = read([first, second], on_error="skip")
    assert (len(questions), len(questions.skipped)) == (2, 2)


def test_paths_without_data_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, part in (("missing.json", "no such file or folder"), ("*.json", "the pattern matches no file")):
        assert_refused(tmp_path / name, [part])
    assert_refused("~nobody of this name/set.json", ["no such file or folder"])
    assert_refused(tmp_path / "folder", ["holds no file *.json, *.json.gz"])
    flat = {**FLAT, "id": "flat"}
    (tmp_path / "folder/b.jsonl.gz").write_bytes(gzip.compress(json.dumps(flat).encode()))
    cells = b"id,question,context,answers,starts\ncell,Q?,Text,Text,0\n"
    (tmp_path / "folder/a.csv.gz").write_bytes(gzip.compress(cells))
    assert [example.id for example in read(tmp_path / "folder").examples] == ["cell", "flat"]
    write_set(tmp_path, GOOD)
    for blank in ("", " ", ["set.json", ""]):  # not the working folder
        with pytest.raises(DataError, match="has an empty name"):
            read(blank)
    for source in ("hub:", "hub:squad", "hub::train", "hub:@main:train"):
        with pytest.raises(DataError, match="write hub:NAME:SPLIT"):
            open_passages(source)

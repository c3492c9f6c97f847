"""Every way in which a data file is known to go wrong, and the message it must give."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from broken_records import REMOVED, changed

from qa_arch.data.sources import open_passages
from qa_arch.data.squad import read
from qa_arch.errors import DataError

CONTEXT = "The old mill stands by the weir. A mill-wheel turns at dawn."
HUGE = "[" * 100_000

GOOD: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {
            "title": "Old mill",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "q1",
                            "question": "What stands by the weir?",
                            "answers": [{"text": "The old mill", "answer_start": 0}],
                            "is_impossible": False,
                        },
                        {
                            "id": "q2",
                            "question": "Who built it?",
                            "answers": [],
                            "is_impossible": True,
                            "plausible_answers": [{"text": "mill", "answer_start": 8}],
                        },
                    ],
                }
            ],
        }
    ],
}
FLAT: dict[str, Any] = {
    "id": "f1",
    "title": "Old mill",
    "context": CONTEXT,
    "question": "When does it turn?",
    "answers": {"text": ["at dawn"], "answer_start": [52]},
}

ARTICLE = ("data", 0)
PARAGRAPH = (*ARTICLE, "paragraphs", 0)
FIRST = (*PARAGRAPH, "qas", 0)
SECOND = (*PARAGRAPH, "qas", 1)
ID, QUESTION, ANSWERS = (*FIRST, "id"), (*FIRST, "question"), (*FIRST, "answers")
IMPOSSIBLE = (*FIRST, "is_impossible")
GOLD = (*ANSWERS, 0)
TEXT, START = (*GOLD, "text"), (*GOLD, "answer_start")
AT_Q1 = ("article 'Old mill'", "question 'q1'")


def written(folder: Path, content: Any, suffix: str = ".json") -> Path:
    path = folder / f"set{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


# One faulty record in a sound file: (name, path of the field, its value, the message's parts).
RECORD_CASES = [
    ("no_id", ID, REMOVED, ["'Old mill', data[0].paragraphs[0].qas[0], id", "is missing", "add a text"]),
    ("empty_id", ID, "", ["qas[0], id", "is empty", "fill it in"]),
    ("duplicate_id", (*SECOND, "id"), "q1", [*AT_Q1, "duplicate", "qas[0] of", "qas[1]", "its own id"]),
    ("no_question", QUESTION, REMOVED, [*AT_Q1, ", question: is missing"]),
    ("blank_question", QUESTION, " \t\n", [*AT_Q1, r"is empty (' \t\n')"]),
    ("half_pair", QUESTION, "a \ud83d?", [*AT_Q1, "half a surrogate pair", r"'\ud83d'", "character 2"]),
    ("text_as_answers", ANSWERS, "mill", [*AT_Q1, "answers: is a text", "must be a list"]),
    ("empty_answers", ANSWERS, [], [*AT_Q1, "answers: is empty", "set is_impossible to true"]),
    ("text_as_answer", GOLD, "mill", [*AT_Q1, "answers[0]: is a text", "must be an object"]),
    ("number_as_text", TEXT, 1887, [*AT_Q1, "answers[0].text: is a whole number (1887)", "be a text"]),
    ("bool_as_start", START, False, [*AT_Q1, "is true or false (False)", "whole number"]),
    ("negative_start", START, -60, [*AT_Q1, "is -60, outside", "occurs at 0"]),
    ("one_late", START, 1, ["is 1,", "'he old mill '", "'The old mill' occurs at 0;"]),
    ("several_places", GOLD, {"text": "mill", "answer_start": 1}, ["at 8 and 35;", "correct answer_start"]),
    ("nowhere", GOLD, {"text": "the mill", "answer_start": 0}, ["'the mill' occurs nowhere", "correct"]),
    ("third_answer", ANSWERS, [{"text": "mill", "answer_start": start} for start in (8, 35, 34)],
     ["answers[2].answer_start", "has ' mil'", "occurs at 8 and 35"]),
    ("plausible", (*SECOND, "plausible_answers", 0, "answer_start"), 9, ["plausible_answers[0]", "at 8"]),
    ("impossible_text", IMPOSSIBLE, "false", [*AT_Q1, "is_impossible: is a text", "true or false"]),
    ("impossible_answered", IMPOSSIBLE, True, ["is true, but 'The old mill' is given as an answer"]),
    ("possible_unanswered", (*SECOND, "is_impossible"), False, ["question 'q2', answers: is empty"]),
    ("number_as_kind", (*FIRST, "kind"), 3, [*AT_Q1, "kind: is a whole number"]),
]  # fmt: skip

# The same for what several questions share: nothing but the fault is left in the file, so skipping must fail.
SHARED_CASES = [
    ("no_context", (*PARAGRAPH, "context"), REMOVED, [*AT_Q1, "context: is missing"]),
    ("blank_context", (*PARAGRAPH, "context"), "\n\u2003", [*AT_Q1, r"context: is empty ('\n\u2003')"]),
    ("empty_title", (*ARTICLE, "title"), " ", ["question 'q1', title: is empty (' ')"]),
    ("no_qas", (*PARAGRAPH, "qas"), REMOVED, ["'Old mill', data[0].paragraphs[0].qas: is missing", "a list"]),
    ("text_as_paragraph", PARAGRAPH, CONTEXT, ["'Old mill', data[0].paragraphs[0]: is a text", "an object"]),
    ("list_as_article", ARTICLE, [], ["data[0]: is a list", "must be an object"]),
]  # fmt: skip

FLAT_CASES = [
    ("no_answers", ("answers",), REMOVED, ["'f1', answers: is missing"]),
    ("unequal", ("answers", "answer_start"), [52, 53], ["answers: has 1 text and 2 answer_start"]),
    ("text_column", ("answers", "text"), "at dawn", ["answers.text: is a text", "be a list"]),
    ("one_early", ("answers", "answer_start"), [51], ["answers[0].answer_start: is 51", "occurs at 52"]),
    ("impossible", ("is_impossible",), True, ["is_impossible: is true, but", "'at dawn'"]),
]  # fmt: skip

# Faults of a whole file, which nothing can skip: (name, suffix, content, parts).
FILE_CASES = [
    ("empty_file", ".json", b"", ["the file is empty"]),
    ("cut_short", ".json", b'{"data": [\n  {"title": "A"', ["line 2, column 16", "fetch the file again"]),
    ("two_values", ".json", b'{"data": []\n} {}', ["broken JSON at line 2, column 3", "Extra data"]),
    ("broken_line", ".jsonl", json.dumps(FLAT).encode() + b"\n\n{,}\n", ["broken JSON at line 3, column 2"]),
    ("bottomless", ".json", HUGE.encode(), ["cannot be read", "recursion"]),
    ("bottomless_line", ".jsonl", HUGE.encode(), ["line 1 cannot be read"]),
    ("latin_1", ".json", '{"data":\n"caf\u00e9"}'.encode("latin-1"), ["byte 13 (0xe9, line 2)", "iconv"]),
    ("utf_16", ".json", json.dumps(GOOD).encode("utf-16"), ["is UTF-16, not UTF-8", "iconv -f UTF-16"]),
    ("gzip", ".json", b"\x1f\x8b\x08\x00rest", ["is a gzip file", "unpack"]),
    ("number", ".json", 5, ["holds a whole number, not a SQuAD set"]),
    ("no_data", ".json", {"version": "v2.0", "questions": []}, ["an object with 'version', 'questions'"]),
    ("object_data", ".json", {"data": {}}, ["holds an object with 'data', not a SQuAD set"]),
    ("bare_articles", ".json", GOOD["data"], ["holds a list, first an object with", 'expected {"data": ']),
    ("no_questions", ".json", changed(GOOD, (*PARAGRAPH, "qas"), []), ["holds no questions"]),
]  # fmt: skip


def table(cases):
    return [pytest.param(*case[1:], id=case[0]) for case in cases]


def assert_says(message: str, file: Path, parts: list[str]) -> None:
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


@pytest.mark.parametrize(("path", "value", "parts"), table(RECORD_CASES))
def test_a_faulty_question_raises_or_is_left_out(tmp_path, path, value, parts):
    file = written(tmp_path, changed(GOOD, path, value))
    with pytest.raises(DataError) as caught:
        read(file)
    assert_says(str(caught.value), file, [*parts, "on_error=skip"])

    questions = read(file, on_error="skip")
    assert len(questions) == 1
    assert len(questions.skipped) == 1
    assert_says(str(questions.skipped[0]), file, parts)


@pytest.mark.parametrize(("path", "value", "parts"), table(SHARED_CASES))
def test_a_faulty_paragraph_or_article(tmp_path, path, value, parts):
    file = written(tmp_path, changed(GOOD, path, value))
    with pytest.raises(DataError) as caught:
        read(file)
    assert_says(str(caught.value), file, parts)
    with pytest.raises(DataError, match=r"no question is left: all \d records are faulty"):
        read(file, on_error="skip")


@pytest.mark.parametrize(("path", "value", "parts"), table(FLAT_CASES))
def test_a_faulty_flat_record(tmp_path, path, value, parts):
    other = {**FLAT, "id": "f2", "answers": {"text": [], "answer_start": []}}
    file = written(tmp_path, [changed(FLAT, path, value), other])
    with pytest.raises(DataError) as caught:
        read(file)
    assert_says(str(caught.value), file, parts)
    questions = read(file, on_error="skip")
    assert [example.id for example in questions.examples] == ["f2"]
    assert len(questions.skipped) == 1


@pytest.mark.parametrize(("suffix", "content", "parts"), table(FILE_CASES))
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_faulty_file_raises_in_any_case(tmp_path, suffix, content, parts, on_error):
    file = written(tmp_path, content, suffix)
    with pytest.raises(DataError) as caught:
        read(file, on_error=on_error)
    assert_says(str(caught.value), file, parts)


def test_a_faulty_line_is_named_by_its_number(tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text(f"{json.dumps(FLAT)}\n\n[1]\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3: is a list .*; it must be an object"):
        read(file)
    assert len(read(file, on_error="skip")) == 1


def test_a_duplicate_in_another_file_names_both(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for file in (first, second):
        file.write_text(json.dumps(GOOD), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read([first, second])
    assert_says(str(caught.value), second, [*AT_Q1, "duplicate", f"qas[0] of {first}"])
    questions = read([first, second], on_error="skip")
    assert len(questions) == 2
    assert len(questions.skipped) == 2


def test_every_question_of_a_faulty_paragraph_is_counted(tmp_path):
    content = deepcopy(GOOD)
    content["data"].append(changed(GOOD, (*PARAGRAPH, "context"), "")["data"][0])
    content["data"].append(changed(GOOD, ID, "q3")["data"][0])
    questions = read(written(tmp_path, content), on_error="skip")
    assert [example.id for example in questions.examples] == ["q1", "q2", "q3"]
    assert [problem.message.split()[1] for problem in questions.skipped] == ["empty", "empty", "a"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("missing.json", ["no such file or folder", "check the path"]),
        ("*.json", ["the pattern matches no file"]),
        ("folder", ["holds no *.json file"]),
    ],
)
def test_paths_that_name_nothing(tmp_path, name, parts):
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError) as caught:
        read(tmp_path / name)
    assert_says(str(caught.value), tmp_path / name, parts)


@pytest.mark.parametrize("name", ["", " ", ["a.json", ""]])
def test_an_empty_name_is_not_the_working_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(GOOD), encoding="utf-8")
    with pytest.raises(DataError, match="has an empty name"):
        read(name)


@pytest.mark.parametrize("source", ["hub:", "hub:squad", "hub::train", "hub:squad:", "hub:@main:train"])
def test_half_a_hub_name(source):
    with pytest.raises(DataError, match="write hub:NAME:SPLIT"):
        open_passages(source)

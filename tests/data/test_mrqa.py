"""MRQA files: detected answers become verified offsets, and every known fault has its message."""

import gzip
import json
from typing import Any

import pytest
from broken_records import REMOVED, changed

from qa_arch.data.sources import identity, open_passages
from qa_arch.errors import DataError

CONTEXT = "[TLE] Old mill [PAR] The old mill  stands by the weir.\u00a0Café Élan [DOC] The OLD mill."


def tokens(text: str) -> list[list[Any]]:
    """[token, offset] of each whitespace-separated token."""
    offset, result = 0, []
    for word in text.split():
        offset = text.index(word, offset)
        result.append([word, offset])
        offset += len(word)
    return result


def inclusive_span(text: str, start: int = 0) -> list[int]:
    first = CONTEXT.index(text, start)
    return [first, first + len(text) - 1]


MILL = inclusive_span("The old mill")
PASSAGE: dict[str, Any] = {
    "id": "",
    "context": CONTEXT,
    "context_tokens": tokens(CONTEXT),
    "qas": [
        {
            "qid": "q1",
            "question": "What stands by the weir?",
            "question_tokens": tokens("What stands by the weir?"),
            "answers": ["The old mill", "a mill nobody wrote of"],
            "detected_answers": [
                {
                    "text": "The old mill",
                    "char_spans": [MILL, inclusive_span("The OLD mill"), MILL],
                    "token_spans": [[4, 6]],
                },
                {"text": "mill", "char_spans": [inclusive_span("mill")], "token_spans": [[2, 2]]},
            ],
        },
        {
            "qid": "q2",
            "question": "Which café?",
            "detected_answers": [{"text": "Café Élan", "char_spans": [inclusive_span("Café Élan")]}],
        },
    ],
}
HEADER = {"header": {"dataset": "Mills", "split": "train"}}
ANSWER = ("qas", 0, "detected_answers", 0)


@pytest.fixture
def file(tmp_path):
    """``file(*records)`` -> path of an MRQA file of these records, gzipped if the name ends in .gz."""

    def make(*records: Any, name: str = "Mills.jsonl"):
        text = "".join(f"{json.dumps(record)}\n" for record in records)
        data = text.encode("utf-8")
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return make


@pytest.mark.parametrize("name", ["Mills.jsonl", "Mills.jsonl.gz"])
def test_detected_answers_become_offsets(file, tmp_path, name):
    questions = open_passages(f"mrqa:{file(HEADER, PASSAGE, name=name)}")
    assert (questions.name, questions.protocol, len(questions)) == ("Mills", "1.1", 2)
    assert open_passages(str(tmp_path / name)).examples == questions.examples
    first, second = questions.examples
    assert first.context == CONTEXT, "byte for byte"
    assert first.context is second.context
    assert first.id == "q1"
    assert [(gold.text, gold.start) for gold in first.answers] == [
        ("The old mill", MILL[0]),
        ("The OLD mill", CONTEXT.index("The OLD")),
        ("mill", CONTEXT.index("mill")),
    ]
    assert all(CONTEXT[gold.start : gold.end] == gold.text for e in questions.examples for gold in e.answers)


@pytest.mark.parametrize("spans", [REMOVED, [], [[0, 3]], [[-5, -1]], [[0, 10_000]]])
def test_token_spans_replace_unusable_character_spans(file, spans):
    record = changed(PASSAGE, (*ANSWER, "char_spans"), spans)
    (first, _) = open_passages(f"mrqa:{file(HEADER, record)}").examples
    assert (first.answers[0].text, first.answers[0].start) == ("The old mill", MILL[0])


def test_several_files_or_a_folder_are_joined(file, tmp_path):
    file(HEADER, PASSAGE, name="a.jsonl.gz")
    other = {**changed(PASSAGE, ("qas", 0, "id"), "b1"), "context": CONTEXT + " More."}
    other["qas"] = other["qas"][:1]
    del other["qas"][0]["qid"]
    file({"header": {"dataset": "Weirs"}}, other, changed(other, ("qas", 0, "id"), "b2"), name="b.jsonl")
    both = [f"mrqa:{tmp_path}/a.jsonl.gz", f"mrqa:{tmp_path}/b.jsonl"]
    for source in (f"mrqa:{tmp_path}", f"mrqa:{tmp_path}/*.jsonl*", both):
        questions = open_passages(source)
        assert [example.id for example in questions.examples] == ["q1", "q2", "b1", "b2"]
        assert questions.article_numbers == [0, 0, 1, 1], "a passage is an article"
        titles = [title.split()[0] for title in (example.title for example in questions.examples)]
        assert titles == ["Mills", "Mills", "Weirs", "Weirs"]
        assert identity(source) == identity(f"mrqa:{tmp_path}")
    with pytest.raises(DataError, match="an MRQA file cannot be joined"):
        open_passages([f"mrqa:{tmp_path}/a.jsonl.gz", str(tmp_path / "x.json")])


def test_questions_without_answers(file):
    source = str(file(HEADER, changed(PASSAGE, (*ANSWER[:2], "detected_answers"), REMOVED)))
    questions = open_passages(source, use="answering")
    assert [bool(e.answers) for e in questions.examples] == [False, True]
    assert questions.protocol == "1.1"
    with pytest.raises(DataError, match="detected_answers: is missing"):
        open_passages(source, use="scoring")
    negative = {"qid": "q2", "question": "Who?", "detected_answers": [], "is_impossible": "true"}
    questions = open_passages(f"mrqa:{file(HEADER, changed(PASSAGE, ('qas', 1), negative))}")
    assert [example.answerable for example in questions.examples] == [True, False]
    assert questions.protocol == "2.0"


Q1 = "line 2, qas[0], question 'q1', "
CHARACTERS = (*ANSWER, "char_spans")
RECORD_CASES: dict[str, tuple[tuple[Any, ...], Any, list[str]]] = {
    "an empty list": (ANSWER[:3], [], [f"{Q1}detected_answers: is empty", "is_impossible"]),
    "no span has the text": (
        (*ANSWER, "text"),
        "The new mill",
        [f"{Q1}detected_answers[0].char_spans: {MILL} holds 'The old mill'", "'The new mill'", "inclusive"],
    ),
    "no span": (ANSWER, {"text": "mill"}, ["detected_answers[0].char_spans: is missing", "'mill'"]),
    "a span of a wrong shape": (CHARACTERS, [[1, 2, 3]], ["char_spans: is [[1, 2, 3]]; write"]),
    "no tokens to fall back on": (("context_tokens",), "no", ["context_tokens: is a string"]),
    "duplicate id": (("qas", 0, "qid"), "q2", ["question 'q2', id: is a duplicate: line 2, qas[0] of"]),
    "impossible with answers": (("qas", 0, "is_impossible"), True, [f"{Q1}is_impossible: is true, but 'The"]),
    "a question of a wrong type": (("qas", 0), "Who?", ["line 2, qas[0]: is a string ('Who?'); it must"]),
}


@pytest.mark.parametrize("case", RECORD_CASES)
def test_faulty_question_is_named_or_skipped(file, case):
    path, value, parts = RECORD_CASES[case]
    record = changed(PASSAGE, path, value)
    if path == ("context_tokens",):
        record["qas"][0]["detected_answers"][0]["char_spans"] = [[0, 1]]
    source = file(HEADER, record)
    with pytest.raises(DataError) as caught:
        open_passages(f"mrqa:{source}")
    message = str(caught.value)
    assert message.startswith(f"{source}: line 2, ")
    assert [part for part in parts if part not in message] == [], message
    questions = open_passages(f"mrqa:{source}", on_error="skip")
    assert (len(questions), len(questions.skipped)) == (1, 1)


LINES = f"{json.dumps(HEADER)}\n{json.dumps(PASSAGE)}\n".encode()
FILE_CASES: dict[str, tuple[bytes, str]] = {
    "no header": (LINES.partition(b"\n")[2], "line 1: no data set name; the first line"),
    "a header of a wrong type": (b'{"header": "x"}\n', "line 1: no data set name"),
    "a header alone": (LINES.partition(b"\n")[0], "holds no questions"),
    "broken JSON": (LINES + b'{"context": \n', "broken JSON at line 3"),
    "trailing garbage": (gzip.compress(LINES) + b"xxxx", "cannot be read"),
}


@pytest.mark.parametrize("case", FILE_CASES)
def test_faulty_file_raises_even_when_skipping(tmp_path, case):
    content, part = FILE_CASES[case]
    source = tmp_path / "Mills.jsonl.gz"
    source.write_bytes(content)
    for on_error in ("raise", "skip"):
        with pytest.raises(DataError) as caught:
            open_passages(f"mrqa:{source}", on_error=on_error)
        assert str(caught.value).startswith(f"{source}: ")
        assert part in str(caught.value)

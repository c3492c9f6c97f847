"""Lines of questions: what they may hold, what is said of faulty ones, how they are read."""

from __future__ import annotations

import gzip
import io
import json

import pytest
from line_answers import first_words, read_lines, write_lines

from qa_arch.errors import DataError
from qa_arch.serving import json_lines
from qa_arch.serving.json_lines import Part, answer_part, lines, open_input, parts

GOOD = {"question": "Who?", "context": "Odo built it."}


def answer(*texts: object, reading=first_words, **options):
    raw = [(text if isinstance(text, str) else json.dumps(text)).encode() for text in texts]
    part = Part(tuple(enumerate(raw, 1)))
    return answer_part(part, reading, file="big.jsonl", options=options)


def seen(*texts: object, **options):
    """The queries that the model gets."""
    queries = []

    def reading(some):
        queries.extend(some)
        return first_words(some)

    result = answer(*texts, reading=reading, **options)
    assert not result.problems
    return queries


def test_a_line_becomes_a_query_and_its_answer_a_line():
    result = answer({**GOOD, "id": "q7"}, {**GOOD, "meta": {"split": [1]}, "id": 12}, GOOD)
    first, second, third = read_lines(result.content.decode())
    expected = json.loads(json.dumps(first_words(seen(GOOD))[0].as_dict()))
    assert first == {"id": "q7", **expected}
    assert second == {"id": 12, "meta": {"split": [1]}, **expected}
    assert third == {"id": 3, **expected}  # the number of its line
    assert result.lines == 3


def test_documents_and_options():
    line = {"question": "", "documents": ["", "Odo."], "top_k": 3, "null_threshold": -1, "distinct": False}
    query, other = seen(line, {**GOOD, "top_k": None}, top_k=2, max_answer_tokens=4)
    assert query.documents == ("", "Odo.")
    assert (query.top_k, query.max_answer_tokens, query.null_threshold, query.distinct) == (3, 4, -1, False)
    assert (other.top_k, other.max_answer_tokens) == (2, 4)


def test_fields_of_squad_records_are_passed_over():
    assert seen({**GOOD, "title": "Mill", "answers": {"text": [], "answer_start": []}, "is_impossible": True})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: broken JSON at column 2: .*a line is a whole object"),
        ("[1]", "line 1: is a list, not an object"),
        ("7", "line 1: is a number, not an object"),
        ("[" * 100_000, "line 1: the JSON cannot be read"),
        ({"context": "x"}, "line 1: question: is missing"),
        ({"question": "x"}, "line 1: context: is missing.*documents"),
        ({**GOOD, "question": 7}, "line 1: question: text is wanted, not int"),
        ({**GOOD, "context": None}, "line 1: context: text is wanted, not NoneType"),
        ({**GOOD, "documents": ["x"]}, "line 1: documents: stands beside a context"),
        ({"question": "x", "documents": []}, "line 1: documents: .*at least one text"),
        ({"question": "x", "documents": "text"}, "line 1: documents: a list of texts is wanted, not str"),
        ({"question": "x", "documents": ["x", 1]}, r"line 1: documents\[1\]: text is wanted, not int"),
        ({**GOOD, "topk": 1}, "line 1: 'topk': is no field .*did you mean 'top_k'.*meta"),
        ({**GOOD, "top_k": "3"}, "line 1: top_k: a whole number is wanted, not str"),
        ({**GOOD, "top_k": True}, "line 1: top_k: a whole number is wanted, not bool"),
        ({**GOOD, "top_k": 0}, "line 1: top_k: 0 is out of range"),
        (
            {**GOOD, "max_answer_tokens": 1.5},
            "line 1: max_answer_tokens: a whole number is wanted, not float",
        ),
        ({**GOOD, "null_threshold": float("nan")}, "line 1: null_threshold: a number is wanted .*not NaN"),
        ({**GOOD, "distinct": 1}, "line 1: distinct: true or false is wanted, not int"),
        ({**GOOD, "id": [1]}, "line 1: id: is a list"),
        ({**GOOD, "id": True}, "line 1: id: is true or false"),
        ({**GOOD, "context": "half \ud83d"}, "line 1: context: character 5 is half a surrogate pair"),
        ({**GOOD, "id": "\ud83d"}, "line 1: id: holds half a surrogate pair"),
        ({**GOOD, "meta": ["a", {"\ud83d": 1}]}, "line 1: meta: holds half a surrogate pair"),
        ({**GOOD, "meta": {"score": float("nan")}}, "line 1: meta: holds NaN or an infinite number"),
        ('{"question": "x", "context": "y", "meta": 1e999}', "line 1: meta: holds NaN or an infinite number"),
        ({"data": [], "version": "v2.0"}, "line 1: has 'data' and no question.*SQuAD"),
    ],
)
def test_a_faulty_line_is_named_with_field_and_remedy(line, message):
    result = answer(line)
    (problem,) = result.problems
    assert str(problem).startswith("big.jsonl: line 1: ")
    with pytest.raises(DataError, match=message):
        raise DataError(str(problem))
    (row,) = read_lines(result.content.decode())
    assert row == {"id": 1, "error": str(problem).removeprefix("big.jsonl: ")}


def test_meta_of_any_depth_is_copied_or_refused():
    for depth in range(900, 1000):
        meta = "[" * depth + "]" * depth
        (row,) = read_lines(answer(f'{{"question": "x", "context": "y", "meta": {meta}}}').content.decode())
        assert "meta" in row or "error" in row


def test_a_faulty_line_takes_no_other_with_it():
    result = answer({**GOOD, "id": "a"}, {"id": "b", "question": 1}, "{", {**GOOD, "id": "d"})
    rows = read_lines(result.content.decode())
    assert [row["id"] for row in rows] == ["a", "b", 3, "d"]
    assert [row.get("text") for row in rows] == ["Odo", None, None, "Odo"]
    assert len(result.problems) == 2


def test_bytes_that_are_no_utf8_and_a_byte_order_mark():
    part = Part(((1, b"\xef\xbb\xbf" + json.dumps(GOOD).encode()), (2, b'{"question": "caf\xe9"}')))
    result = answer_part(part, first_words, file="f", options={})
    assert "error" not in read_lines(result.content.decode())[0]
    assert "byte 17 is not UTF-8" in str(result.problems[0])


def test_blank_lines_count_but_have_no_answer(tmp_path):
    write_lines(tmp_path / "data.jsonl", ["", GOOD, "  ", GOOD])
    with open_input(str(tmp_path / "data.jsonl")) as (read, size):
        (part,) = read
    assert [number for number, _ in part.lines] == [2, 4]
    assert part.position == size == (tmp_path / "data.jsonl").stat().st_size


def test_only_a_line_feed_ends_a_line():
    text = '{"question": "a\u2028b\x85c", "context": "\u2029"}\n'
    assert list(lines(io.BytesIO(text.encode()), "f")) == [(1, text.encode())]


def test_a_file_is_read_a_part_ahead_and_no_further(monkeypatch):
    monkeypatch.setattr(json_lines, "PART_LINES", 5)
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield read, b"{}"

    stream = parts(endless(), lambda: 0)
    for number in range(1, 50):
        assert [line for line, _ in next(stream).lines] == list(range(5 * number - 4, 5 * number + 1))
        assert read == 5 * number


def test_long_lines_end_a_part_and_too_long_ones_are_not_held(monkeypatch):
    monkeypatch.setattr(json_lines, "PART_BYTES", 100)
    monkeypatch.setattr(json_lines, "LONGEST_LINE", 1000)
    texts = [b"x" * 60, b"x" * 60, b"x" * 10_000, b"x" * 999, b"x" * 1000, b"short"]
    file = io.BytesIO(b"\n".join(texts) + b"\n")
    some = list(parts(lines(file, "f"), file.tell))
    assert [[number for number, _ in part.lines] for part in some] == [[1, 2], [3], [4], [5], [6]]
    second, third = some[1:3]
    assert len(second.lines[0][1]) == 1001
    result = answer_part(second, first_words, file="f", options={})
    assert "line 3: is longer than" in str(result.problems[0])
    assert "broken JSON" in str(answer_part(third, first_words, file="f", options={}).problems[0])


def test_gzip_by_its_content(tmp_path):
    packed = gzip.compress(f"{json.dumps(GOOD)}\n".encode() * 3)
    (tmp_path / "data.jsonl").write_bytes(packed)
    with open_input(str(tmp_path / "data.jsonl")) as (read, size):
        (part,) = read
    assert [json.loads(line) for _, line in part.lines] == [GOOD] * 3
    assert size == len(packed)
    (tmp_path / "data.jsonl").write_bytes(packed[:-9])
    with open_input(str(tmp_path / "data.jsonl")) as (read, _), pytest.raises(DataError, match="cut short"):
        list(read)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot be read"), open_input(str(tmp_path / "none.jsonl")):
        pass

"""JSON lines in and out: answer files are complete or resumable, never torn or resumed from another input."""

import gzip
import io
import json
import math
import os
import re
import resource
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from kills import check_recovery, contents, killed_at_each_step
from line_answers import answering, first_words, read_lines, rows, write_lines

from qa_arch.errors import ConfigError, DataError, QaArchError, RunError
from qa_arch.records import Confidence, RunRecord, Seconds, Threshold, write_record
from qa_arch.serving import lines
from qa_arch.serving.lines import LineCounts, Part, answer_file, answer_part, open_input, origin_of, parts_of

LINES = 53


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(lines, "PART_LINES", 5)


@pytest.fixture
def data(tmp_path) -> Path:
    return write_lines(tmp_path / "data.jsonl", rows(LINES))


@pytest.fixture
def answer(data, tmp_path):
    """Answer ``data`` into out.jsonl."""

    def call(answer_queries=first_words, data=data, out=tmp_path / "out.jsonl", settings=None, **options):
        start = partial(answering, data, answer_queries)
        return answer_file(str(data), str(out), start, models=[], settings=settings or {}, **options)

    return call


@pytest.fixture
def complete(answer, tmp_path) -> bytes:
    """The output of an uninterrupted call; its file is removed."""
    answer()
    content = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").unlink()
    return content


def interrupted_after(parts: int):
    """A model that raises KeyboardInterrupt after it has answered ``parts`` parts."""
    remaining = iter(range(parts))

    def answer_queries(queries):
        if next(remaining, None) is None:
            raise KeyboardInterrupt
        return first_words(queries)

    return answer_queries


def test_every_line_is_answered_once_in_order(answer, tmp_path):
    assert answer() == LineCounts(LINES, 0, 0)
    assert [row["id"] for row in read_lines(tmp_path / "out.jsonl")] == [row["id"] for row in rows(LINES)]
    origin = json.loads((tmp_path / "out.jsonl.origin.json").read_text())
    assert origin["data.name"] == "data.jsonl"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("data.jsonl", "out.jsonl", "out.jsonl.origin.json")
    }


@pytest.mark.parametrize("parts", [0, 6])
def test_interrupted_call_is_resumed(answer, complete, tmp_path, caplog, parts):
    out, partial_file = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    with caplog.at_level("INFO"), pytest.raises(KeyboardInterrupt):
        answer(interrupted_after(parts))
    assert caplog.messages == [f"{partial_file}: unfinished; repeat the command to continue"]
    assert not out.exists()
    assert complete.startswith(partial_file.read_bytes())
    assert len(read_lines(partial_file)) == 5 * parts
    seen = []
    summary = answer(lambda queries: seen.extend(queries) or first_words(queries))
    assert summary == LineCounts(LINES, 5 * parts, 0)
    assert len(seen) == LINES - 5 * parts
    assert out.read_bytes() == complete
    assert not partial_file.exists()


@pytest.mark.parametrize(
    ("choice", "end"), [("resume", "to continue"), ("replace", "with --if-exists replace")]
)
def test_full_disk_names_the_unfinished_file(answer, complete, tmp_path, choice, end):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(complete) // 2, hard))
    message = rf"out.jsonl.partial: cannot be written \(.*\); free space, then repeat the command {end}$"
    try:
        with pytest.raises(QaArchError, match=message) as caught:
            answer(if_exists=choice)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 1
    answer()
    assert (tmp_path / "out.jsonl").read_bytes() == complete


def test_resuming_a_file_torn_anywhere_loses_and_repeats_nothing(answer, complete, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    out, partial_file = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    ends = [position + 1 for position, byte in enumerate(complete) if byte == 10]
    near = {end + shift for end in (*ends[:8], ends[-1]) for shift in (-1, 0, 1)}
    for size in sorted({0, 1, len(complete) // 2, *near} - {len(complete) + 1}):
        partial_file.write_bytes(complete[:size])
        answer()
        assert out.read_bytes() == complete, size
        out.unlink()


def test_killed_call_is_completed_by_the_same_call(answer, tmp_path):
    """It may leave an unfinished file, which the next call completes and renames."""
    data, folder = write_lines(tmp_path / "few.jsonl", rows(12)), tmp_path / "out"

    def work():
        folder.mkdir(exist_ok=True)
        answer(data=data, out=folder / "out.jsonl")
        assert not (folder / "out.jsonl.partial").exists()

    def read(folder):
        return {name: data for name, data in contents(folder).items() if not name.endswith(".partial")}

    # At least: the lock, five steps of the origin's file, opening the answers, one sync per part, rename.
    assert check_recovery(killed_at_each_step(work, folder), folder, work, read=read) >= 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("same size", "data.head_sha256"),
        ("time", "data.modified"),
        ("settings", "settings.top_k 'None', now '3'"),
        ("origin", "out.jsonl.origin.json: cannot be read"),
    ],
)
def test_answers_of_another_origin_are_not_resumed(answer, data, tmp_path, change, message):
    with pytest.raises(KeyboardInterrupt):
        answer(interrupted_after(3))
    settings, stat = {"top_k": 3} if change == "settings" else {}, data.stat()
    if change == "same size":
        data.write_bytes(data.read_bytes().replace(b"Who 7?", b"Why 7?"))
    elif change == "origin":
        (tmp_path / "out.jsonl.origin.json").unlink()
    os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns + (change == "time")))
    existing = tmp_path / "out.jsonl.partial"
    before = existing.read_bytes()
    with pytest.raises(RunError, match=f"{message}.*--if-exists replace"):
        answer(settings=settings)
    assert existing.read_bytes() == before
    assert answer(settings=settings, if_exists="replace").before == 0
    assert answer(settings=settings) is None


def test_existing_files_are_lost_neither_to_a_failed_start_nor_to_the_output(answer, data, tmp_path):
    answer()

    @contextmanager
    def fails():
        raise RunError("no such model")
        yield

    own = [(data, ConfigError, data)]
    for suffix in (".partial", ".origin.json"):  # files beside OUT, which are removed or written
        beside = tmp_path / f"beside.jsonl{suffix}"
        beside.write_bytes(data.read_bytes())
        own.append((tmp_path / "beside.jsonl", ConfigError, beside))
    before = contents(tmp_path)
    for out, error, source in ((tmp_path / "out.jsonl", RunError, data), *own):
        with pytest.raises(error):
            answer_file(str(source), str(out), fails, models=[], settings={}, if_exists="replace")
    assert contents(tmp_path) == before


def test_refitted_threshold_or_temperature_changes_the_origin(data, tmp_path):
    """Answers depend on what was fitted after training, though it is no setting; not on scores."""
    names = {"status": "ok", "name": "trial", "model": "bert", "settings_hash": "c", "run_hash": "c"}
    record, origins = RunRecord(**names, seed=1, config={}), {}
    for name, change in {
        "unchanged": {},
        "scored": {"scores": {"dev": {}}, "rows": {"dev": "a"}, "seconds": Seconds(predict=1.0)},
        "threshold": {"threshold": Threshold(value=1.5, fitted_on="calibration")},
        "temperature": {"confidence": Confidence(method="temperature", value=2.0, fitted_on="calibration")},
    }.items():
        write_record(tmp_path / "run", replace(record, **change))
        origins[name] = origin_of(str(data), [str(tmp_path / "run")], {})["models"]
    assert origins["scored"] == origins["unchanged"]
    assert len({str(origin) for origin in origins.values()}) == 3


def test_faulty_line_stops_the_call_unless_skipped(answer, data, tmp_path, caplog):
    write_lines(data, [*rows(20), "{", *rows(20)])
    with pytest.raises(DataError, match=r"data.jsonl: line 21: broken JSON .*--on-error skip continues"):
        answer()
    assert len(read_lines(tmp_path / "out.jsonl.partial")) == 20
    assert answer(on_error="skip") == LineCounts(41, 20, 1)
    output = read_lines(tmp_path / "out.jsonl")
    assert [row["id"] for row in output if "error" in row] == [21]
    assert "left out: " in caplog.text
    assert "line 21" in caplog.text


def test_only_one_process_writes_at_a_time(answer, tmp_path):
    def answer_queries(queries):
        with pytest.raises(RunError, match=f"/out.jsonl: this file is in use by process {os.getpid()}"):
            answer()
        answer(out=tmp_path / "other.jsonl")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(answer_queries)
    assert (tmp_path / "other.jsonl").is_file()


def test_file_is_finished_before_its_lock_is_released(answer, tmp_path, monkeypatch):
    hold = lines.hold

    @contextmanager
    def checked(*arguments, **options):
        with hold(*arguments, **options):
            yield
            assert (tmp_path / "out.jsonl").exists()

    monkeypatch.setattr(lines, "hold", checked)
    answer()


def test_only_one_part_is_read_ahead(answer, data, tmp_path, monkeypatch):
    """Constant memory: while a part is answered, earlier parts are on disk and later ones unread."""
    opened = []
    monkeypatch.setattr(lines, "parts_of", lambda file, *rest: opened.append(file) or parts_of(file, *rest))

    def answer_queries(queries):
        written = (tmp_path / "out.jsonl.partial").read_bytes().count(b"\n")
        read = data.read_bytes()[: opened[0].tell()]
        assert read.count(b"\n") == written + len(queries)
        return first_words(queries)

    answer(answer_queries)


def test_data_from_a_pipe_cannot_be_resumed(answer, data, tmp_path):
    """Nor is the output of a pipe resumed from a file."""
    os.mkfifo(pipe := tmp_path / "pipe")
    content, out = data.read_bytes(), tmp_path / "out.jsonl"

    def answer_pipe(*arguments):
        (writer := Thread(target=pipe.write_bytes, args=(content,))).start()
        try:
            return answer(*arguments, data=pipe)
        finally:
            writer.join()

    with pytest.raises(KeyboardInterrupt):
        answer_pipe(interrupted_after(1))
    with pytest.raises(RunError, match=r"does not record .*--if-exists replace"):
        answer()
    (tmp_path / "out.jsonl.partial").unlink()
    assert answer_pipe() == LineCounts(LINES, 0, 0)
    assert len(read_lines(out)) == LINES
    with pytest.raises(RunError, match="data from a pipe cannot be resumed"):
        answer(data=pipe)


GOOD = {"question": "Who?", "context": "Odo built it."}


def answer_lines(*texts: object, answer_queries=first_words, **options):
    raw = [(text if isinstance(text, str) else json.dumps(text)).encode() for text in texts]
    part = Part(tuple(enumerate(raw, 1)))
    return answer_part(part, answer_queries, file="big.jsonl", options=options)


def queries_of(*texts: object, **options):
    """The queries that the model gets."""
    queries = []

    def answer_queries(batch):
        queries.extend(batch)
        return first_words(batch)

    result = answer_lines(*texts, answer_queries=answer_queries, **options)
    assert not result.problems
    return queries


def test_line_becomes_a_query_and_its_answer_a_line():
    """The fields of a SQuAD record do not affect the query."""
    record = {**GOOD, "id": "q7", "title": "T", "answers": [{"text": "Odo"}], "is_impossible": False}
    result = answer_lines(record, {**GOOD, "meta": {"split": [1]}, "id": 12}, GOOD)
    first, second, third = read_lines(result.content.decode())
    expected = json.loads(json.dumps(first_words(queries_of(GOOD))[0].as_dict()))
    assert queries_of(record) == queries_of(GOOD)
    assert first == {"id": "q7", **expected}
    assert second == {"id": 12, "meta": {"split": [1]}, **expected}
    assert third == {"id": 3, **expected}  # its line number


def test_documents_and_options():
    line = {"question": "?", "documents": ["-", "Odo."], "top_k": 3, "null_threshold": -1, "distinct": False}
    query, other = queries_of(line, {**GOOD, "top_k": None}, top_k=2, max_answer_tokens=4)
    assert query.documents == ("-", "Odo.")
    assert (query.top_k, query.max_answer_tokens, query.null_threshold, query.distinct) == (3, 4, -1, False)
    assert (other.top_k, other.max_answer_tokens) == (2, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: broken JSON .*column 2 .*a line is an object"),
        ({"context": "x"}, "line 1: question: Field required"),
        ({"question": "x"}, r"line 1: give either context \(a text\) or documents"),
        ({"question": "x", "context": "\n"}, "line 1: context: no text to read"),
        ({**GOOD, "topk": 1}, "line 1: topk: unknown field.*did you mean 'top_k'"),
        ({**GOOD, "topk": None}, "line 1: topk: unknown field"),
        ({**GOOD, "top_k": 0}, "line 1: top_k: 0 is out of range"),
        ({**GOOD, "id": [1]}, "line 1: id: is a list"),
        ({**GOOD, "meta": [math.inf]}, "line 1: meta: holds Infinity"),
        ({**GOOD, "context": "half \ud83d"}, "line 1: an escape .*half a character"),
        ('{"question": "x", "context": "y", "meta": %s}' % ("[" * 900 + "]" * 900), "line 1: broken JSON"),
        ('{"question": "x", "context": "y", "question": "z"}', "line 1: broken JSON .*'question' occurs"),
        ({"data": [], "version": "v2.0"}, "line 1: is an object, not a question.*SQuAD"),
    ],
)
def test_faulty_line_error_names_field_and_remedy(line, message):
    result = answer_lines(line)
    (problem,) = result.problems
    assert re.match(f"big.jsonl: {message}", str(problem), re.DOTALL)
    (row,) = read_lines(result.content.decode())
    assert row == {"id": 1, "error": str(problem).removeprefix("big.jsonl: ")}


def test_line_without_end_is_not_read_whole(monkeypatch):
    monkeypatch.setattr(lines, "MAX_JSON_BYTES", 2**20)
    file = io.BytesIO(b"{}\n" + b" " * 2**22)
    with pytest.raises(DataError, match=r"^big\.jsonl: line 2: is longer than 1 MiB"):
        list(parts_of(file, "big.jsonl", file.tell))
    assert file.tell() == 3 + 2**20 + 1


def test_invalid_utf8_and_byte_order_mark():
    part = Part(((1, b"\xef\xbb\xbf" + json.dumps(GOOD).encode()), (2, b'{"question": "caf\xe9"}')))
    result = answer_part(part, first_words, file="f", options={})
    assert "error" not in read_lines(result.content.decode())[0]
    assert "byte 17 is not UTF-8" in str(result.problems[0])


def test_gzip_is_detected_by_content_and_blank_lines_are_skipped(tmp_path):
    text = json.dumps({**GOOD, "question": "a\u2028b\x85c"}, ensure_ascii=False)
    raw = gzip.compress(f"\n{text}\n  \n{text}".encode())
    (tmp_path / "data.jsonl").write_bytes(raw)
    with open_input(str(tmp_path / "data.jsonl")) as (parts, size):
        (part,) = parts
    assert [number for number, _ in part.lines] == [2, 4]
    assert part.position == size == len(raw)
    (tmp_path / "data.jsonl").write_bytes(raw[:-9])
    with open_input(str(tmp_path / "data.jsonl")) as (parts, _), pytest.raises(DataError, match="cut short"):
        list(parts)

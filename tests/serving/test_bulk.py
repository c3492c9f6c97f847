"""A file of answers: whole or resumable, never torn, and never continued from something else."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from line_answers import answering, first_words, read_lines, rows, write_lines

from qa_arch.errors import DataError, RunError
from qa_arch.serving import json_lines
from qa_arch.serving.bulk import Summary, answer_file
from qa_arch.system import lifeline

LINES = 53
KILLS = 3

PROGRAM = """
import sys, time
from line_answers import answering, first_words
from qa_arch.serving import bulk, json_lines
json_lines.PART_LINES = 5

def slow(queries):
    time.sleep(0.03)
    return first_words(queries)

data, out = sys.argv[1:]
bulk.answer_file(data, out, lambda: answering(data, slow), models=[], settings={})
"""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(json_lines, "PART_LINES", 5)


@pytest.fixture
def data(tmp_path) -> Path:
    return write_lines(tmp_path / "data.jsonl", rows(LINES))


@pytest.fixture
def answer(data, tmp_path):
    """Answer ``data`` into out.jsonl."""

    def call(reading=first_words, data=data, out=tmp_path / "out.jsonl", settings=None, **options):
        start = partial(answering, data, reading)
        return answer_file(str(data), str(out), start, models=[], settings=settings or {}, **options)

    return call


@pytest.fixture
def whole(answer, tmp_path) -> bytes:
    """The bytes of an uninterrupted call, whose files are removed."""
    answer()
    content = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").unlink()
    return content


def stops_after(calls: int):
    """A model that is interrupted once it has answered ``calls`` parts."""
    left = calls

    def reading(queries):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return first_words(queries)

    return reading


def test_every_line_is_answered_once_in_order(answer, tmp_path):
    assert answer() == Summary(LINES, 0, 0)
    assert [row["id"] for row in read_lines(tmp_path / "out.jsonl")] == [row["id"] for row in rows(LINES)]
    origin = json.loads((tmp_path / "out.jsonl.origin.json").read_text())
    assert origin["data"]["name"] == "data.jsonl"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data.jsonl",
        "out.jsonl",
        "out.jsonl.origin.json",
    ]


@pytest.mark.parametrize("calls", [0, 1, 6, 10])
def test_an_interrupted_call_is_continued(answer, whole, tmp_path, calls):
    out, partial_file = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    with pytest.raises(KeyboardInterrupt):
        answer(stops_after(calls))
    assert not out.exists()
    assert whole.startswith(partial_file.read_bytes())
    assert len(read_lines(partial_file)) == 5 * calls
    seen = []
    answered = answer(lambda queries: seen.extend(queries) or first_words(queries))
    assert answered == Summary(LINES, 5 * calls, 0)
    assert len(seen) == LINES - 5 * calls
    assert out.read_bytes() == whole
    assert not partial_file.exists()


def test_wherever_the_file_is_torn_nothing_is_lost_or_repeated(answer, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    out, partial_file = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 10]
    near = {end + shift for end in ends for shift in (-1, 0, 1) if end + shift <= len(whole)}
    for place in sorted({0, 1, len(whole) // 2, *near}):
        partial_file.write_bytes(whole[:place])
        answer()
        assert out.read_bytes() == whole, place
        out.unlink()


def test_a_finished_file_is_left_alone(answer, tmp_path):
    answer()
    before = (tmp_path / "out.jsonl").stat()

    def never(queries):
        pytest.fail("answered again")

    assert answer(never) is None
    assert (tmp_path / "out.jsonl").stat() == before


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data", "another data.size"),
        ("same size", "another data.head_sha256"),
        ("time", "another data.modified"),
        ("settings", r"another settings.top_k \('None', now '3'\)"),
        ("parts", "another settings.part_lines"),
        ("origin", "no out.jsonl.origin.json says what it was made from"),
    ],
)
def test_answers_of_another_origin_are_not_continued(
    answer, data, tmp_path, monkeypatch, finished, change, message
):
    if finished:
        answer()
    else:
        with pytest.raises(KeyboardInterrupt):
            answer(stops_after(3))
    settings, stat = {}, data.stat()
    if change == "data":
        write_lines(data, rows(LINES + 1))
    elif change == "same size":
        data.write_bytes(data.read_bytes().replace(b"Who 7?", b"Why 7?"))
    elif change == "settings":
        settings = {"top_k": 3}
    elif change == "parts":
        monkeypatch.setattr("qa_arch.serving.origin.PART_LINES", 6)
    elif change == "origin":
        (tmp_path / "out.jsonl.origin.json").unlink()
    os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns + (change == "time")))
    existing = tmp_path / ("out.jsonl" if finished else "out.jsonl.partial")
    before = existing.read_bytes()
    with pytest.raises(RunError, match=f"{message}.*--if-exists replace"):
        answer(settings=settings)
    assert existing.read_bytes() == before
    assert answer(settings=settings, if_exists="replace").before == 0
    assert answer(settings=settings) is None


@pytest.mark.parametrize("calls", [3, 100])
def test_fail_and_replace(answer, tmp_path, calls):
    try:
        answer(stops_after(calls))
    except KeyboardInterrupt:
        assert calls == 3
    with pytest.raises(RunError, match="already exists; --if-exists resume"):
        answer(if_exists="fail")
    assert answer(if_exists="replace") == Summary(LINES, 0, 0)


def test_a_faulty_line_stops_what_skip_continues(answer, data, tmp_path, caplog):
    lines = [*rows(20), "{", *rows(20)]
    write_lines(data, lines)
    with pytest.raises(DataError, match=r"data.jsonl: line 21: broken JSON .*--on-error skip continues"):
        answer()
    assert len(read_lines(tmp_path / "out.jsonl.partial")) == 20
    assert answer(on_error="skip") == Summary(41, 20, 1)
    output = read_lines(tmp_path / "out.jsonl")
    assert [row["id"] for row in output if "error" in row] == [21]
    assert "left out: " in caplog.text
    assert "line 21" in caplog.text


def test_one_process_writes_at_a_time(answer, tmp_path):
    def reading(queries):
        with pytest.raises(RunError, match=f"out.jsonl is in use by process {os.getpid()}"):
            answer()
        answer(out=tmp_path / "other.jsonl")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(reading)
    assert (tmp_path / "other.jsonl").is_file()


def test_progress_counts_bytes_and_lines(answer, data):
    with pytest.raises(KeyboardInterrupt):
        answer(stops_after(4))
    calls = []
    answer(watch=lambda *values: calls.append(values))
    size = data.stat().st_size
    assert [total for _, total, _ in calls] == [size] * 7
    assert [count for *_, count in calls] == [5, 10, 15, 20, 25, 30, 33]
    assert calls[-1][0] == size


def test_no_more_than_a_part_is_read_ahead(answer, data, tmp_path, monkeypatch):
    """Constant memory: when a part is answered, those before are on disk and none after it was read."""
    numbers = []
    read = json_lines.lines
    monkeypatch.setattr(
        json_lines, "lines", lambda *source: (numbers.append(line[0]) or line for line in read(*source))
    )

    def reading(queries):
        written = (tmp_path / "out.jsonl.partial").read_bytes().count(b"\n")
        assert len(numbers) == written + len(queries)
        return first_words(queries)

    answer(reading)


def test_data_from_a_pipe(answer, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed():
        content = "".join(json.dumps(row) + "\n" for row in rows(12))
        return subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'w').write({content!r})"])

    with feed():
        assert answer(data=pipe) == Summary(12, 0, 0)
    with pytest.raises(RunError, match="data from a pipe cannot be resumed"):
        answer(data=pipe)


@pytest.mark.skipif(not lifeline.LINUX, reason="kills processes")
def test_killed_at_any_moment_the_file_is_that_of_an_undisturbed_call(whole, data, tmp_path):
    """With a model of the speed of light; ``tests/slow`` does it with a real one."""
    out = tmp_path / "out.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, str(data), str(out)]
    rng, kills = random.Random(17), 0
    while not out.exists():
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        while kills < KILLS and process.poll() is None:
            if (tmp_path / "out.jsonl.partial").exists():
                time.sleep(rng.uniform(0, 0.1))
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.005)
        _, message = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), message
    assert kills == KILLS
    assert out.read_bytes() == whole

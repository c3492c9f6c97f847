"""``qa-arch predict --out FILE.jsonl``: one question per input line, one answer per output line."""

import gzip
import io
from types import SimpleNamespace

import pytest
from line_answers import read_lines, rows, write_lines

from qa_arch.data import synthetic


@pytest.fixture(scope="session")
def lines_file(tmp_path_factory):
    lines: list[dict] = [
        {"id": e.id, "question": e.question, "documents": [e.context, "Nobody."]}
        for e in synthetic.named("dev").examples[:40]
    ]
    return write_lines(
        tmp_path_factory.mktemp("lines") / "data.jsonl", [*lines, {"question": "Who?", "context": "-"}]
    )


def test_files_pipes_and_gzip_give_the_same_bytes(qa_arch, trained, lines_file, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    predict = ("predict", trained, "--top-k", 2, "--data")
    code, message, _ = qa_arch(*predict, lines_file, "--out", out)
    assert (code, message) == (0, f"{out}: 41 lines\n")
    answers = read_lines(out)
    assert [answer["id"] for answer in answers][-1] == 41
    assert max(len(answer["spans"]) for answer in answers) == 2
    packed = tmp_path / "data.jsonl.gz"
    packed.write_bytes(gzip.compress(lines_file.read_bytes()))
    assert qa_arch(*predict, packed, "--out", tmp_path / "b.jsonl")[0] == 0
    assert (tmp_path / "b.jsonl").read_bytes() == out.read_bytes()
    monkeypatch.setattr(
        "sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(lines_file.read_bytes())))
    )
    code, text, err = qa_arch(*predict, "-", "--out", "-")
    assert (code, text) == (0, out.read_text(encoding="utf-8"))
    assert "41 lines" in err


def test_unfinished_file_resumes_only_with_the_same_run_and_settings(
    qa_arch, trained, run_folder, lines_file, tmp_path, monkeypatch
):
    monkeypatch.setattr("qa_arch.serving.lines.PART_LINES", 7)
    out = tmp_path / "out.jsonl"
    predict = ("predict", run_folder, "--data", lines_file, "--out", out)
    assert qa_arch(*predict)[0] == 0
    complete = out.read_bytes()
    out.rename(tmp_path / "out.jsonl.partial").write_bytes(complete[: len(complete) // 2])
    for change in (("--top-k", 3), ("--null-threshold", 1), ("--precision", "bf16"), ("--batch-size", 3)):
        code, _, err = qa_arch(*predict, *change)
        assert (code, "was made with settings." in err) == (5, True)
    code, message, _ = qa_arch(*predict)
    assert code == 0
    assert "21 of them from an earlier call" in message or "14 of them from an earlier call" in message
    assert out.read_bytes() == complete
    assert "already answered" in qa_arch(*predict)[1]
    assert qa_arch("evaluate", "--run", run_folder)[0] == 0  # scoring changes no answer
    assert "already answered" in qa_arch(*predict)[1]
    weights = run_folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    code, _, err = qa_arch(*predict)
    assert (code, "was made with models" in err) == (5, True)


def test_questions_that_are_cut_are_counted(qa_arch, trained, tmp_path, caplog):
    long = [{**row, "question": "in a word, " * 30 + row["question"]} for row in rows(2)]
    data = write_lines(tmp_path / "data.jsonl", [*long, *rows(1), {"question": "Who?"}])
    out_file = tmp_path / "out.jsonl"
    code, out, _ = qa_arch("predict", trained, "--data", data, "--out", out_file, "--on-error", "skip")
    counts = '4 lines, 1 left out (see their "error"), 2 questions cut (see their "question_cut")'
    assert (code, counts in out) == (0, True)
    cut = [row["question_cut"] for row in read_lines(out_file)[:3]]
    assert (cut[0] > 0, cut[2]) == (True, 0)
    ask = ("ask", trained, "--question", long[0]["question"], "--context", long[0]["context"])
    warning = f"the last {cut[0]} tokens of the question were not read; raise max_question (--max-question)"
    assert warning in qa_arch(*ask)[1]
    example = {**rows(1)[0], **long[0], "id": "a", "answers": {"text": [], "answer_start": []}}
    write_lines(data, [{key: example[key] for key in ("id", "question", "context", "answers")}])
    assert qa_arch("predict", trained, "--data", data, "--out", tmp_path / "folder")[0] == 0
    assert "data: 1 questions were cut to" in caplog.text

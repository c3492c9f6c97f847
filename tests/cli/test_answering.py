"""Commands that answer: ``ask``, ``predict`` to JSON lines, and both with a graph that ``export`` made."""

import gzip
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
from broken_records import change_json
from fresh import run_calls
from line_answers import read_lines, rows, write_lines
from shapes import unchecked_shapes

from qa_arch.cli.main import main
from qa_arch.data import synthetic
from qa_arch.models.onnx_model import DESCRIPTION
from qa_arch.records import GRAPH, find_runs, read_record

MILL = "The mill by the ferry was built by Odo Brandt. It burnt down in 1873."
SHOP = "Ada's shop sold bread.\r\nIt closed in 1901."


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "mill.txt", tmp_path / "shop.txt"]
    for path, text in zip(paths, (MILL, SHOP), strict=True):
        path.write_bytes(text.encode())
    return paths


@pytest.fixture
def ask(qa_arch, trained):
    """``ask(*arguments)`` -> exit code and JSON objects; null threshold infinite, so never \"no answer\"."""

    def call(*arguments):
        code, out, _ = qa_arch("ask", trained, "--json", "--null-threshold", "inf", *arguments)
        return code, [json.loads(line) for line in out.splitlines()]

    return call


def test_answer_and_candidates(ask):
    code, (answer,) = ask("--question", "Who built the mill?", "--context", MILL)
    assert code == 0
    assert answer["question"] == "Who built the mill?"
    assert answer["text"] == MILL[answer["start"] : answer["end"]] != ""
    assert (answer["document"], answer["file"], answer["null_threshold"]) == (0, None, None)
    assert 1 < len(answer["spans"]) <= 3
    _, (single,) = ask("--question", "Who?", "--context", MILL, "--top-k", 1, "--max-answer-tokens", 1)
    assert len(single["spans"]) == 1
    assert " " not in single["text"]


def test_text_output_shows_the_answer_in_its_sentence(qa_arch, ask, trained):
    arguments = ("--question", "Who built the mill?", "--context", MILL, "--max-answer-tokens", 1)
    _, (answer,) = ask(*arguments)
    first, second, third, *others = qa_arch("ask", trained, *arguments, "--null-threshold", "inf")[
        1
    ].splitlines()
    assert f"[{first}]" in second
    assert (first, second.strip().replace("[", "").replace("]", "") in MILL) == (answer["text"], True)
    assert f"confidence {answer['confidence']:.1%}" in third
    assert f"probability of no answer {answer['no_answer_probability']:.1%}" in third
    assert f"null odds {answer['null_odds']:.2f}" in third
    assert len(others) == len(answer["spans"]) - 1


def test_answer_names_its_file(qa_arch, ask, trained, files):
    code, (answer,) = ask("--question", "When?", "--file", files[0], "--file", files[1])
    text = (MILL, SHOP)[answer["document"]]
    assert code == 0
    assert text[answer["start"] : answer["end"]] == answer["text"]
    assert answer["file"] == str(files[answer["document"]])
    assert answer["windows"] == 2
    assert ask("--question", "When?", "--file", *files)[1] == [answer]
    words = qa_arch("ask", trained, "--question", "When?", "--file", *files, "--null-threshold", "inf")[1]
    assert f"({answer['file']})" in words.splitlines()[1]
    for threshold in ("-inf", "-2.5E+2"):
        options = ("--null-threshold", threshold, "--question", "When?", "--file", *files)
        assert qa_arch("ask", trained, *options)[1].startswith("no answer in these texts\n")


def test_questions_from_a_pipe(ask, monkeypatch, files):
    """Questions refer to the last text given; blank lines are skipped."""
    lines = f"Who?\n\nWhen?\r\n/file {files[0]} {files[1]}\nWhen?\n/text\nOdo sold\nbread.\n\nWho?"
    pipe = SimpleNamespace(buffer=io.BytesIO(lines.encode()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", pipe)
    code, answers = ask("--context", MILL)
    assert code == 0
    assert [answer["question"] for answer in answers] == ["Who?", "When?", "When?", "Who?"]
    assert [answer["windows"] for answer in answers] == [1, 1, 2, 1]
    assert answers[-1]["text"] in "Odo sold\nbread."
    assert answers[2] == ask("--question", "When?", "--file", *files)[1][0]


def test_interactive_session_asks_for_a_text_and_survives_mistakes(qa_arch, trained, monkeypatch):
    typed = iter([MILL, "", "/file none.txt", "/nothing", "Who?", "", "When?"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    code, out, err = qa_arch("ask", trained, "--null-threshold=-inf")
    assert (code, out.count("no answer in this text")) == (0, 1)
    assert "text, then an empty line:" in err
    assert "none.txt: cannot be read" in out
    assert "/nothing: /file PATH ... reads other texts" in out
    assert list(typed) == ["When?"]  # an empty line ended the session


@pytest.fixture(scope="session")
def lines_file(tmp_path_factory):
    lines: list[dict] = [
        {"id": e.id, "question": e.question, "documents": [e.context, "Nobody."]}
        for e in synthetic.named("dev").examples[:40]
    ]
    return write_lines(
        tmp_path_factory.mktemp("lines") / "data.jsonl", [*lines, {"question": "Who?", "context": "-"}]
    )


def test_files_and_pipes_give_the_same_bytes(qa_arch, trained, lines_file, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    predict = ("predict", trained, "--top-k", 2, "--data")
    code, message, _ = qa_arch(*predict, lines_file, "--out", out)
    assert (code, message) == (0, f"{out}: 41 lines\n")
    answers = read_lines(out)
    assert (answers[-1]["id"], max(len(answer["spans"]) for answer in answers)) == (41, 2)
    packed = io.BufferedReader(io.BytesIO(gzip.compress(lines_file.read_bytes())))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=packed))
    code, text, err = qa_arch(*predict, "-", "--out", "-")
    assert (code, text) == (0, out.read_text(encoding="utf-8"))
    assert "41 lines" in err


def test_unfinished_file_resumes_only_with_the_same_run_and_settings(
    qa_arch, run_folder, lines_file, tmp_path, monkeypatch
):
    monkeypatch.setattr("qa_arch.serving.lines.PART_LINES", 7)
    out = tmp_path / "out.jsonl"
    predict = ("predict", run_folder, "--data", lines_file, "--out", out)
    assert qa_arch(*predict)[0] == 0
    complete = out.read_bytes()
    out.rename(tmp_path / "out.jsonl.partial").write_bytes(complete[: len(complete) // 2])
    code, _, err = qa_arch(*predict, "--top-k", 3)
    assert (code, "was made with settings." in err) == (5, True)
    assert re.search("(14|21) of them from an earlier call", qa_arch(*predict)[1])
    assert out.read_bytes() == complete
    assert qa_arch("evaluate", "--run", run_folder)[0] == 0
    assert "already answered" in qa_arch(*predict)[1], "scoring changes no answer"
    weights = run_folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    code, _, err = qa_arch(*predict)
    assert (code, "was made with models" in err) == (5, True)
    change_json(tmp_path / "out.jsonl.origin.json", models=[{}])
    code, _, err = qa_arch(*predict)
    assert (code, "was made with models '{}', now " in err) == (5, True)


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


TEXT = "The song was written by Ada Stone in 1971."
QUESTION = ("--question", "Who wrote it?", "--context", TEXT, "--null-threshold", "inf")


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory) -> tuple[Path, str]:
    """The graph of the trained run, and what the command printed. Do not change it."""
    folder = tmp_path_factory.mktemp("exported") / "graph"
    with unchecked_shapes(), redirect_stdout(io.StringIO()) as printed:
        assert main(["export", str(trained), "--to", "onnx", "--out", str(folder)]) == 0
    return folder, printed.getvalue()


def test_export_prints_its_check_and_the_sizes(exported):
    folder, out = exported
    checked = r"checked on \d+ questions of \S+: logits within \S+e-\d+, \d+ of the answers the same; EM"
    assert re.search(checked, out)
    assert out.splitlines()[-1].endswith(f"MB  {folder}")
    assert {path.name for path in folder.iterdir()} == {GRAPH, DESCRIPTION, "run.json", "tokenizer"}
    assert [path for path, _ in find_runs([folder])] == [folder]


def test_graph_answers_and_scores_as_its_run_and_records_the_engine(qa_arch, trained, exported, tmp_path):
    graph, _ = exported
    data = write_lines(tmp_path / "data.jsonl", [{"question": "Who wrote it?", "context": TEXT}])
    answers, scores = [], []
    for run in (trained, graph):
        code, out, err = qa_arch("predict", run, "--data", data, "--out", "-")
        assert code == 0, err
        answers.append(json.loads(out)["spans"][0]["text"])
        assert qa_arch("ask", run, *QUESTION)[0] == 0
        scores.append(json.loads(qa_arch("evaluate", "--json", "--run", run)[1]))
    assert answers[0] == answers[1] != ""
    assert {point.engine for point in read_record(graph).scores["dev"].values()} == {"onnx fp32"}
    for name, point in scores[0].items():
        same = scores[1][name]
        assert (point["engine"], same["engine"]) == ("torch fp32", "onnx fp32")
        assert (same["exact"], same["f1"]) == (point["exact"], pytest.approx(point["f1"], abs=1e-9))


@pytest.mark.slow
def test_asking_a_graph_imports_no_transformer_and_no_compiler(exported):
    """They take half of the time in which a small model answers."""
    slow = ["transformers.models", "transformers.modeling_utils", "torch._dynamo", "pytorch_lightning"]
    assert run_calls(("ask", exported[0], *QUESTION), heavy=[*slow, "datasets"]) == [[0, "", []]]

"""``qa-arch ask``: single questions and interactive sessions, on one text or several."""

import io
import json
from types import SimpleNamespace

import pytest

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
    arguments = ("--question", "Who built the mill?", "--context", MILL)
    _, (answer,) = ask(*arguments, "--max-answer-tokens", 1)
    out = qa_arch("ask", trained, *arguments, "--max-answer-tokens", 1, "--null-threshold", "inf")[1]
    first, second, third, *others = out.splitlines()
    assert first == answer["text"]
    assert f"[{first}]" in second
    assert second.strip().replace("[", "").replace("]", "") in MILL
    assert f"confidence {answer['confidence']:.1%}" in third
    assert f"probability of no answer {answer['no_answer_probability']:.1%}" in third
    assert f"null odds {answer['null_odds']:.2f}" in third
    assert len(others) == len(answer["spans"]) - 1
    assert (
        qa_arch("ask", trained, *arguments, "--null-threshold=-inf")[1].splitlines()[0]
        == "no answer in this text"
    )


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
    nothing = qa_arch("ask", trained, "--question", "When?", "--file", *files, "--null-threshold=-inf")[1]
    assert nothing.startswith("no answer in these texts\n")


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


@pytest.mark.parametrize("question", [(), ("--question", "Who?")])
def test_interactive_session_survives_mistakes(qa_arch, trained, monkeypatch, question):
    """A missing text is asked for, even if the question is an option."""
    typed = iter([MILL, "", "/file none.txt", "/nothing", "Who?", "", "When?"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    code, out, err = qa_arch("ask", trained, "--null-threshold=-inf", *question)
    assert code == 0
    assert "text, then an empty line:" in err
    assert out.count("no answer in this text") == 1
    if not question:
        assert "none.txt: cannot be read" in out
        assert "/nothing: /file PATH ... reads other texts" in out
        assert list(typed) == ["When?"]  # an empty line ended the session

"""Commands with ``--data`` accept every kind of source with passages and list them in their help."""

from __future__ import annotations

import json

import pytest

from qa_arch.data.sources import open_passages, usage
from qa_arch.records import read_record

TEXT = "Odo built the mill by the ferry."
ANSWERS = {"q1": "Odo", "q2": "mill", "q3": "ferry", "q4": "built the mill"}


@pytest.fixture
def source(tmp_path) -> str:
    """An MRQA file with one question about each passage."""
    lines: list[dict] = [{"header": {"dataset": "Small"}}]
    for id_, text in ANSWERS.items():
        start = TEXT.index(text)
        answer = {"text": text, "char_spans": [[start, start + len(text) - 1]]}
        question = {"qid": id_, "question": "What?", "detected_answers": [answer]}
        lines.append({"context": f"{TEXT} {id_}", "qas": [question]})
    (tmp_path / "small.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return f"mrqa:{tmp_path / 'small.jsonl'}"


def test_commands_without_a_model(qa_arch, source, tmp_path):
    code, out, err = qa_arch("stats", "--data", source, "--json")
    assert (code, json.loads(out)["examples"]) == (0, len(ANSWERS)), err
    parts = tmp_path / "parts"
    code, _, err = qa_arch("data", "split", "--data", source, "--parts", "a=0.5", "b=0.5", "--out", parts)
    assert code == 0, err
    assert sum(len(open_passages(str(parts / f"{part}.json"))) for part in "ab") == len(ANSWERS)
    (tmp_path / "gold.json").write_text(json.dumps(ANSWERS))
    code, out, err = qa_arch("evaluate", "--data", source, "--predictions", tmp_path / "gold.json")
    assert code == 0, err
    assert json.loads(out)["f1"] == 100


def test_commands_with_a_model(qa_arch, source, run_folder, tmp_path):
    code, _, err = qa_arch("predict", run_folder, "--data", source, "--out", tmp_path / "out")
    assert code == 0, err
    assert set(json.loads((tmp_path / "out" / "predictions.json").read_text())) == set(ANSWERS)
    code, _, err = qa_arch("evaluate", "--run", run_folder, "--data", source, "--allow-overlap")
    assert code == 0, err
    assert len(ANSWERS) in {facts.questions for facts in read_record(run_folder).data.values()}


@pytest.mark.parametrize("command", ["predict", "evaluate", "stats", "report", "compare", "show"])
def test_help_names_every_kind_of_source(qa_arch, command):
    code, out, _ = qa_arch(command, "--help")
    assert code == 0
    assert usage().replace(" ", "") in "".join(out.split())

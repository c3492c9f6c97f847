"""What is scored is what is served: the answers of ``evaluate`` and its confidences, question by question."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qa_arch import load
from qa_arch.cli.main import main
from qa_arch.config.files import json_items, write_json
from qa_arch.data.squad import write
from qa_arch.records import CALIBRATION, read_questions, read_record
from qa_arch.results.questions import load_questions


@pytest.mark.parametrize("name", ["span_run", "sequence_run"])
def test_a_reader_answers_as_evaluate_does_to_the_byte_and_is_as_confident(
    request, name, question_set, tmp_path
):
    run = Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "run"))
    data = write_json(tmp_path / "served.json", write(question_set))
    assert main(["evaluate", "--run", str(run), "--data", str(data)]) == 0
    qa, scored = load(run, device="cpu"), run / "sets" / "served"
    answers = list(qa.stream((example.question, example.context) for example in question_set.examples))
    assert {bool(answer) for answer in answers} == {True, False}
    with json_items(tmp_path / "answers.json") as add:
        for example, answer in zip(question_set.examples, answers, strict=True):
            add(example.id, answer.text)
    assert (tmp_path / "answers.json").read_bytes() == (scored / "predictions.json").read_bytes()
    assert qa.temperature == read_record(run).temperature == 1.7
    for answer, confidence in zip(answers, read_questions(scored)["confidence"], strict=True):
        assert answer.confidence == pytest.approx(confidence, abs=1e-4)


def test_a_record_without_a_temperature_has_1(span_run, tmp_path):
    run = Path(shutil.copytree(span_run, tmp_path / "run"))
    rows = load_questions(run, read_record(run), CALIBRATION)
    assert rows.confidence is not None
    assert ((rows.confidence > 0) & (rows.confidence <= 1)).all()
    raw = json.loads((run / "run.json").read_text())
    del raw["confidence"]
    write_json(run / "run.json", raw)
    assert load(run, device="cpu").temperature == read_record(run).temperature == 1.0

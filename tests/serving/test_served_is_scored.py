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
from qa_arch.records import CALIBRATION, read_questions, read_record, write_record
from qa_arch.results.questions import load_questions

RUNS = ("span_run", "sequence_run")


@pytest.fixture(params=RUNS)
def evaluated(request, question_set, tmp_path) -> tuple[Path, Path]:
    """A run, and the folder of what ``qa-arch evaluate`` wrote of ``question_set``."""
    run = Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "run"))
    data = write_json(tmp_path / "served.json", write(question_set))
    assert main(["evaluate", "--run", str(run), "--data", str(data)]) == 0
    return run, run / "sets" / "served"


def test_a_reader_answers_as_the_predictions_of_evaluate_byte_for_byte(evaluated, question_set, tmp_path):
    run, scored = evaluated
    pairs = ((example.question, example.context) for example in question_set.examples)
    answers = list(load(run, device="cpu").stream(pairs, size=9))
    texts = {e.id: answer.text for e, answer in zip(question_set.examples, answers, strict=True)}
    assert {bool(text) for text in texts.values()} == {True, False}
    with json_items(tmp_path / "served.json") as add:
        for id_, text in texts.items():
            add(id_, text)
    assert (tmp_path / "served.json").read_bytes() == (scored / "predictions.json").read_bytes()


def test_a_reader_is_as_confident_as_the_rows_of_evaluate_say(evaluated, question_set):
    run, scored = evaluated
    qa, columns = load(run, device="cpu"), read_questions(scored)
    assert qa.temperature == read_record(run).temperature == 1.7
    for example, confidence in zip(question_set.examples, columns["confidence"], strict=True):
        assert qa(example.question, example.context).confidence == pytest.approx(confidence, abs=1e-4)


def test_a_temperature_is_read_and_a_record_without_it_has_1(span_run, tmp_path):
    run = Path(shutil.copytree(span_run, tmp_path / "run"))
    raw = json.loads((run / "run.json").read_text())
    assert raw["confidence"] == {"method": "temperature", "value": 1.7, "fitted_on": "calibration"}
    rows = load_questions(run, read_record(run), CALIBRATION)
    assert rows.confidence is not None
    assert ((rows.confidence > 0) & (rows.confidence <= 1)).all()
    del raw["confidence"]
    write_json(run / "run.json", raw)
    old = read_record(run)
    assert old.confidence is None
    assert load(run, device="cpu").temperature == old.temperature == 1.0
    write_record(run, old)
    assert json.loads((run / "run.json").read_text())["confidence"] is None

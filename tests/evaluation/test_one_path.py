"""Scoring after training and by ``evaluate --run`` leaves the same scores, rows and files."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from qa_arch.adopt import adopt_model
from qa_arch.config.compose import compose
from qa_arch.config.schema import LOSSES, validate
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError
from qa_arch.evaluation import evaluate_run
from qa_arch.qa import task
from qa_arch.qa.loading import load_predictor
from qa_arch.records import (
    CALIBRATION,
    DEV,
    QUESTIONS,
    Confidence,
    questions_folder,
    read_questions,
    read_record,
    write_record,
)
from qa_arch.training.run import train

RUNS = {
    "span": ["model=bert", "encoder.initializer_range=0.3", "trainer.precision=bf16"],
    "sequence": ["model=match_lstm/sequence", "glove=none", "encoder.width=8", "model.hidden=6"],
}
FILES = ["predictions.json", "null_odds.json"]


@pytest.fixture(scope="module", params=RUNS)
def trained(request, few_questions, tmp_path_factory) -> tuple[str, Path]:
    """Name of each task and a finished run of it."""
    name = request.param
    settings = [
        "debug=fast",
        *RUNS[name],
        *few_questions,
        "features.cache_dir=null",
        "trainer.progress=false",
    ]
    folder = tmp_path_factory.mktemp(name) / "run"
    assert train(validate(compose(settings)), folder=folder).status == "ok"
    return name, folder


def unwatched():
    return nullcontext(lambda done, total: None)


def evaluate(folder: Path, **options):
    """Points of ``evaluate --run`` in the precision the run was trained in."""
    precision = read_record(folder).precision
    load = partial(load_predictor, folder, device="cpu", precision=precision)
    record, split = evaluate_run(folder, load, unwatched, **options)
    return record.scores[split]


def test_every_task_has_a_run():
    assert set(RUNS) == set(LOSSES)


def test_evaluate_reproduces_the_results_of_training(trained):
    _, folder = trained
    record = read_record(folder)
    files = {file: (folder / file).read_bytes() for file in FILES}
    rows = read_questions(folder)
    data = {**record.data, DEV: replace(record.data[DEV], name="first name")}
    scores = {CALIBRATION: record.scores[CALIBRATION]}
    write_record(folder, replace(record, scores=scores, references={}, data=data))
    for file in (*FILES, QUESTIONS):
        (folder / file).unlink()
    points = evaluate(folder)
    rescored = read_record(folder)
    assert points == rescored.scores[DEV] == record.scores[DEV]
    assert rescored.references.get(DEV, {}) == record.references[DEV]
    assert len(record.references[DEV]) > 1
    assert rescored.data == data
    assert rescored.threshold == record.threshold
    assert {file: (folder / file).read_bytes() for file in FILES} == files
    assert read_questions(folder) == rows
    rows = questions_folder(folder, CALIBRATION)  # calibration has rows but no prediction files
    assert [path.name for path in rows.iterdir()] == [QUESTIONS]
    assert len(read_questions(rows)["id"]) == read_record(folder).data[CALIBRATION].questions
    assert read_record(folder).threshold is not None


def test_references_of_another_task_are_refused_before_training(tmp_path):
    ranker = "+references.mine._target_=qa_arch.nn.losses.SpanLoss"
    config = validate(compose(["debug=fast", "model=bert", ranker]))
    with pytest.raises(ConfigError, match=r"references\.mine: SpanLoss has no method predict"):
        train(config, folder=tmp_path)
    config = validate(compose(["debug=fast", "model=bert", "+references.random-span.sead=1"]))
    with pytest.raises(ConfigError, match=r"unknown setting 'references\.random-span\.sead'"):
        train(config, folder=tmp_path)


def test_another_decoder_has_its_own_threshold(trained, tmp_path):
    """It finds other spans, to whose null odds the run's threshold does not apply."""
    name, folder = trained
    if name == "sequence":  # has no search
        return
    greedy, original = tmp_path / "greedy", read_record(folder)
    load = partial(load_predictor, folder, device="cpu", precision=original.precision)
    decode = "greedy", compose(["decode=greedy"])["decode"]
    adopt_model([str(folder)], greedy, load, unwatched, decode=decode)
    points = evaluate(greedy)
    record = read_record(greedy)
    predictor = load_predictor(folder, device="cpu", precision=original.precision)
    predictor.config = validate(record.config)
    calibration = open_passages(predictor.config.data.calibration)
    outputs = predictor.rank(calibration)
    fits = task.fit(calibration, outputs)
    fitted = fits.threshold.value
    assert record.null_threshold == points["calibrated"].threshold == fitted != original.null_threshold
    assert record.temperature == fits.confidence.value != original.temperature
    assert record.threshold.fitted_on == CALIBRATION
    assert record.answerability is not None


def test_temperature_is_fitted_on_calibration_at_the_threshold(trained):
    """It is fitted to the answers given at the threshold, and the rows hold the resulting confidence."""
    _, folder = trained
    record = read_record(folder)
    rows = read_questions(questions_folder(folder, CALIBRATION))
    predictor = load_predictor(folder, device="cpu", precision=record.precision)
    calibration = open_passages(predictor.config.data.calibration)
    outputs = predictor.rank(calibration)
    correct = np.array(rows["exact"]) > 0
    expected = outputs.fit_temperature(correct, predictor.null_threshold)
    assert record.confidence == Confidence(method="temperature", value=expected, fitted_on=CALIBRATION)
    assert predictor.temperature == expected != 1.0
    confidence = outputs.confidence(predictor.null_threshold, expected)
    assert rows["confidence"] == pytest.approx(confidence.tolist(), abs=1e-5)
    answers = [answer.at(predictor.null_threshold) for answer in outputs.predictions()]
    assert [answer is None for answer in answers] == rows["abstained"]

"""Scoring after training and by ``evaluate --run`` leaves the same scores, rows and files."""

import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from qa_arch.adopt import adopt_model
from qa_arch.cli.compose import compose
from qa_arch.config.schema import task_entries, validate
from qa_arch.errors import ConfigError
from qa_arch.evaluation import evaluate_run
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
from qa_arch.spans.loading import load_predictor
from qa_arch.tasks import task_named
from qa_arch.training.run import train

ROOT = Path(__file__).parents[2]
RUNS = {
    "span": ["model=bert", "encoder.initializer_range=0.3", "trainer.precision=bf16"],
    "sequence": ["model=match_lstm/sequence", "glove=none", "encoder.width=8", "model.hidden=6"],
    "selection": ["model=qa_lstm/c", "model.hidden=5", "glove.dim=6"],
    "classification": ["model=question_types", "data=question_types", "model.hidden=5", "glove.dim=6"],
    "masked_lm": ["model=pretrain/mlm_nsp"],
    "causal_lm": ["model=pretrain/causal"],
    "masked_spans": ["model=pretrain/mlm_spans"],
}
SPANS, RANKED = ["predictions.json", "null_odds.json"], ["selections.json"]
FILES = {"span": SPANS, "sequence": SPANS, "selection": RANKED, "classification": RANKED}


@pytest.fixture(scope="module", params=[name for name in RUNS if name in task_entries()])
def trained(request, few_questions, tmp_path_factory) -> tuple[str, Path]:
    """Name of each task and a finished run of it."""
    name = request.param
    sets = [] if name == "classification" else few_questions
    settings = ["debug=fast", *RUNS[name], *sets, "features.cache_dir=null", "trainer.progress=false"]
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
    assert set(RUNS) >= set(task_entries())
    assert [task_named(name).name for name in task_entries()] == list(task_entries())


def test_evaluate_reproduces_the_results_of_training(trained):
    name, folder = trained
    record = read_record(folder)
    files = {file: (folder / file).read_bytes() for file in FILES.get(name, [])}
    rows = read_questions(folder)
    data = {**record.data, DEV: replace(record.data[DEV], name="first name")}
    scores = {CALIBRATION: record.scores[CALIBRATION]}
    write_record(folder, replace(record, scores=scores, references={}, data=data))
    for file in (*FILES.get(name, []), QUESTIONS):
        (folder / file).unlink()
    points = evaluate(folder)
    rescored = read_record(folder)
    assert points == rescored.scores[DEV] == record.scores[DEV]
    assert rescored.references.get(DEV, {}) == record.references[DEV]
    assert len(record.references[DEV]) > 1 or task_named(name).reference_method is None
    assert rescored.data == data
    assert rescored.threshold == record.threshold
    assert {file: (folder / file).read_bytes() for file in FILES.get(name, [])} == files
    assert read_questions(folder) == rows
    rows = questions_folder(folder, CALIBRATION)  # calibration has rows but no prediction files
    assert [path.name for path in rows.iterdir()] == [QUESTIONS]
    facts = read_record(folder).data[CALIBRATION]
    assert len(read_questions(rows)["id"]) == (facts.questions or facts.windows)
    assert task_named(name).has_null == (read_record(folder).threshold is not None)


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
    if not task_named(name).has_search:
        return
    greedy, original = tmp_path / "greedy", read_record(folder)
    load = partial(load_predictor, folder, device="cpu", precision=original.precision)
    decode = "greedy", compose(["decode=greedy"])["decode"]
    adopt_model([str(folder)], greedy, load, unwatched, decode=decode)
    points = evaluate(greedy)
    record = read_record(greedy)
    predictor = load_predictor(folder, device="cpu", precision=original.precision)
    predictor.config = validate(record.config)
    task, calibration = task_named(name), task_named(name).open(predictor.config.data.calibration)
    outputs = predictor.read(calibration)
    fits = task.fit(calibration, outputs)
    fitted = fits.threshold.value
    assert record.null_threshold == points["calibrated"].threshold == fitted != original.null_threshold
    assert record.temperature == fits.confidence.value != original.temperature
    assert record.threshold.fitted_on == CALIBRATION
    assert record.answerability is not None


def test_task_names_are_compared_only_in_tasks():
    names = "|".join(task_entries())
    pattern = re.compile(rf"(==|!=|\bin) ?\(?['\"]({names})['\"]|SELECTING")
    hits = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "qa_arch").rglob("*.py"))
        if not {"tasks", "extras"} & set(path.relative_to(ROOT).parts)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []


def test_temperature_is_fitted_on_calibration_at_the_threshold(trained):
    """It is fitted to the answers given at the threshold, and the rows hold the resulting confidence."""
    name, folder = trained
    record = read_record(folder)
    rows = read_questions(questions_folder(folder, CALIBRATION))
    if not task_named(name).has_null:
        assert record.confidence is None
        assert "confidence" not in rows
        return
    predictor = load_predictor(folder, device="cpu", precision=record.precision)
    calibration = task_named(name).open(predictor.config.data.calibration)
    outputs = predictor.read(calibration)
    correct = np.array(rows["exact"]) > 0
    expected = outputs.fit_temperature(correct, predictor.null_threshold)
    assert record.confidence == Confidence(method="temperature", value=expected, fitted_on=CALIBRATION)
    assert predictor.temperature == expected != 1.0
    confidence = outputs.confidence(predictor.null_threshold, expected)
    assert rows["confidence"] == pytest.approx(confidence.tolist(), abs=1e-5)
    answers = [answer.at(predictor.null_threshold) for answer in outputs.predictions()]
    assert [answer is None for answer in answers] == rows["abstained"]

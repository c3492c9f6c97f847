"""Scoring has one path: the end of training and ``evaluate --run`` leave the same scores, rows and files."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qa_arch.cli.compose import compose
from qa_arch.config.files import write_json
from qa_arch.config.schema import TASKS, validate
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError
from qa_arch.evaluation.trained_runs import Request, evaluate_runs
from qa_arch.results.question_rows import questions_folder
from qa_arch.results.record import QUESTIONS, read_questions, read_record, write_record
from qa_arch.tasks import task_named
from qa_arch.tasks.loading import load_predictor
from qa_arch.training.run import train
from qa_arch.types.records import CALIBRATION, DEV, Confidence

ROOT = Path(__file__).parents[2]
RUNS = {
    "span": ["model=bert", "encoder.initializer_range=0.3", "trainer.precision=bf16"],
    "sequence": ["model=match_lstm/sequence", "glove=none", "encoder.width=8", "model.hidden=6"],
    "selection": ["model=qa_lstm/c", "model.hidden=5", "glove.dim=6"],
    "classification": ["model=question_types", "data=question_types", "model.hidden=5", "glove.dim=6"],
    "masked_lm": ["model=pretrain/mlm_nsp"],
    "causal_lm": ["model=pretrain/causal"],
    "denoising": ["model=pretrain/denoising", "model.layers=1"],
}
FILES = {
    "span": ["predictions.json", "nbest_predictions.json", "null_odds.json"],
    "sequence": ["predictions.json", "nbest_predictions.json", "null_odds.json"],
    "selection": ["selections.json"],
    "classification": ["selections.json"],
    "masked_lm": [],
    "causal_lm": [],
    "denoising": [],
}


@pytest.fixture(scope="module")
def small_sets(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("sets")
    for split, articles in (("train", 2), (CALIBRATION, 1), (DEV, 1)):
        write_json(folder / f"{split}.json", write(generate(articles, 3, 1, split)))
    return [f"data.{split}={folder}/{split}.json" for split in ("train", CALIBRATION, DEV)]


@pytest.fixture(scope="module", params=RUNS)
def trained(request, small_sets, tmp_path_factory) -> tuple[str, Path]:
    """Each task's name and a finished run of it."""
    name = request.param
    sets = [] if name == "classification" else small_sets
    settings = ["debug=fast", *RUNS[name], *sets, "features.cache_dir=null", "trainer.progress=false"]
    folder = tmp_path_factory.mktemp(name) / "run"
    assert train(validate(compose(settings)), folder=folder).status == "ok"
    return name, folder


def evaluated(folder: Path, **options):
    """The points of ``evaluate --run``, in the precision that the run was trained in."""
    precision = read_record(folder).precision
    request = Request(runs=[str(folder)], **options)
    return evaluate_runs(
        request,
        lambda: load_predictor(folder, device="cpu", precision=precision),
        lambda: nullcontext(lambda done, total: None),
    )


def test_every_task_has_a_run_here():
    assert set(RUNS) == set(TASKS)
    assert [task_named(name).name for name in TASKS] == list(TASKS)


def test_evaluating_again_gives_what_training_left(trained):
    name, folder = trained
    record = read_record(folder)
    files = {file: (folder / file).read_bytes() for file in FILES[name]}
    rows = read_questions(folder)
    write_record(folder, replace(record, scores={CALIBRATION: record.scores[CALIBRATION]}, references={}))
    for file in (*FILES[name], QUESTIONS):
        (folder / file).unlink()
    points = evaluated(folder)
    again = read_record(folder)
    assert points == again.scores[DEV] == record.scores[DEV]
    assert again.references.get(DEV, {}) == record.references[DEV]
    assert len(record.references[DEV]) > 1 or task_named(name).reference_method is None
    assert again.data[DEV] == record.data[DEV]
    assert again.threshold == record.threshold
    assert {file: (folder / file).read_bytes() for file in FILES[name]} == files
    assert read_questions(folder) == rows


def test_calibration_keeps_its_rows_and_leaves_no_predictions(trained):
    name, folder = trained
    rows = questions_folder(folder, CALIBRATION)
    assert [path.name for path in rows.iterdir()] == [QUESTIONS]
    facts = read_record(folder).data[CALIBRATION]
    assert len(read_questions(rows)["id"]) == (facts.questions or facts.windows)
    assert task_named(name).has_null == (read_record(folder).threshold is not None)


def test_weights_are_cast_alike_when_a_run_ends_and_when_it_is_loaded(trained):
    """What is scored at the end is what ``load`` gives: the same type at every parameter."""
    name, folder = trained
    config = validate(read_record(folder).config)
    task = task_named(name)
    ended = task.predictor(config, task.assemble(config)).model
    loaded = load_predictor(folder, device="cpu", precision=config.trainer.precision).model
    types = {key: value.dtype for key, value in loaded.state_dict().items()}
    assert {key: value.dtype for key, value in ended.state_dict().items()} == types
    assert (torch.bfloat16 in types.values()) == (name == "span")


def test_references_are_those_of_the_config(trained):
    _, folder = trained
    config = validate(read_record(folder).config)
    assert list(read_record(folder).references.get(DEV, {})) == list(config.references)


def test_references_of_another_task_are_refused_before_anything_is_read(tmp_path):
    config = validate(compose(["debug=fast", "model=bert", "references=candidates"]))
    with pytest.raises(ConfigError, match=r"references\.random-order: RandomOrder cannot predict"):
        train(config, folder=tmp_path)
    config = validate(compose(["debug=fast", "model=bert", "+references.random-span.sead=1"]))
    with pytest.raises(ConfigError, match=r"unknown setting 'references\.random-span\.sead'"):
        train(config, folder=tmp_path)


def test_a_given_margin_is_an_operating_point_of_its_own(trained):
    name, folder = trained
    if not task_named(name).has_null:
        return
    points = evaluated(folder, null_threshold=-1e6)

    assert points["given"].threshold == -1e6
    assert points["given"].metric("HasAns_f1") == 0.0


def test_no_task_is_known_by_name_outside_its_package():
    """What depends on what is asked stands in ``tasks/``: nobody else compares a task's name."""
    names = "|".join(TASKS)
    pattern = re.compile(rf"(==|!=|\bin) ?\(?['\"]({names})['\"]|SELECTING")
    hits = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "qa_arch").rglob("*.py"))
        if "tasks" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []


def test_commands_score_nothing():
    """``cli`` takes arguments and prints: it builds no points and reads out no model."""
    banned = re.compile(
        r"operating_points|question_rows\(|fit_null_margin|score_points|write_questions|set_facts"
    )
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "qa_arch/cli").glob("*.py")}
    assert sources
    assert [path.name for path, text in sources.items() if banned.search(text)] == []


def test_points_are_printed_flat(trained, capsys):
    from qa_arch.cli.main import main

    _, folder = trained
    assert main(["evaluate", "--run", str(folder), "--device", "cpu"]) == 0
    printed = json.loads(capsys.readouterr().out)
    recorded = read_record(folder).scores[DEV]
    assert printed == {name: point.flat() for name, point in recorded.items()}


def test_the_temperature_is_fitted_where_the_threshold_is(trained):
    """Both on calibration, of the answers given at the threshold; the rows hold what comes of it."""
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
    right = np.array(rows["exact"]) > 0
    expected = outputs.fit_temperature(right, predictor.null_threshold)
    assert record.confidence == Confidence(method="temperature", value=expected, fitted_on=CALIBRATION)
    assert predictor.temperature == expected != 1.0
    confidence = outputs.confidence(predictor.null_threshold, expected)
    assert rows["confidence"] == pytest.approx(confidence.tolist(), abs=1e-5)
    given = [answer.at(predictor.null_threshold) for answer in outputs.predictions()]
    assert [answer is None for answer in given] == rows["abstained"]

"""Threshold, answerability and temperature fitted on calibration after training, and their record."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import Calibration, validate
from qa_arch.data.synthetic import generate
from qa_arch.evaluation import calibrate, predict, score
from qa_arch.metrics.abstention import answerable_probability, fit_answerability, fit_threshold, reliability
from qa_arch.qa import task
from qa_arch.records import CALIBRATION, RunRecord, SplitFacts, read_record, write_record
from qa_arch.results.columns import runs_table
from qa_arch.results.systems import load_questions
from qa_arch.types import Candidate, Prediction

QUESTIONS = generate(4, 5, 1, "calibration")
TABLE = type("Table", (), {"__len__": lambda self: 9, "truncated_questions": 0, "lost_answers": 0})()


def predictions(questions) -> list[Prediction]:
    """Gold spans or the first letter, with null odds correlated with answerability."""
    rng, results = np.random.default_rng(0), []
    for example in questions.examples:
        gold = example.answers[0] if example.answers and rng.random() < 0.7 else None
        start, end = (gold.start, gold.end) if gold else (0, 1)
        best = Candidate(example.context[start:end], start, end, 0.0, 0.5)
        results.append(Prediction(example.id, best, rng.normal(-1 if example.answerable else 1, 2), 1))
    return results


def calibrated_record(folder, prior, questions=QUESTIONS, fit="exact"):
    """Record of a span model with these predictions, calibrated for ``prior``."""
    config = validate(compose(["experiment=demo"]))
    config = replace(config, calibration=Calibration(prior, fit), references={})
    outputs = SimpleNamespace(
        best_predictions=predictions(questions),
        fit_temperature=lambda right, threshold: 1.0,
        confidence=lambda threshold, temperature: np.ones(len(questions)),
    )
    predictor = SimpleNamespace(
        config=config, engine="torch fp32", null_threshold=0.0, temperature=1.0, rank=lambda *_, **__: outputs
    )
    reading = predict(predictor, questions, table=TABLE)
    fits = calibrate(predictor, reading)
    points, rows = score(predictor, reading, folder, split=CALIBRATION)
    record = RunRecord(
        status="ok",
        name="trial",
        model="made",
        seed=1,
        config={},
        settings_hash="c",
        run_hash="c",
        data={CALIBRATION: SplitFacts(fingerprint="f", protocol="2.0", questions=len(questions))},
        scores={CALIBRATION: points},
        rows={CALIBRATION: rows},
        **vars(fits),
    )
    write_record(folder, record)
    return read_record(folder)


@pytest.mark.parametrize("prior", [None, 0.1, 0.9])
def test_threshold_and_probability_are_fitted_for_the_prior(prior, tmp_path):
    record = calibrated_record(tmp_path, prior)
    rows = load_questions(tmp_path, record, CALIBRATION)
    columns = rows.null_odds.tolist(), rows.span_f1.tolist(), rows.answerable.tolist()
    assert record.threshold.value == pytest.approx(fit_threshold(*columns, prior))
    fitted = fit_answerability(rows.null_odds, rows.answerable, prior)
    assert (record.answerability.slope, record.answerability.intercept) == pytest.approx(fitted, rel=1e-3)
    assert (record.threshold.prior, record.answerability.prior) == (prior, prior)
    assert (record.threshold.fitted_on, record.answerability.fitted_on) == (CALIBRATION, CALIBRATION)
    note = "" if prior is None else f", its unanswerable questions counted as {prior:.0%}"
    table = runs_table([(tmp_path, record)], split=CALIBRATION)
    assert f"null threshold fitted on calibration{note}" in table.notes


def test_smooth_fit_is_recorded_and_noted(tmp_path):
    record = calibrated_record(tmp_path, 0.5, fit="smooth")
    rows = load_questions(tmp_path, record, CALIBRATION)
    columns = rows.null_odds.tolist(), rows.span_f1.tolist(), rows.answerable.tolist()
    assert record.threshold.width == 0.15
    assert record.threshold.value == pytest.approx(fit_threshold(*columns, 0.5, 0.15))
    assert record.threshold.value != pytest.approx(fit_threshold(*columns, 0.5))
    (note,) = [n for n in runs_table([(tmp_path, record)], split=CALIBRATION).notes if "fitted on" in n]
    assert note.endswith("counted as 50%, F1 smoothed over 0.15 s.d. of the null odds")


def test_answerable_ece_column_matches_the_fit(tmp_path):
    record = calibrated_record(tmp_path, None)
    rows = load_questions(tmp_path, record, CALIBRATION)
    probability = answerable_probability(rows.null_odds, *fit_answerability(rows.null_odds, rows.answerable))
    expected = reliability(probability, rows.answerable).ece
    columns = ("model", "f1", "answerable_ece")
    (row,) = runs_table([(tmp_path, record)], split=CALIBRATION, columns=columns).rows
    assert row["answerable_ece"] == pytest.approx(expected, abs=0.2)
    uncalibrated = replace(record, answerability=None)
    (row,) = runs_table([(tmp_path, uncalibrated)], split=CALIBRATION, columns=columns).rows
    assert row["answerable_ece"] is None


@pytest.mark.parametrize(("answerable", "kind"), [(True, "answerable"), (False, "unanswerable")])
def test_threshold_fitted_on_a_single_kind_of_question_says_so(tmp_path, caplog, answerable, kind):
    """In log, record and table."""
    examples = tuple(example for example in QUESTIONS.examples if example.answerable == answerable)
    record = calibrated_record(tmp_path, None, replace(QUESTIONS, examples=examples))
    assert record.threshold.fitted_on == f"calibration, all {kind}"
    assert f"the questions are all {kind}, so the null threshold" in caplog.text
    table = runs_table([(tmp_path, record)], split=CALIBRATION)
    assert f"null threshold fitted on calibration, all {kind}" in table.notes


def test_single_kind_of_question_has_no_prior_and_no_answerability(tmp_path):
    answerable = tuple(example for example in QUESTIONS.examples if example.answerable)
    assert 0 < len(answerable) < len(QUESTIONS)
    record = calibrated_record(tmp_path, 0.5, replace(QUESTIONS, examples=answerable))
    assert record.answerability is None
    assert record.threshold.prior is None


def test_forced_auc_is_span_f1_plus_auroc():
    outputs = SimpleNamespace(best_predictions=predictions(QUESTIONS))
    scores = task.validation_scores(QUESTIONS, outputs)
    assert {*scores, "calibration_loss"} == set(task.MONITORED)
    odds = np.array([prediction.null_odds for prediction in outputs.best_predictions])
    answerable = np.array([example.answerable for example in QUESTIONS.examples])
    ordered = odds[answerable][:, None] < odds[~answerable][None]
    assert scores["calibration_auroc"] == pytest.approx(100 * ordered.mean())
    total = scores["calibration_forced_f1"] + scores["calibration_auroc"]
    assert scores["calibration_forced_auc"] == pytest.approx(total)
    all_answerable = replace(
        QUESTIONS, examples=tuple(e for e in QUESTIONS.examples if e.answerable), protocol="1.1"
    )
    outputs = SimpleNamespace(best_predictions=predictions(all_answerable))
    scores = task.validation_scores(all_answerable, outputs)
    assert scores["calibration_forced_auc"] == scores["calibration_f1"]

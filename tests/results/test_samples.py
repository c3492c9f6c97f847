"""Systems question by question: which articles are drawn, and thresholds without one of calibration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qa_arch.metrics.threshold import fit_threshold
from qa_arch.records import CALIBRATION, Runs, find_runs
from qa_arch.results.questions import load_questions
from qa_arch.results.samples import Sample, samples_of
from qa_arch.results.systems import group_by_system

ANSWER = Path(__file__).resolve().parents[2] / "experiments/answer/records"
"""Real records: four articles of calibration, 16 of dev."""


@pytest.fixture(scope="module")
def answer() -> Runs:
    return [run for run in find_runs([ANSWER]) if run[1].seed < 15 and run[1].model in ("bert", "proposed")]


def test_thresholds_are_fitted_without_each_calibration_article(answer):
    systems = group_by_system(answer)
    samples = samples_of(systems, "dev")
    for system in systems:
        fitted = samples.systems[system.label].thresholds
        assert fitted.shape == (2, 4)
        for (folder, record), own in zip(system.runs, fitted, strict=True):
            rows = load_questions(folder, record, CALIBRATION)
            for article, threshold in zip(np.unique(rows.article), own, strict=True):
                rest = rows.article != article
                columns = (rows.null_odds[rest], rows.span_f1[rest], rows.answerable[rest])
                assert threshold == fit_threshold(*(column.tolist() for column in columns), 0.5)


def test_what_calibration_articles_do_is_in_the_tests_that_have_a_threshold(answer):
    samples = samples_of(group_by_system(answer), "dev")
    f1, spans = (samples.effect("bert", "proposed", measure).variance for measure in ("f1", "spans"))
    assert (f1.calibration_units, spans.calibration_units) == (4, 0)
    scores = {
        label: [sample.left_out("f1", samples.where("f1"))] for label, sample in samples.systems.items()
    }
    left_out = np.concatenate(scores["proposed"]) - np.concatenate(scores["bert"])
    assert f1.calibration_variance == pytest.approx(3 / 4 * ((left_out - left_out.mean()) ** 2).sum())
    by_hand = []
    for rows, thresholds in zip(
        samples.systems["bert"].rows, samples.systems["bert"].thresholds, strict=True
    ):
        abstained = rows.null_odds > thresholds[0]
        by_hand.append(100 * np.where(abstained, ~rows.answerable, rows.span_f1).mean())
    assert scores["bert"][0][0] == pytest.approx(np.mean(by_hand))


def test_rows_that_were_scored_at_another_threshold_are_not_fitted_again(answer):
    (folder, record), *_ = answer
    rows = load_questions(folder, record)
    assert Sample([record], [rows]).thresholds is not None
    elsewhere = replace(rows, f1=np.where(rows.null_odds > 50, ~rows.answerable, rows.span_f1))
    assert Sample([record], [elsewhere]).thresholds is None


def test_power_of_planned_experiments_follows_the_records(answer, qa_arch):
    arguments = ("--seeds", "5,40", "--articles", "16,500", "--measure", "spans", "--json")
    code, out, error = qa_arch("power", ANSWER, "--baseline", "bert", *arguments)
    assert (code, error) == (0, "")
    (table,) = json.loads(out)
    rows = {(row["model"], row["units"], row["seeds"]): row for row in table["rows"]}
    own = samples_of(group_by_system(find_runs([ANSWER])), "dev").effect("bert", "proposed", "spans")
    assert rows["proposed", 16, 5]["detectable"] == pytest.approx(own.detectable, rel=1e-4)
    assert rows["proposed", 16, 5]["at_0.5"] < rows["proposed", 16, 5]["at_1"]
    assert rows["proposed", 500, 40]["detectable"] < rows["proposed", 16, 40]["detectable"]
    assert rows["proposed", 500, 40]["at_2"] > 99 > rows["ablation_together", 16, 5]["at_2"] > 50
    assert qa_arch("power", ANSWER, "--baseline", "bert", "--seeds", "1")[0] == 2

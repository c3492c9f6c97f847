"""Systems question by question: thresholds without one calibration article, their variance, and power."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qa_arch.errors import RunError
from qa_arch.metrics.abstention import fit_threshold
from qa_arch.records import CALIBRATION, Runs, find_runs, write_record
from qa_arch.results.compare import effects_table, power_table
from qa_arch.results.effects import Sample, _jackknife_thresholds, _scores_at_threshold, samples_of
from qa_arch.results.systems import System, group_by_system, load_questions

ANSWER = Path(__file__).resolve().parents[2] / "experiments/answer/records"
"""Real records: 4 calibration articles and 16 dev articles."""


@pytest.fixture(scope="module")
def answer() -> Runs:
    return [run for run in find_runs([ANSWER]) if run[1].seed < 15 and run[1].model in ("bert", "proposed")]


def test_thresholds_are_fitted_leaving_out_each_calibration_article(answer):
    systems = group_by_system(answer)
    samples = samples_of(systems, "dev")
    for system in systems:
        fitted = samples.systems[system.label].thresholds
        assert fitted.shape == (2, 4)
        for (folder, record), by_article in zip(system.runs, fitted, strict=True):
            rows = load_questions(folder, record, CALIBRATION)
            for article, threshold in zip(np.unique(rows.article), by_article, strict=True):
                rest = rows.article != article
                columns = (rows.null_odds[rest], rows.span_f1[rest], rows.answerable[rest])
                assert threshold == fit_threshold(*(column.tolist() for column in columns), 0.5)


def test_thresholds_are_left_out_as_they_were_fitted(answer):
    (folder, record), *_ = answer
    rows = load_questions(folder, record, CALIBRATION)

    def fitted(where, width):
        columns = (rows.null_odds[where], rows.span_f1[where], rows.answerable[where])
        return fit_threshold(*(column.tolist() for column in columns), 0.5, width)

    smooth = replace(record.threshold, value=fitted(np.ones(len(rows), dtype=bool), 0.15), width=0.15)
    rescored = replace(rows, f1=_scores_at_threshold(rows, "f1", smooth.value))
    left_out = _jackknife_thresholds(replace(record, threshold=smooth), rescored)
    assert left_out.tolist() == [fitted(rows.article != one, 0.15) for one in np.unique(rows.article)]


def test_calibration_variance_enters_only_tests_with_a_threshold(answer):
    samples = samples_of(group_by_system(answer), "dev")
    f1, spans = (
        samples.contrast({"bert": -1, "proposed": 1}, measure).variance for measure in ("f1", "forced_f1")
    )
    assert (f1.calibration_units, spans.calibration_units) == (4, 0)
    scores = {
        label: [sample.left_out("f1", samples.where("f1"))] for label, sample in samples.systems.items()
    }
    left_out = np.concatenate(scores["proposed"]) - np.concatenate(scores["bert"])
    assert f1.calibration_variance == pytest.approx(3 / 4 * ((left_out - left_out.mean()) ** 2).sum())
    expected = []
    for rows, thresholds in zip(
        samples.systems["bert"].rows, samples.systems["bert"].thresholds, strict=True
    ):
        abstained = rows.null_odds > thresholds[0]
        expected.append(100 * np.where(abstained, ~rows.answerable, rows.span_f1).mean())
    assert scores["bert"][0][0] == pytest.approx(np.mean(expected))


def test_calibration_articles_are_counted_although_groups_of_them_are_left_out(answer, monkeypatch):
    monkeypatch.setattr("qa_arch.results.effects.GROUPS", 3)
    bert, proposed = group_by_system(answer)
    samples = samples_of([bert, proposed], "dev")
    assert samples.systems["bert"].thresholds.shape == (2, 3)
    assert samples.contrast({"bert": -1, "proposed": 1}, "f1").variance.calibration_units == 4
    assert (
        "over 4 calibration articles;"
        in effects_table(samples_of([bert, proposed], "dev"), bert.label).notes[1]
    )


def test_rows_scored_at_another_threshold_have_no_leave_one_out_thresholds(answer):
    (folder, record), *_ = answer
    rows = load_questions(folder, record)
    assert Sample([record], [rows]).thresholds is not None
    rescored = replace(rows, f1=np.where(rows.null_odds > 50, ~rows.answerable, rows.span_f1))
    assert Sample([record], [rescored]).thresholds is None


def test_power_command_extrapolates_from_the_records(answer, qa_arch):
    arguments = ("--seeds", "5,40", "--articles", "16,500", "--measure", "forced_f1", "--json")
    code, out, error = qa_arch("power", ANSWER, "--baseline", "bert", *arguments)
    assert (code, error) == (0, "")
    (table,) = json.loads(out)
    rows = {(row["model"], row["units"], row["seeds"]): row for row in table["rows"]}
    effect = samples_of(group_by_system(find_runs([ANSWER])), "dev").contrast(
        {"bert": -1, "proposed": 1}, "forced_f1"
    )
    assert rows["proposed", 16, 5]["detectable"] == pytest.approx(effect.detectable, rel=1e-4)
    assert rows["proposed", 16, 5]["at_0.5"] < rows["proposed", 16, 5]["at_1"]
    assert rows["proposed", 500, 40]["detectable"] < rows["proposed", 16, 40]["detectable"]
    assert rows["proposed", 500, 40]["at_2"] > 99 > rows["ablation_together", 16, 5]["at_2"] > 50
    for option in ("--seeds", "--articles", "--calibration-articles"):
        code, _, error = qa_arch("power", ANSWER, "--baseline", "bert", option, "1")
        assert (code, "numbers >= 2" in error) == (2, True)


def test_power_refuses_calibration_articles_that_change_nothing(answer, qa_arch):
    options = ("--baseline", "bert", "--measure", "forced_f1", "--calibration-articles", "8")
    code, _, error = qa_arch("power", ANSWER, *options)
    assert (code, "--calibration-articles: no variance" in error) == (2, True)


def test_power_names_the_runs_it_leaves_out(answer, qa_arch, tmp_path):
    record = answer[0][1]
    write_record(tmp_path / "waiting", replace(record, status="running", scores={}))
    code, out, _ = qa_arch("power", ANSWER, tmp_path, "--baseline", "bert")
    assert (code, f"left out, no scores of dev yet: {tmp_path}/waiting (running)" in out) == (0, True)


def test_note_names_the_systems_whose_threshold_is_taken_as_fixed(answer):
    bert, proposed = group_by_system(answer)
    adopted = [(folder, replace(record, threshold=None)) for folder, record in proposed.runs]
    systems = [bert, proposed, System("silent", tuple(adopted))]
    names = {
        system.label: effects_table(samples_of(systems, "dev"), system.label).notes[1] for system in systems
    }
    fixed = "taken as fixed, its uncertainty ignored"
    assert f"the null threshold over 4 calibration articles (for silent: {fixed});" in names["bert"]
    assert f", the null threshold {fixed};" in names["silent"]


def test_power_names_systems_whose_seed_variance_is_unknown(answer):
    bert, proposed = group_by_system(answer)
    table = power_table(
        samples_of([bert, replace(proposed, runs=proposed.runs[:1])], "dev"), bert.label, runs=(5,)
    )
    note = "variances as those of 2 runs of bert, 1 run of proposed on dev"
    assert table.notes[1:3] == [note, "one run of proposed: seed variance unknown, taken as zero"]


def test_power_refuses_repeated_seeds(answer):
    bert, proposed = group_by_system(answer)
    repeated = replace(bert, runs=(*bert.runs, (Path("copy"), bert.record)))
    with pytest.raises(RunError, match=r"bert: seed 13 occurs twice \(.*, copy\)"):
        power_table(samples_of([repeated, proposed], "dev"), repeated.label, runs=(5,))

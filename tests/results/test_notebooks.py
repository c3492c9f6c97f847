"""Runs in Python: objects, frames and tables of committed records and of a record made here."""

import json
import shutil
from pathlib import Path

import pytest
from broken_records import change_record

import qa_arch
import qa_arch.results.notebooks
from qa_arch.cli.main import main
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.records import RECORD, find_runs, read_record, run_named

ROOT = Path(__file__).resolve().parents[2]
ANSWER = ROOT / "experiments" / "answer" / "records"
DEMO = ROOT / "experiments" / "demo" / "records"
EVIL = '<script>alert("&1")</script>'


@pytest.fixture(scope="module")
def demo() -> qa_arch.Run:
    (folder,) = DEMO.glob("bert-s13-*")
    return qa_arch.Run(folder)


@pytest.fixture
def changed(demo, tmp_path):
    """``changed(**fields)``: a copy of the demo's BERT run with these fields in its record."""

    def copy(name="copy", **fields):
        folder = Path(shutil.copytree(demo.folder, tmp_path / name))
        change_record(folder, **fields)
        return folder

    return copy


def test_frame_rows_match_the_committed_tables():
    frame = qa_arch.runs(ANSWER)
    rows = json.loads((ANSWER.parent / "table.json").read_text())[0]["rows"]
    committed = {row["run"]: row for row in rows if "run" in row}
    assert len(frame) == len(committed) > 10
    for folder, row in frame.iterrows():
        expected = committed[str(Path(str(folder)).relative_to(ANSWER.parent))]
        for key in ("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "null_threshold", "seconds"):
            assert row[key] == expected[key], key


def test_only_varying_settings_have_a_column(changed, demo):
    config = json.loads((demo.folder / RECORD).read_text())["config"]
    config["optim"]["lr"] *= 2
    frame = qa_arch.runs([demo, changed(config=config)])
    assert frame["optim.lr"].tolist()[1] == 2 * frame["optim.lr"].tolist()[0]
    assert [column for column in frame if "." in column] == ["optim.lr"]
    assert frame["system"].nunique() == 2


def test_question_columns_are_optional_and_unscored_runs_have_a_row(demo, changed):
    assert "auroc" not in qa_arch.runs(demo)
    assert 0 < qa_arch.runs(demo, columns="auroc")["auroc"].item() <= 100
    with pytest.raises(RunError, match=r"split: no run was scored on 'test' \(known: calibration, dev"):
        qa_arch.runs(demo, split="test")
    frame = qa_arch.runs(changed(scores={}, status="failed", error="ValueError: no"))
    assert frame["status"].tolist() == ["failed"]
    assert "f1" not in frame


def test_run_has_its_settings_scores_and_curves(demo):
    point = demo.record.compared_point("dev")
    assert demo.scores.loc[("dev", "calibrated"), "f1"] == point.f1
    assert demo.scores.loc[("dev", "calibrated"), "threshold"] == point.threshold
    assert (demo.seed, demo.config["model"]["name"]) == (13, "bert")
    epochs = demo.record.epochs
    assert demo.curves["train_loss"].tolist() == [epoch.train_loss for epoch in epochs]
    assert demo.curves["calibration_f1"].tolist() == [epoch.metrics["calibration_f1"] for epoch in epochs]


def test_question_rows_average_to_the_score(demo):
    questions = demo.questions
    assert questions["f1"].mean() == pytest.approx(demo.record.compared_point("dev").f1)
    assert questions["span_f1"].max() == 100 >= questions["confidence"].max() * 100
    assert questions.index.is_unique
    assert ((questions["outcome"] == "right") == (questions["exact"] == 100)).all()
    false_answer = ~questions["answerable"] & ~questions["abstained"]
    assert ((questions["outcome"] == "false answer") == false_answer).all()
    run = qa_arch.Run(ANSWER / "seed13-bert")
    assert set(run.questions_of("calibration").index).isdisjoint(run.questions.index)


def test_answer_texts_come_from_the_scored_set(demo):
    questions = demo.questions_of(data="synthetic:dev")
    answered = questions[~questions["abstained"]]
    right = answered[answered["exact"] == 100]
    assert len(right) > 20
    assert all(row.answer in row.gold for row in right.itertuples())
    assert (questions[questions["abstained"]]["answer"] == "").all()
    assert [len(gold) > 0 for gold in questions["gold"]] == questions["answerable"].tolist()
    with pytest.raises(DataError, match="not the questions that the runs were scored on"):
        demo.questions_of(data="synthetic:calibration")


def test_question_rows_of_another_record_are_refused(changed, demo):
    data = json.loads((demo.folder / RECORD).read_text())["data"]
    data["dev"]["questions"] += 1
    with pytest.raises(RunError, match="do not belong together"):
        _ = qa_arch.Run(changed(data=data)).questions
    with pytest.raises(RunError, match="missing"):
        demo.questions_of("other")


def test_comparison_equals_the_committed_table():
    table = qa_arch.effects(ANSWER, "bert")
    frame = table.to_frame().set_index("model")
    assert frame.loc["proposed", "delta"] == {row["model"]: row for row in table.rows}["proposed"]["delta"]
    assert table.rows == json.loads((ANSWER.parent / "table.json").read_text())[1]["rows"]
    with pytest.raises(RunError, match="no system is called 'brt'"):
        qa_arch.effects(ANSWER, "brt")
    for option, value in (("measure", "F1"), ("unit", "articles")):
        with pytest.raises(ConfigError, match=f"{option}: '{value}' is not a choice"):
            qa_arch.effects(ANSWER, "bert", **{option: value})


def test_run_is_path_like_and_has_a_one_line_repr(demo):
    run = qa_arch.Run(demo.folder / RECORD)
    assert (Path(run), run.record) == (demo.folder, demo.record)
    point = demo.record.compared_point("dev")
    assert f"bert, seed 13, ok: dev EM {point.exact:.1f}, F1 {point.f1:.1f}" in repr(demo)
    assert len(repr(demo.record)) < 100
    assert "F1" in demo._repr_html_()
    with pytest.raises(RunError, match="no such run folder"):
        qa_arch.Run(DEMO / "nothing")


def test_the_beginning_of_a_name_is_enough(demo, tmp_path, monkeypatch):
    for name in ("trial/bert-s1", "trial/bert-s2", "other/proposed-s1", "other/deep/bert-x-s1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        shutil.copy(demo.folder / RECORD, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(qa_arch.results.notebooks, "read_scored", read_record)  # without their questions
    for name, folder in {
        "prop": "other/proposed-s1",
        "bert-x": "other/deep/bert-x-s1",
        "runs/trial/bert-s2": "trial/bert-s2",
        "runs/other/p": "other/proposed-s1",
    }.items():
        assert qa_arch.Run(name).folder == Path("runs", folder)
        assert [path for path, _ in find_runs([name], read_run=read_record)] == [Path("runs", folder)]
    several = "bert-s: begins the names of 2 runs; name one: runs/trial/bert-s1, runs/trial/bert-s2"
    for use in (qa_arch.Run, lambda name: find_runs([name]), qa_arch.load, run_named):
        with pytest.raises(RunError, match=several):
            use("bert-s")
    assert main(["show", "bert-s"]) == RunError.exit_code
    assert run_named("albert") == "albert"
    with pytest.raises(RunError, match="no such run folder"):
        qa_arch.Run("albert")


def test_html_in_a_record_is_escaped(changed):
    run = qa_arch.Run(changed(EVIL.replace("/", "|"), model=EVIL, status="failed", error=EVIL, scores={}))
    assert "<script" not in run._repr_html_()
    assert run._repr_html_().count("&lt;script") == 3

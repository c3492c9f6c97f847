"""``experiments/table_2_3/logistic.py`` writes ordinary records and reads dev only with ``--final``."""

import json
from pathlib import Path

import pytest
from scripts import load

from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.provenance import read_dev_accesses
from qa_arch.records import find_runs, read_questions
from qa_arch.results.columns import runs_table


@pytest.fixture
def call(tmp_path, monkeypatch):
    """``call(*options)`` -> exit code; run folders are written to ``runs`` in the working folder."""
    monkeypatch.chdir(tmp_path)
    train, dev = generate(6, 20), generate(2, 20, split="dev")
    for name, questions, count in (("train", train, 40), ("dev", dev, 10)):
        examples = [e for e in questions.examples if e.answerable][:count]
        Path(f"{name}.json").write_text(json.dumps(write(question_set(name, examples, "1.1"))))
    arguments = ["--train", "train.json", "--dev", "dev.json", "--runs", "runs"]
    arguments += ["--hold-out", "1", "--passes", "1"]
    main = load("table_2_3/logistic.py").main
    return lambda *options: main([*arguments, *options])


def test_dev_stays_closed_without_final(call, capsys) -> None:
    Path("dev.json").unlink()
    assert call() == 0
    runs = find_runs(["runs"])
    assert [record.model for _, record in runs] == ["logistic-regression", "random-guess"]
    assert all(set(record.scores) == {"calibration"} for _, record in runs)
    assert not Path("experiments").exists()
    assert "dev" not in capsys.readouterr().out


def test_final_scores_dev_and_logs_it(call) -> None:
    assert call("--final", "--l2", "0.001", "1000000") == 0
    runs = find_runs(["runs"])
    table = runs_table(runs)
    assert [row["model"] for row in table.rows] == ["logistic-regression", "random-guess"]
    assert all(row["split"] == "dev" and row["protocol"] == "1.1" for row in table.rows)
    logistic = runs[0][1]
    by_penalty = dict(zip((0.001, 1e6), logistic.epochs[-1].metrics["calibration_f1_by_l2"], strict=True))
    chosen = logistic.scores["calibration"]["forced"].f1
    assert by_penalty[logistic.epochs[-1].value("chosen_l2")] == chosen == max(by_penalty.values())
    assert logistic.best_epoch == 0
    assert logistic.epochs[0].value("calibration_f1") == chosen, "one value, as in every record"
    assert logistic.seconds.fit == logistic.epochs[0].train_seconds > 0
    assert table.rows[0]["parameters"] > 0
    assert 0 < logistic.data["dev"].details["candidate_coverage"] <= 1
    assert logistic.data["dev"].titles == ()
    assert len(read_questions(runs[0][0])["id"]) == 10
    accesses = read_dev_accesses("experiments/table_2_3")
    assert {access.run for access in accesses} == {folder.name for folder, _ in runs}
    # Whether dev is scored does not change the config hash.
    assert call("--l2", "0.001", "1000000", "--runs", "again") == 0
    assert [r.run_hash for _, r in find_runs(["again"])] == [r.run_hash for _, r in runs]


def test_missing_data_is_a_one_line_error(call, capsys) -> None:
    assert call("--train", "none.json") == 4
    assert "none.json" in capsys.readouterr().err

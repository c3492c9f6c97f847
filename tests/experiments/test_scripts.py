"""Scripts of single experiments: what their tables compute, and the runs that they or their recipes make."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripts import EXPERIMENTS, load

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.provenance import read_dev_accesses, read_registration
from qa_arch.records import find_runs, read_questions, recorded
from qa_arch.results.columns import runs_table
from qa_arch.results.experiments import registered_systems

decision = load("decision/tables.py")
paraphrases = load("paraphrases/tables.py")
scoring = load("paraphrases/scores.py")
FOLDER = EXPERIMENTS / "decision"


def test_nothing_is_tested_before_the_last_run_is_scored(monkeypatch) -> None:
    runs = recorded(FOLDER, "**")
    registered = read_registration(FOLDER).runs
    assert [len(arm.runs) for arm in registered_systems(FOLDER, registered)] == [5] * 5
    side = (runs[0][0], replace(runs[0][1], settings_hash="f" * 64))
    monkeypatch.setattr("qa_arch.results.experiments.recorded", lambda *_: [*runs, side])
    assert [len(arm.runs) for arm in registered_systems(FOLDER, registered)] == [5] * 5
    monkeypatch.setattr("qa_arch.results.experiments.recorded", lambda *_: [side, *runs[1:]])
    assert len(decision.tables(FOLDER)) == 1
    assert not decision.figures(FOLDER)


REWORDINGS = EXPERIMENTS / "paraphrases/rewordings.jsonl"
ARTICLE = np.repeat(np.arange(10), 20)
"""Ten clusters of twenty rows."""


def test_areas_and_accuracies_of_known_ranks(monkeypatch):
    """Twenty pairs of each kind in ten clusters; one scorer has the ranks upside down, one knows nothing."""
    monkeypatch.setattr(paraphrases, "DRAWS", 200)
    kinds = {"rewording": 3, "generated": 0, "twin": 1, "edit": 2, "other": -1, "opposite": -1}
    score, cluster = np.repeat([*kinds.values()], 20), np.tile(np.arange(20) // 2, len(kinds))
    scores = {"glove": score, "qa_lstm": -score, "minilm": 0 * score}
    table, differences = paraphrases.pair_tables(
        {"kind": np.repeat([*kinds], 20), "cluster": cluster, **scores}
    )
    rows = {(row["comparison"], row["scorer"]): row for row in table.rows}
    every, twins, *_ = paraphrases.COMPARISONS
    assert rows[every, "GloVe means"]["auroc"] == 50  # of four pairs of kinds, two are in order
    for scorer, auroc_, accuracy in (("GloVe means", 100, 100), ("QA-LSTM", 0, 50), ("MiniLM", 50, 50)):
        assert (rows[twins, scorer]["auroc"], rows[twins, scorer]["accuracy"]) == (auroc_, accuracy)
    assert rows[twins, "MiniLM"]["pairs"] == "20 + 20"
    first = {row["scorer"]: row for row in differences.rows if row["comparison"] == twins}
    deltas = {"QA-LSTM - GloVe means": -100, "MiniLM - GloVe means": -50, "MiniLM - QA-LSTM": 50}
    assert {name: row["delta"] for name, row in first.items()} == deltas
    assert first["MiniLM - QA-LSTM"]["delta_95_low"] == 50


def test_threshold_is_not_fitted_on_the_scored_cluster():
    """Two clusters with levels of their own: the threshold of one accepts all or nothing of the other.

    One fitted on both would be right on the larger: 87.5.
    """
    cluster = np.repeat([0, 1], [30, 10])
    positive = np.arange(40) % 2 == 0
    assert paraphrases.held_out_accuracy(10.0 * cluster + positive, positive, cluster) == 50
    assert paraphrases.held_out_accuracy(1.0 * positive, positive, cluster) == 100


def test_labels_of_an_article_do_not_reach_its_own_odds():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(200, 2))
    answerable = features[:, 0] + rng.normal(size=200) > 0
    odds = paraphrases.held_out_odds(features, answerable, ARTICLE)
    flipped = np.where(ARTICLE == 3, ~answerable, answerable)
    again = paraphrases.held_out_odds(features, flipped, ARTICLE)
    same = odds == again
    assert same[ARTICLE == 3].all()
    assert not same[ARTICLE != 3].any()


@pytest.mark.data
def test_rewordings_are_of_training_questions_and_every_kind_is_as_large(real_data):
    rows = [json.loads(line) for line in REWORDINGS.read_text(encoding="utf-8").splitlines()]
    pairs = scoring.all_pairs(real_data)
    kinds = Counter(pair.kind for pair in pairs)
    assert {kinds[kind] for kind in ("rewording", "twin", "other", "generated", "edit")} == {len(rows)}
    assert len({row["id"] for row in rows}) == len(rows) >= 200
    assert all(scoring.plain(pair.first) != scoring.plain(pair.second) for pair in pairs)
    articles = Counter(pair.cluster for pair in pairs if pair.kind == "rewording")
    assert set(articles.values()) == {13}


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
    assert call("--train", "none.json") == 4
    assert "none.json" in capsys.readouterr().err


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
    assert logistic.epochs[0].value("calibration_f1") == chosen, "one value, as in every record"
    assert logistic.seconds.fit == logistic.epochs[0].train_seconds > 0
    assert (table.rows[0]["parameters"] > 0, logistic.data["dev"].titles) == (True, ())
    assert 0 < logistic.data["dev"].details["candidate_coverage"] <= 1
    assert len(read_questions(runs[0][0])["id"]) == 10
    accesses = read_dev_accesses("experiments/table_2_3")
    assert {access.run for access in accesses} == {folder.name for folder, _ in runs}


MODELS = ("albert", "roberta", "distilbert", "bert", "proposed")


def test_recipe_settings():
    for model in MODELS:
        config = validate(compose(["experiment=thesis", f"model={model}"]))
        trainer, data = config.trainer, config.data
        assert (trainer.batch_size, trainer.accumulate, trainer.epochs) == (8, 1, 10)
        assert (trainer.precision, trainer.select) == ("auto", "forced_auc")
        assert (config.optim.lr, config.optim.head_lr, config.calibration.prior) == (3e-5, 1e-3, 0.5)
        assert (data.hold_out_share, data.calibration) == (0.2, None)
        assert (data.train, config.encoder.init) == ("hub:rajpurkar/squad_v2:train", "pretrained")

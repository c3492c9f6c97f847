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
from qa_arch.metrics.abstention import auroc
from qa_arch.provenance import read_dev_accesses, read_registration
from qa_arch.records import CALIBRATION, DEV, Epoch, find_runs, read_questions, recorded
from qa_arch.results.columns import runs_table
from qa_arch.results.experiments import registered_systems
from qa_arch.results.systems import Questions, load_questions
from qa_arch.training.run import train
from qa_arch.types import Example, Gold

decision = load("decision/tables.py")
paraphrases = load("paraphrases/tables.py")
scoring = load("paraphrases/scores.py")
strategies = load("strategies/tables.py")
FOLDER = EXPERIMENTS / "decision"


@pytest.fixture
def run():
    return find_runs([FOLDER / "records"])[0]


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


def test_ensemble_of_one_run_scores_as_the_run_does(run) -> None:
    rows = load_questions(*run, DEV)
    expected = {
        "f1": rows.f1.mean(),
        "forced_f1": rows.span_f1[rows.answerable].mean(),
        "auroc": auroc(-rows.null_odds, rows.answerable),
    }
    assert decision.ensemble([run]) == pytest.approx({name: 100 * value for name, value in expected.items()})


def test_vote_sums_the_probabilities_of_equal_spans(run) -> None:
    rows = load_questions(*run, DEV)

    def answers(probability: float, end: int, f1: float, odds: float) -> Questions:
        constant = {"start": 0, "end": end, "probability": probability, "span_f1": f1, "null_odds": odds}
        return replace(rows, **{name: np.full(len(rows), value) for name, value in constant.items()})

    equal = [answers(0.3, 4, 1.0, 0.0)] * 2
    for probability, expected in ((0.5, 1.0), (0.7, 0.0)):
        odds, f1 = decision.vote([answers(probability, 9, 0.0, 3.0), *equal])
        assert set(odds) == {1.0}
        assert set(f1) == {expected}


REWORDINGS = EXPERIMENTS / "paraphrases/rewordings.jsonl"
ARTICLE = np.repeat(np.arange(10), 20)
"""Ten clusters of twenty rows."""


def made_up(kinds: dict[str, float], noise: float = 0.0) -> dict[str, np.ndarray]:
    """Twenty pairs of each kind in ten clusters, with its score; one scorer has it upside down."""
    rng = np.random.default_rng(0)
    kind, cluster = np.repeat(list(kinds), 20), np.tile(np.arange(20) // 2, len(kinds))
    score = np.repeat(list(kinds.values()), 20) + noise * rng.normal(size=len(kind))
    return {"kind": kind, "cluster": cluster, "glove": score, "qa_lstm": -score, "minilm": 0 * score}


def test_areas_and_accuracies_of_known_ranks():
    kinds = {"rewording": 3, "generated": 0, "twin": 1, "edit": 2, "other": -1, "opposite": -1}
    table, differences = paraphrases.pair_tables(made_up(kinds))
    rows = {(row["comparison"], row["scorer"]): row for row in table.rows}
    every, twins, *_ = paraphrases.COMPARISONS
    assert rows[every, "GloVe means"]["auroc"] == 50  # of four pairs of kinds, two are in order
    assert (rows[twins, "GloVe means"]["auroc"], rows[twins, "GloVe means"]["accuracy"]) == (100, 100)
    assert (rows[twins, "QA-LSTM"]["auroc"], rows[twins, "QA-LSTM"]["accuracy"]) == (0, 50)
    assert (rows[twins, "MiniLM"]["auroc"], rows[twins, "MiniLM"]["accuracy"]) == (50, 50)
    assert rows[twins, "MiniLM"]["pairs"] == "20 + 20"
    first = {row["scorer"]: row for row in differences.rows if row["comparison"] == twins}
    assert {name: row["delta"] for name, row in first.items()} == {
        "QA-LSTM - GloVe means": -100,
        "MiniLM - GloVe means": -50,
        "MiniLM - QA-LSTM": 50,
    }
    assert first["MiniLM - QA-LSTM"]["delta_95_low"] == 50


def test_bootstrap_draws_whole_clusters_of_each_source():
    cluster = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    sources = [cluster < 2, cluster >= 2, cluster > 9]
    drawn = list(paraphrases.resampled(cluster, sources))
    assert len(drawn) == paraphrases.DRAWS
    counts = {tuple(np.bincount(rows, minlength=8)) for rows in drawn}
    assert all(
        len({count[row] for row in np.flatnonzero(cluster == c)}) == 1 for count in counts for c in range(4)
    )
    assert {(count[0] + count[3], count[5] + count[6]) for count in counts} == {(2, 2)}
    assert len(counts) == 9


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


def test_logistic_regression_solves_its_equations():
    """The gradient is zero: Σ (true - p) x = 0; a constant alone gives the log odds of the share."""
    rng = np.random.default_rng(2)
    rows = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    true = rows[:, 1] - rows[:, 2] + rng.normal(size=200) > 0
    probability = 1 / (1 + np.exp(-rows @ paraphrases.logistic(rows, true)))
    np.testing.assert_allclose(rows.T @ (true - probability), 0, atol=1e-8)
    np.testing.assert_allclose(paraphrases.logistic(rows[:, :1], np.arange(200) < 50), [np.log(1 / 3)])


def test_area_within_articles_ignores_their_levels():
    answerable = np.tile([True, False], 100)
    score = answerable + 100.0 * ARTICLE
    assert paraphrases.by_article(score, answerable, ARTICLE).mean() == 1
    assert paraphrases.by_article(-score, answerable, ARTICLE).mean() == 0


def test_cosines_and_best_sentence():
    def encode(texts):
        return np.array([[text.count("a"), text.count("b")] for text in texts], float)

    cosine = scoring.by_vectors(encode)
    np.testing.assert_allclose(
        cosine([("a", "aaa"), ("a", "b"), ("ab", "a"), ("", "a")]), [1, 0, 0.5**0.5, 0]
    )
    examples = [
        Example("1", "aa", "B b. Ab ab. B.", answers=(Gold("B", 0),)),
        Example("2", "bb", "A a. Aaab.", answers=(Gold("A", 0),)),
    ]
    np.testing.assert_allclose(scoring.best_sentences(examples, cosine), [0.5**0.5, 0.1**0.5])


def test_tokenised_and_plain_questions_are_compared_alike():
    assert scoring.plain("who does n't own bob 's u . s . mill ?") == scoring.plain(
        "Who doesn't own Bob's U.S. mill?"
    )


def test_pairs_of_a_training_question():
    texts = {"1": ("Who came?", "Ada"), "2": ("Who went?", "Ada"), "3": ("Who left?", "Bo")}
    questions = [Example(i, q, "Ada, Bo.", "Mill", (Gold(a, 0),)) for i, (q, a) in texts.items()]
    questions.insert(0, Example("0", "Who sat?", "Cy.", "Mill", (Gold("Cy", 0),)))
    pairs = list(scoring.of_training({"1": "Whose arrival?"}, {"1": "Who never came?"}, questions))
    assert [pair.kind for pair in pairs] == ["rewording", "twin", "other"]
    assert [pair.second for pair in pairs] == ["Whose arrival?", "Who never came?", "Who left?"]
    assert {(pair.cluster, pair.first) for pair in pairs} == {("Mill", "Who came?")}


def test_edits_change_question_and_answer_once_per_original():
    originals = [Example(i, f"Who is {i}?", "Ada, Bo.", "T", (Gold("Ada", 0),)) for i in "ba"]
    bo = (Gold("Bo", 5),)
    edited = [
        Example("1", "Who is b ?", "Ada, Bo.", "T", bo, original="b"),
        Example("2", "Who is not b?", "Ada, Bo.", "T", (Gold("Ada", 0),), original="b"),
        Example("3", "Who isn't b?", "Ada, Bo.", "T", bo, original="b"),
        Example("4", "Who isn't a?", "Ada, Bo.", "T", bo, original="a"),
        Example("5", "Who was a?", "Ada, Bo.", "T", bo, original="a"),
    ]
    seconds = [pair.second for pair in scoring.edits(originals, edited, 5)]
    assert seconds == ["Who isn't a?", "Who isn't b?"]
    assert [pair.second for pair in scoring.edits(originals, edited, 1)] == seconds[:1]


def test_generated_pairs_keep_subject_and_change_wording_or_relation():
    pairs = list(scoring.generated(60))
    kinds = Counter(pair.kind for pair in pairs)
    assert kinds["generated"] == 60
    assert 0 < kinds["opposite"] < 60
    assert all(pair.first != pair.second for pair in pairs)
    assert {"buyer", "attacker", "closing"} <= {pair.cluster for pair in pairs if pair.kind == "opposite"}
    for pair in pairs:
        names = {word for word in pair.first.rstrip("?").split()[1:] if word[0].isupper()}
        assert names <= set(pair.second.rstrip("?").split())


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


def test_difference_is_the_largest_of_the_first_steps():
    whole = {49: 2.0, 50: 4.0, 51: 1.0}
    assert strategies.largest_difference({49: 2.0, 50: 4.004, 51: 9.0}, whole) == pytest.approx(1e-3)
    assert strategies.largest_difference({49: 1.996, 50: 4.004, 51: 1.0}, whole) == pytest.approx(2e-3)


def test_a_run_without_a_step_of_the_other_has_no_difference():
    with pytest.raises(KeyError):
        strategies.largest_difference({50: 4.0}, {49: 2.0, 50: 4.0})


def test_losses_of_epochs_by_step():
    epoch = Epoch.from_flat({"epoch": 0, "train_loss": 3.0, "train_loss_by_step": {"1": 3.5, "10": 2.5}})
    assert strategies.step_losses([epoch, Epoch.from_flat({"epoch": 1})]) == {1: 3.5, 10: 2.5}


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


MODELS = ("albert", "roberta", "distilbert", "bert", "proposed")


@pytest.mark.parametrize("model", MODELS)
def test_recipe_settings(model):
    config = validate(compose(["experiment=thesis", f"model={model}"]))
    trainer, data = config.trainer, config.data
    assert (trainer.batch_size, trainer.accumulate, trainer.epochs) == (8, 1, 10)
    assert trainer.select == "forced_auc"
    assert (trainer.precision, config.calibration.prior) == ("auto", 0.5)
    assert (config.optim.lr, config.optim.head_lr) == (3e-5, 1e-3)
    assert (data.hold_out_share, data.calibration, data.train) == (0.2, None, "hub:rajpurkar/squad_v2:train")
    assert config.encoder.init == "pretrained"


@pytest.mark.slow
def test_recipe_keeps_the_epoch_with_the_best_forced_auc(tmp_path):
    small = ["debug=fast", "data.open_dev=false", "trainer.epochs=3", "trainer.max_steps=9", "optim.lr=3e-2"]
    record = train(
        validate(compose(["experiment=thesis", *small, "data.train_questions=12"])), folder=tmp_path
    )
    spans, areas, scores = (
        [epoch.value(f"calibration_{name}") for epoch in record.epochs]
        for name in ("forced_f1", "auroc", "forced_auc")
    )
    assert len(scores) == 3
    assert scores == pytest.approx([span + area for span, area in zip(spans, areas, strict=True)])
    assert record.best_epoch == scores.index(max(scores))
    rows = load_questions(tmp_path, record, CALIBRATION)
    best = 100 * auroc(-rows.null_odds, rows.answerable)
    assert areas[record.best_epoch] == pytest.approx(best, abs=1)  # weights are cast after training


@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch"), [*((model, 8) for model in MODELS), ("albert", 6)])
def test_every_point_trains_at_tiny_widths(model, batch, tmp_path):
    small = ["debug=fast", "data.open_dev=false", "trainer.epochs=2", "trainer.max_steps=4"]
    point = [f"model={model}", f"trainer.batch_size={batch}", "data.train_questions=12"]
    record = train(validate(compose(["experiment=thesis", *point, *small])), folder=tmp_path)
    assert (record.status, record.model) == ("ok", model)
    assert record.batch.global_size == batch
    assert record.epochs[-1].step == 4
    assert "calibration" in record.scores

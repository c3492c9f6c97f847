"""From candidates to scores: batches with sampled wrong answers, training, ranks, and scores of pairs."""

import math
import random

import numpy as np
import pytest
from stops import stopped_after
from training.conftest import Trained

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.selection import recipe
from qa_arch.extras.selection.features import (
    CandidateCollator,
    random_vectors,
    selection_table,
    with_buckets,
    word_rows,
)
from qa_arch.extras.selection.manifest import Selection
from qa_arch.extras.selection.rankers import main_class
from qa_arch.extras.selection.recipe import paraphrase_scores, rank_of_right, selection_scores
from qa_arch.extras.selection.sets import SelectionQuestion, selection_set
from qa_arch.features.vectors import WordVectors
from qa_arch.training.run import train

KNOWN = WordVectors(("the", "The", "bee"), np.r_[np.zeros((1, 2)), np.eye(3, 2)].astype(np.float32))


def test_unknown_words_share_hashed_bucket_vectors():
    vectors = with_buckets(KNOWN, 5, seed=1)
    row = word_rows(vectors, 5)
    assert (row("the"), row("The"), row("THE"), row("Bee")) == (1, 2, 1, 3)
    assert row("Lomm") == row("lomm")
    assert 4 <= row("lomm") < 9
    assert len({row(f"word{n}") for n in range(50)}) == 5
    assert len(vectors.matrix) == 9
    assert vectors.matrix[4:].any(axis=1).all()
    assert not vectors.matrix[0].any()
    assert word_rows(with_buckets(KNOWN, 0, seed=1), 0)("lomm") == 0, "without buckets"
    np.testing.assert_array_equal(vectors.matrix, with_buckets(KNOWN, 5, seed=1).matrix)
    assert not np.array_equal(vectors.matrix, with_buckets(KNOWN, 5, seed=2).matrix)
    first, second = (random_vectors(words, 4, 3) for words in (["b", "A", "b"], ["a", "B"]))
    assert first.words == second.words == ("a", "b")
    np.testing.assert_array_equal(first.matrix, second.matrix)


ANSWERS = [("a",), ("b", "b"), ("c", "c", "c"), ("d",), ("e",)]
QUESTIONS = [
    SelectionQuestion("1", ("x", "y"), (0, 1, 2), (1,)),
    SelectionQuestion("2", ("z",), (2, 3), (3,)),
    SelectionQuestion("3", ("x",) * 9, range(5), (0, 4)),
]


@pytest.fixture
def table():
    letters = {word: number for number, word in enumerate("abcdexyz", 1)}
    settings = Selection(max_question=4, max_answer=2)
    return selection_table(selection_set("s", ANSWERS, QUESTIONS), letters.__getitem__, settings)


def test_batch_holds_each_answer_once(table):
    batch = CandidateCollator(table)([1, 0])
    assert batch.index.tolist() == [1, 0]
    assert batch.question.tolist() == [[8, 0], [6, 7]]
    assert batch.question_mask.tolist() == [[True, False], [True, True]]
    assert batch.answer.tolist() == [[1, 0], [2, 2], [3, 3], [4, 0]], "the third is truncated to two words"
    assert batch.offered.tolist() == [[True, True, False], [True, True, True]]
    offered = [[batch.answer[c][0].item() for c in row] for row in batch.candidate]
    assert offered[0][:2] == [3, 4]
    assert offered[1] == [1, 2, 3]
    assert batch.right.tolist() == [[False, True, False], [False, True, False]]
    assert batch.weight.tolist() == [1, 1]
    padding = CandidateCollator(table)([-2])
    assert (padding.index.tolist(), padding.weight.tolist()) == ([1], [0])
    assert [len(question) for question in table.questions] == [2, 1, 4], "longer texts are truncated"
    assert CandidateCollator(table).lengths.tolist() == [2, 2, 2]


def test_pairs_have_one_right_answer_and_sampled_wrong_ones(table):
    assert table.pairs.tolist() == [[0, 1], [1, 3], [2, 0], [2, 4]]
    collate = CandidateCollator(table, negatives=2, seed=0)
    for epoch in range(20):
        batch = collate((epoch, [0, 1, 2, 3]))
        assert batch.right[:, 0].all()
        assert not batch.right[:, 1:].any()
        assert batch.offered.sum(1).tolist() == [3, 2, 3, 3]
        offered = [
            [batch.answer[c][0].item() - 1 for c in row[mask]]
            for row, mask in zip(batch.candidate, batch.offered, strict=True)
        ]
        assert [row[0] for row in offered] == [1, 3, 0, 4]
        assert set(offered[0][1:]) == {0, 2}
        assert offered[1][1:] == [2]
        assert {*offered[2][1:], *offered[3][1:]} <= {1, 2, 3}, "never the other right answer"
        assert all(len(set(row)) == len(row) for row in offered)


def test_wrong_answers_depend_on_epoch_seed_and_row_only(table):
    collate = CandidateCollator(table, negatives=1, seed=7)

    def sampled(epoch, rows, collate=collate):
        batch = collate((epoch, rows))
        return [int(batch.answer[c, 0]) for c in batch.candidate[:, 1]]

    assert sampled(3, [0, 2]) == [sampled(3, [0])[0], sampled(3, [2])[0]]
    assert len({tuple(sampled(epoch, [0, 2])) for epoch in range(12)}) > 1
    other = CandidateCollator(table, negatives=1, seed=8)
    assert [sampled(e, [0, 2]) for e in range(12)] != [sampled(e, [0, 2], other) for e in range(12)]


SMALL = [
    *("model=qa_lstm/g", "debug=fast", "model.hidden=5", "glove.dim=6", "selection.margin=0.3"),
    "model.dropout=0.1",  # so that the random states matter
    "selection.negatives=1",  # so that each epoch's draw matters
    *("trainer.max_steps=-1", "trainer.epochs=2", "trainer.progress=false"),
    *("trainer.checkpoint_minutes=1e-9", "optim.lr=1e-2"),
]


@pytest.fixture
def run(few_questions, tmp_path):
    def start(name: str, *overrides: str, resume: bool = False):
        folder = tmp_path / name
        config = validate(compose([*SMALL, *few_questions, *overrides]))
        return Trained(train(config, folder=folder, resume=resume), folder)

    return start


def test_resumed_run_equals_an_uninterrupted_one(run):
    uninterrupted = run("uninterrupted")
    record = uninterrupted.record
    assert record.epochs[0].windows == record.data["train"].questions > 5
    assert all(0 < epoch.train_loss < 0.3 + 2 for epoch in record.epochs)
    with stopped_after(6):  # in the second epoch
        run("stopped")
    resumed = run("stopped", resume=True)
    assert resumed.results == uninterrupted.results
    assert resumed.weights == uninterrupted.weights


def test_epoch_with_the_highest_mrr_is_kept(run, monkeypatch):
    scores = iter([(10.0, 40.0), (30.0, 60.0), (50.0, 50.0)])
    keys = ("calibration_accuracy", "calibration_mrr")
    monkeypatch.setattr(recipe, "validation_scores", lambda *_: dict(zip(keys, next(scores), strict=True)))
    record = run("run", "trainer.epochs=3", "trainer.select=loss").record
    assert record.best_epoch == 1
    assert [epoch.value("calibration_accuracy") for epoch in record.epochs] == [10.0, 30.0, 50.0]


def test_invalid_selection_settings_are_refused(few_questions):
    train_set = few_questions[0].partition("=")[2]
    shared = [*few_questions[:2], f"data.dev={train_set}"]
    with pytest.raises(DataError, match="share"):
        recipe.assemble(validate(compose([*SMALL, *shared])))
    for setting, message in (("model.train_vectors=false", "must be trained"), ("glove=file", "glove.path")):
        with pytest.raises(ConfigError, match=message):
            recipe.check(validate(compose([*SMALL, *few_questions, setting])))
    held_out = ["model=qa_lstm/c", "data=insuranceqa", "data.calibration=null", "data.hold_out_share=0.1"]
    both = ["model=question_types", "data=trec", "data.hold_out_articles=3"]
    for settings in (held_out, both):
        with pytest.raises(ConfigError, match="no articles"):
            recipe.load_splits(validate(compose(settings)))


NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "right", "rank"),
    [
        ([0.9, 0.1, 0.5], {0}, 1),
        ([0.9, 0.1, 0.5], {1}, 3),
        ([0.9, 0.1, 0.5], {1, 2}, 2),  # the best of several right ones
        ([0.5, 0.5, 0.5], {0}, 3),  # ties rank the right one last
        ([0.5, 0.5, 0.1], {0, 1}, 1),  # right answers do not compete with each other
        ([-math.inf, -math.inf], {0}, 2),
        ([NAN, 0.1], {1}, 2),
        ([NAN, 0.1], {0}, 2),
        ([0.3, 0.1], set(), None),
    ],
)
def test_rank_of_right(scores, right, rank):
    assert rank_of_right(scores, right) == rank


def test_selection_scores_average_over_questions():
    scores = selection_scores([1, 2, 4, None])
    mrr = pytest.approx(100 * (1 + 1 / 2 + 1 / 4 + 0) / 4)
    assert scores == {"accuracy": 25.0, "mrr": mrr, "questions": 4}


def test_main_class_of_the_rules():
    expected = {
        **{
            "Who painted the boats ?": "HUM",
            "Where does Tarn live ?": "LOC",
            "How does honey keep ?": "DESC",
        },
        **{"In what year was it built ?": "NUM", "What city lies behind the hill ?": "LOC"},
        **{"Which famous singer came ?": "HUM", "Was it where they met ?": "DESC", "": "ENTY"},
        "The ferry carried what ?": "ENTY",
    }
    assert {question: main_class(question.split()) for question in expected} == expected


def counted_accuracy(scores: list[float], labels: list[bool], threshold: float) -> float:
    hits = sum((score >= threshold) == label for score, label in zip(scores, labels, strict=True))
    return 100 * hits / len(scores)


@pytest.mark.parametrize("seed", range(5))
def test_scores_match_counting(seed):
    rng = random.Random(seed)
    labels = [True, False, *(rng.random() < 0.4 for _ in range(rng.randrange(30)))]
    scores = [rng.choice((-0.4, 0.0, 0.2, 0.5, 0.9)) + 0.1 * rng.randrange(3) * label for label in labels]
    result = paraphrase_scores(scores, labels, 0.5)
    right, wrong = ([s for s, label in zip(scores, labels, strict=True) if label == kind] for kind in (1, 0))
    wins = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    best = max(counted_accuracy(scores, labels, threshold) for threshold in (*scores, 2.0))
    assert result == {
        "pairs": len(labels),
        "paraphrases": sum(labels),
        "threshold": 0.5,
        "accuracy": pytest.approx(counted_accuracy(scores, labels, 0.5)),
        "oracle_accuracy": pytest.approx(best),
        "auroc": pytest.approx(100 * wins / (len(right) * len(wrong))),
    }
    single = paraphrase_scores([0.1, 0.7], [True, True], 0.5)
    assert (single["auroc"], single["accuracy"], single["oracle_accuracy"]) == (None, 50, 100)

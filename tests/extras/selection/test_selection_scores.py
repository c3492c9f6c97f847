"""Top-1 accuracy and MRR by hand, with pessimistic ties; rule-based question classes."""

import math

import pytest

from qa_arch.extras.selection.rankers import main_class
from qa_arch.extras.selection.recipe import rank_of_right, selection_scores

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
    assert scores == {
        "accuracy": 25.0,
        "mrr": pytest.approx(100 * (1 + 1 / 2 + 1 / 4 + 0) / 4),
        "questions": 4,
    }


@pytest.mark.parametrize(
    ("question", "main"),
    [
        ("Who painted the boats ?", "HUM"),
        ("To whom did Mira give them ?", "HUM"),
        ("Where does Tarn live ?", "LOC"),
        ("When did the ferry sink ?", "NUM"),
        ("How many bees are there ?", "NUM"),
        ("How does honey keep ?", "DESC"),
        ("Why did it sink ?", "DESC"),
        ("In what year was it built ?", "NUM"),
        ("What city lies behind the hill ?", "LOC"),
        ("Which famous singer came ?", "HUM"),
        ("What did Mira paint ?", "ENTY"),
        ("Was it where they met ?", "DESC"),
        ("The ferry carried what ?", "ENTY"),
        ("Name the isle .", "ENTY"),
        ("", "ENTY"),
    ],
)
def test_main_class_of_the_rules(question, main):
    assert main_class(question.split()) == main

"""Top-1 accuracy and MRR by hand, with pessimistic ties; rule-based question types."""

import math

import pytest

from qa_arch.extras.selection.rankers import question_type
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
    ("question", "kind"),
    [
        ("Who painted the boats ?", "who:PERSON"),
        ("To whom did Mira give them ?", "whom:PERSON"),
        ("Where does Tarn live ?", "where:LOCATION"),
        ("When did the ferry sink ?", "when:NUMBER"),
        ("How many bees are there ?", "how:NUMBER"),
        ("How does honey keep ?", "how:DESCRIPTION"),
        ("Why did it sink ?", "why:DESCRIPTION"),
        ("In what year was it built ?", "what:NUMBER"),
        ("What city lies behind the hill ?", "what:LOCATION"),
        ("Which famous singer came ?", "which:PERSON"),
        ("What did Mira paint ?", "what:ENTITY"),
        ("Was it where they met ?", "yes/no:YES/NO"),
        ("The ferry carried what ?", "what:ENTITY"),
        ("Name the isle .", "other:ENTITY"),
        ("", "other:ENTITY"),
    ],
)
def test_question_type(question, kind):
    assert question_type(question.split()) == kind

"""Shots, prompts and the meaning of replies."""

import pytest

from qa_arch.data.answer_files import is_null
from qa_arch.errors import DataError
from qa_arch.extras.prompting.prompts import as_span, draw_shots, messages
from qa_arch.types.text import Example, Gold


def test_shots_depend_on_the_seed_and_never_come_from_a_scored_set(question_sets):
    train, dev = question_sets["train"], question_sets["dev"]
    shots = draw_shots(train, 5, 7, [dev])
    assert [e.answerable for e in shots].count(False) == 2
    assert shots == draw_shots(train, 5, 7, [dev]) != draw_shots(train, 5, 8, [dev])
    pairs = {(e.title, e.context) for e in train.examples}
    titles = {e.title for e in shots}
    # Only the articles of these shots are not scored.
    rest = [Example("x", "?", context, title) for title, context in pairs if title not in titles]
    scored = type(dev)("scored", tuple(rest), "2.0", "")
    assert {e.title for e in draw_shots(train, 2, 7, [scored])} <= titles
    untitled = type(dev)("scored", tuple(Example("x", "?", e.context) for e in train.examples), "2.0", "")
    with pytest.raises(DataError, match="only 0 answerable questions about passages outside"):
        draw_shots(train, 2, 7, [untitled])
    only = type(dev)("train", tuple(e for e in train.examples if e.answerable), "1.1", "")
    assert len(draw_shots(only, 4, 7, [dev])) == 4


def test_prompt_of_shots_and_question():
    example = Example("q", "Who {is} it?", "Ada {0} came.")
    shots = [Example("s", "When?", "In 1902.", answers=(Gold("1902", 3),)), Example("n", "Why?", "No.")]
    turns = messages(example, shots)
    assert [turn["content"] for turn in turns[1::2]] == ["1902", "unanswerable"]
    end = "Answer with the shortest span of the passage that answers the question, word for word, or with"
    end += ' "unanswerable" if the passage does not answer it.'
    assert turns[-1]["content"] == f"Passage: Ada {{0}} came.\n\nQuestion: Who {{is}} it?\n\n{end}"


@pytest.mark.parametrize(
    ("reply", "span"),
    [
        ("the MILL", "The mill"),
        ('"1871".', "1871"),
        ("in the U.S.", "in the U.S."),
        ("1871\nbecause", "1871"),
        ("1872.", "1872."),
        ("**", "**"),
        ("", ""),
    ],
)
def test_reply_becomes_the_span_it_repeats(reply, span):
    assert as_span(reply, "The mill burnt in 1871 in the U.S. again.") == span
    assert as_span(reply, "Weiß: The mill burnt in 1871 in the U.S. again.") == span  # ß folds to two letters


def test_replies_that_mean_no_answer():
    assert all(map(is_null, ("unanswerable", ' "Unanswerable."', "UNANSWERABLE because")))
    assert not any(map(is_null, ("", "answerable", "Ada")))

"""Questions on passages as answer selection: sentences, right candidates, questions left out."""

from __future__ import annotations

import pytest

from qa_arch.data.question_sets import question_set
from qa_arch.data.sentences import sentence_spans
from qa_arch.data.squad import read
from qa_arch.errors import DataError
from qa_arch.extras.selection.sets import selection_set, sentence_selection, words
from qa_arch.types.text import Example, Gold, SelectionQuestion

TEXT = "Dr. Mira Lom paints. She owns 3.5 boats! Old J. Tarn keeps bees (nine of them.) Who knows?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TEXT,
            [
                "Dr. Mira Lom paints.",
                "She owns 3.5 boats!",
                "Old J. Tarn keeps bees (nine of them.)",
                "Who knows?",
            ],
        ),
        ("One here.[4] Two there.", ["One here.[4]", "Two there."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("It costs 4 c. of salt. 20 came.", ["It costs 4 c. of salt.", "20 came."]),
        ("no capital. after it", ["no capital. after it"]),
        ("A line\nanother line", ["A line", "another line"]),
        ("The U.S. Army came. Éva left.", ["The U.S. Army came.", "Éva left."]),
        ("  padded.  ", ["padded."]),
        (" \n ", []),
    ],
)
def test_sentences(text, expected):
    assert [text[start:end] for start, end in sentence_spans(text)] == expected


def example(id_: str, *answers: str, context: str = TEXT, title: str = "t") -> Example:
    golds = tuple(Gold(text, context.index(text)) for text in answers)
    return Example(id_, "Who paints?", context, title, golds)


def test_words_are_runs_of_letters_and_single_marks():
    assert words("Mira's 3.5 boats, où?") == ("Mira", "'", "s", "3", ".", "5", "boats", ",", "où", "?")


def test_the_sentences_in_which_an_answer_begins_are_right():
    task = sentence_selection(
        question_set("set", [example("a", "Mira"), example("b", "bees", "boats! Old")], "1.1")
    )
    first, second = task.questions
    assert task.answers[0] == ("Dr", ".", "Mira", "Lom", "paints", ".")
    assert first.candidates == second.candidates == range(4)
    assert (first.right, second.right) == ((0,), (1, 2))
    assert (first.id, first.title, first.question) == ("a", "t", ("Who", "paints", "?"))


def test_what_leaves_nothing_to_select_is_left_out_and_candidates_are_the_own_paragraph():
    single = "One sentence alone."
    other = "It rains. It pours."
    given = [
        example("a", "Mira"),
        Example("b", "Who?", TEXT, "t"),
        example("c", "alone", context=single),
        example("d", "pours", context=other, title="u"),
    ]
    task = sentence_selection(question_set("set", given, "2.0"))
    assert [question.id for question in task.questions] == ["a", "d"]
    assert task.left_out == 2
    last = task.questions[1]
    assert [task.answers[row] for row in last.candidates] == [("It", "rains", "."), ("It", "pours", ".")]
    assert task.answers[last.right[0]] == ("It", "pours", ".")
    assert task.titles == {"t", "u"}


def test_no_question_left_is_an_error():
    with pytest.raises(DataError, match="no question is left"):
        sentence_selection(question_set("set", [Example("b", "Who?", TEXT, "t")], "2.0"))


def test_the_fingerprint_covers_everything_that_is_scored():
    question = SelectionQuestion("1", ("who",), (0, 1), (1,))
    plain = selection_set("a", [("x",), ("y",)], [question])
    others = [
        selection_set("a", [("x",), ("z",)], [question]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("1", ("who",), (0, 1), (0,))]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("1", ("who",), (1, 0), (1,))]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("1", ("what",), (0, 1), (1,))]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("2", ("who",), (0, 1), (1,))]),
    ]
    assert len({plain.fingerprint, *(other.fingerprint for other in others)}) == 6
    assert selection_set("b", [("x",), ("y",)], [question]).fingerprint == plain.fingerprint


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["." * 300_000, "x" * 300_000 + ". A", "A. " * 50_000, ".[" * 100_000])
def test_degenerate_text_takes_linear_time(text):
    parts = (text[start:end] for start, end in sentence_spans(text))
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


@pytest.mark.data
def test_the_answer_stands_in_its_sentence(real_data):
    questions = read(real_data / "squad" / "dev-v1.1.json")
    task = sentence_selection(questions)
    assert (len(task), task.left_out) == (10_307, 263)
    golds = {e.id: e.answers for e in questions.examples}
    for question in task.questions:
        held = [words(gold.text)[0] for gold in golds[question.id]]
        right = {word for row in question.right for word in task.answers[row]}
        assert any(first in right or any(first in word for word in right) for first in held)

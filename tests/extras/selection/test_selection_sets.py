"""Answer selection sets from passages and InsuranceQA: sentences, right candidates, omissions, errors."""

import pytest

from qa_arch.data.question_sets import question_set
from qa_arch.data.sentences import sentence_spans
from qa_arch.data.sources import open_source
from qa_arch.errors import DataError
from qa_arch.extras.selection.sets import (
    INSURANCEQA,
    SelectionQuestion,
    selection_set,
    sentence_selection,
    words,
)
from qa_arch.types import Example, Gold

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
def test_sentence_spans(text, expected):
    assert [text[start:end] for start, end in sentence_spans(text)] == expected


def example(id_: str, *answers: str, context: str = TEXT, title: str = "t") -> Example:
    golds = tuple(Gold(text, context.index(text)) for text in answers)
    return Example(id_, "Who paints?", context, title, golds)


def test_sentences_where_an_answer_begins_are_right():
    assert words("Mira's 3.5 boats, où?") == ("Mira", "'", "s", "3", ".", "5", "boats", ",", "où", "?")
    task = sentence_selection(
        question_set(
            "set", [example("a", "Mira"), example("b", "bees", "boats! Old"), example("c", " Old")], "1.1"
        )
    )
    first, second, spaced = task.questions
    assert task.answers[0] == ("Dr", ".", "Mira", "Lom", "paints", ".")
    assert first.candidates == second.candidates == range(4)
    assert (first.right, second.right, spaced.right) == ((0,), (1, 2), (2,))
    assert (first.id, first.title, first.question) == ("a", "t", ("Who", "paints", "?"))


def test_unselectable_questions_are_omitted_and_candidates_are_the_paragraph():
    unanswerable = Example("b", "Who?", TEXT, "t")
    examples = [
        example("a", "Mira"),
        unanswerable,
        example("c", "alone", context="One sentence alone."),
        example("d", "pours", context="It rains. It pours.", title="u"),
    ]
    task = sentence_selection(question_set("set", examples, "2.0"))
    assert [question.id for question in task.questions] == ["a", "d"]
    assert task.left_out == 2
    last = task.questions[1]
    assert [task.answers[row] for row in last.candidates] == [("It", "rains", "."), ("It", "pours", ".")]
    assert task.answers[last.right[0]] == ("It", "pours", ".")
    assert task.titles == {"t", "u"}
    with pytest.raises(DataError, match="no question is left"):
        sentence_selection(question_set("set", [unanswerable], "2.0"))


def test_fingerprint_covers_everything_that_is_scored():
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


# InsuranceQA ----------------------------------------------------------------------------------------

TRAIN, DEV = "question.train.token_idx.label", "question.dev.label.token_idx.pool"
FILES = {
    "vocabulary": "idx_1\twhat\nidx_2\tis\nidx_3\tterm\nidx_4\tlife\nidx_5\tbasic\n",
    "answers.label.token_idx": "7\tidx_3 idx_4\n8\tidx_5\n9\tidx_4\n",
    TRAIN: "idx_1 idx_2 idx_3\t7 8\nidx_1 idx_5\t9\n",
    DEV: "8\tidx_1 idx_2\t9 8 9 7\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_insuranceqa_files_are_read(folder):
    train = open_source(f"insuranceqa:{folder}:train")
    assert train.answers == (("term", "life"), ("basic",), ("life",))
    assert [q.question for q in train.questions] == [("what", "is", "term"), ("what", "basic")]
    assert [q.right for q in train.questions] == [(0, 1), (2,)]
    assert all(q.candidates == range(3) for q in train.questions)
    (question,) = open_source(f"insuranceqa:{folder}:dev").questions
    assert (question.id, question.question, question.right) == ("dev-1", ("what", "is"), (1,))
    assert question.candidates == (2, 1, 0)
    (folder / DEV).write_text(f"8\tidx_1\t9 7\n8\tidx_1\t8 8\n{FILES[DEV]}")  # no right answer, one candidate
    dev = open_source(f"insuranceqa:{folder}:dev")
    assert ([question.id for question in dev.questions], dev.left_out) == (["dev-3"], 2)
    (folder / "answers.label.token_idx").unlink()  # not needed for counting
    assert INSURANCEQA.counts(f"{folder}:train") == {"questions": 2, "answers": 3, "question_words": 5}


@pytest.mark.parametrize(
    ("file", "text", "split", "message"),
    [
        (TRAIN, "idx_1\t7\nidx_1 7\n", "train", "line 2: 1 tab-separated fields, not 2"),
        (TRAIN, "idx_1\t7\nidx_9 idx_1\t7\n", "train", "line 2: question: 'idx_9' is unknown"),
        (TRAIN, "idx_1\tseven\n", "train", "line 1: answer labels: 'seven' is unknown"),
        (TRAIN, "\t7\n", "train", "line 1: question: is empty"),
        (DEV, "8\tidx_1\t9 55\n", "dev", "line 1: pool: '55' is unknown"),
        (DEV, "8\tidx_1\t\n", "dev", "line 1: pool: is empty"),
        ("vocabulary", "idx_1 what\n", "dev", "line 1: 1 tab-separated fields"),
        ("answers.label.token_idx", None, "dev", "cannot be read"),
    ],
)
def test_insuranceqa_errors_name_file_line_and_field(folder, file, text, split, message):
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(DataError, match=f"{file}: {message}"):
        open_source(f"insuranceqa:{folder}:{split}")
    with pytest.raises(DataError, match=r"write insuranceqa:FOLDER:SPLIT.*train, dev, test1, test2"):
        open_source(f"insuranceqa:{folder}:valid")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "expected"), [("train", (12_887, 18_540, 92_095)), ("dev", (1_000, 1_454, 7_158))]
)
def test_insuranceqa_counts_match_the_published_ones(real_data, name, expected):
    assert tuple(INSURANCEQA.counts(f"{real_data}/insuranceqa:{name}").values()) == expected

"""SubjQA's CSV files: one question per row, the marker of unanswerable ones, and errors with line numbers."""

import csv

import pytest

from qa_arch.data.sources import open_passages
from qa_arch.errors import DataError

REVIEW = 'The strap is wide. It has a "double" zipper, too. ANSWERNOTFOUND'
ROWS = [
    {"q_review_id": "a", "human_ans_spans": "The strap is wide", "human_ans_indices": "(0, 17)"},
    {"q_review_id": "a", "human_ans_spans": "ANSWERNOTFOUND", "human_ans_indices": "(50, 64)"},
    {"q_review_id": "b", "human_ans_spans": "too . ANSWERNOTFOUND", "human_ans_indices": "(45, 64)"},
]


def write(path, rows):
    common = {"item_id": "B0", "question": "How is the strap?", "review": REVIEW, "domain": "electronics"}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*common, *ROWS[0]])
        writer.writeheader()
        writer.writerows(common | row for row in rows)
    return f"subjqa:{path}"


def test_every_row_is_a_question(tmp_path):
    questions = open_passages(write(tmp_path / "electronics.test.csv", ROWS))
    first, *unanswerable = questions.examples
    assert questions.protocol == "2.0"
    assert [example.id for example in questions.examples] == ["a-1", "a-2", "b-1"]
    assert [answer.text for answer in first.answers] == ["The strap is wide"]
    assert first.context == 'The strap is wide. It has a "double" zipper, too.'
    assert first.title == "B0"
    assert not any(example.answerable for example in unanswerable)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"human_ans_indices": "0-17"}, "line 2, human_ans_indices: '0-17' is not a pair of offsets"),
        ({"human_ans_indices": "-" * 99_999 + "1"}, r"line 2, human_ans_indices: '-{60}…' is not a pair"),
        (
            {"human_ans_indices": "(0, 0)"},
            r"line 2, human_ans_indices: '\(0, 0\)' is not .* around a text",
        ),
    ],
)
def test_faulty_row_is_named(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        open_passages(write(tmp_path / "set.csv", [ROWS[0] | change]))


def test_other_csv_files_are_refused(tmp_path):
    (tmp_path / "set.csv").write_text("id,question\n1,Who?\n")
    with pytest.raises(DataError, match=r"has no column item_id, q_review_id, .* is it a SubjQA file"):
        open_passages(f"subjqa:{tmp_path}/set.csv")


def test_published_counts(real_data):
    questions = open_passages(f"subjqa:{real_data}/subjqa/*.csv")
    assert len(questions) == 6310
    assert sum(not example.answerable for example in questions.examples) == 3523

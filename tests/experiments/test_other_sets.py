"""The written sets: a typing error in every question and nothing else, and every row of SubjQA a question."""

import csv
from dataclasses import replace

import pytest
from scripts import load

from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError

other_sets = load("systems/other_sets.py")

RECORDED = {
    "typos": "248a4d0266f6",
    "books": "cd330d33b5e7",
    "electronics": "31924360421a",
    "grocery": "c363c0910b1b",
    "movies": "2c187a9ebb87",
    "restaurants": "30a231c3f2e6",
    "tripadvisor": "d31c7d30666a",
}
"""Fingerprints of the sets when the program itself read them from other files."""
REVIEW = {"item_id": "B0", "question": "How is the strap?", "review": "The strap is wide. ANSWERNOTFOUND"}
ROWS = [
    {"q_review_id": "a", "human_ans_spans": "The strap is wide", "human_ans_indices": "(0, 17)"},
    {"q_review_id": "a", "human_ans_spans": "ANSWERNOTFOUND", "human_ans_indices": "(19, 33)"},
]


def test_typos_of_a_word():
    """Expected by hand: neighbouring keys, no swap of equal letters; first and last letter stay."""
    misspell = other_sets.misspell
    words = {misspell("Is it Cool?", draw).removeprefix("Is it ").removesuffix("?") for draw in range(200)}
    replaced = {f"C{other}ol" for other in "iklp"} | {f"Co{other}l" for other in "iklp"}
    assert words == {"Col", "Coool"} | replaced
    assert {misspell("имя?", draw) for draw in range(9)} == {"имя?"}, "no word of four letters"


def test_every_question_gets_one_typo_that_depends_on_its_id_alone():
    before = generate(2, 3, 1, "dev")
    after = other_sets.with_typos(before)
    for old, new in zip(before.examples, after.examples, strict=True):
        assert replace(new, question=old.question) == old
        changed = [(a, b) for a, b in zip(old.question.split(), new.question.split(), strict=True) if a != b]
        assert len(changed) == 1, (old.question, new.question)
    part = other_sets.with_typos(question_set("part", reversed(before.examples[::2]), "2.0"))
    assert set(part.examples) < set(after.examples)


def test_every_row_of_subjqa_is_a_question(tmp_path):
    def write(rows):
        with (tmp_path / "set.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*REVIEW, *ROWS[0]])
            writer.writeheader()
            writer.writerows(REVIEW | row for row in rows)
        return tmp_path / "set.csv"

    answered, unanswerable = other_sets.subjqa(write(ROWS)).examples
    assert (answered.id, answered.title, answered.context) == ("a-1", "B0", "The strap is wide.")
    assert [gold.text for gold in answered.answers] == ["The strap is wide"]
    assert (unanswerable.id, unanswerable.answers) == ("a-2", ())
    with pytest.raises(DataError, match=r"row 2: human_ans_indices: holds no text"):
        other_sets.subjqa(write([{**ROWS[0], "human_ans_indices": "(0, 0)"}]))


@pytest.mark.data
def test_written_sets_are_those_that_were_read_before(real_data, tmp_path, monkeypatch):
    monkeypatch.setenv("QA_ARCH_DATA", str(real_data))
    monkeypatch.setattr("sys.argv", ["other_sets.py", "--out", str(tmp_path)])
    other_sets.main()
    written = {name: open_passages(str(tmp_path / f"{name}.json")).fingerprint[:12] for name in RECORDED}
    assert written == RECORDED

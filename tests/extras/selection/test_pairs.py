"""Pairs of questions from a file: labels for all or for none, faults by file and line."""

from __future__ import annotations

import pytest

from qa_arch.errors import DataError
from qa_arch.extras.selection.sets import Pair, read_pairs


def test_pairs_with_and_without_labels(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Who is it?\tWho was it?\t1\n\nWhere?\t When? \t0\n")
    assert read_pairs(path) == (Pair("Who is it?", "Who was it?", True), Pair("Where?", "When?", False))
    path.write_text("\ufeffWho is it?\tWho was it?\n", encoding="utf-8")
    assert read_pairs(path) == (Pair("Who is it?", "Who was it?", None),)


@pytest.mark.parametrize("odd", ["\u2028", "\x85", "\x0b", "\x0c"])
def test_only_a_line_feed_ends_a_pair(tmp_path, odd):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(f"Who is{odd}it?\tWho was it?\t1\r\nWhere?\tWhen?\t0\r\n".encode())
    assert read_pairs(path) == (Pair(f"Who is{odd}it?", "Who was it?", True), Pair("Where?", "When?", False))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\nc\n", "line 2: expected two questions"),
        ("a\t \n", "line 1: expected two questions"),
        ("a\tb\t1\tx\n", "line 1: expected two questions"),
        ("a\tb\t2\n", "line 1: the label is '2'"),
        ("a\tb\t1\nc\td\n", "line 2: some lines have a label"),
        ("\n", "holds no pair"),
    ],
)
def test_faults(tmp_path, text, message):
    path = tmp_path / "pairs.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_pairs(path)
    assert "pairs.tsv" in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_pairs(tmp_path / "none.tsv")
    (tmp_path / "bytes.tsv").write_bytes(b"\xff\xfe\t\n")
    with pytest.raises(DataError, match="is not UTF-8"):
        read_pairs(tmp_path / "bytes.tsv")

"""A model that chooses words: its answers need be no span of the passage."""

from __future__ import annotations

import math

import pytest

from qa_arch import Reader, load


@pytest.fixture(scope="module")
def reader(sequence_run) -> Reader:
    return load(sequence_run, device="cpu")


def test_words_that_do_not_stand_side_by_side_have_no_offsets(reader, question_set):
    loose = 0
    for example in question_set.examples:
        answer = reader(example.question, example.context, top_k=4, null_threshold=math.inf)
        assert answer.text
        for span in answer.spans:
            if span.start < 0:
                loose += 1
                assert (span.start, span.end) == (-1, -1)
                assert all(word in example.context for word in span.text.split())
            else:
                assert example.context[span.start : span.end] == span.text
        assert answer.text.split()[0] in answer._repr_html_()
        assert ("<mark" in answer._repr_html_()) == (answer.start >= 0)
    assert loose

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


def test_options_that_a_sequence_has_no_use_for_do_no_harm(reader, question_set):
    example = question_set.examples[0]
    plain = reader(example.question, example.context)
    other = reader(example.question, example.context, max_answer_tokens=1, top_k=30, distinct=False)
    assert (other.text, other.start, other.confidence) == (plain.text, plain.start, plain.confidence)
    both = reader(example.question, [example.context, example.context], null_threshold=math.inf, top_k=9)
    assert both.document == 0
    assert {span.document for span in both.spans} == {0, 1}


@pytest.mark.parametrize("context", ["", " ", "x", "word " * 3000])
def test_every_text_gets_a_result(reader, context):
    answer = reader("Who?", context)
    assert bool(answer.windows) == bool(context.strip())
    assert 0 <= answer.confidence <= 1

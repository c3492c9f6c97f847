"""What may be asked: every field is checked when the query is made, and named where it is wrong."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import get_type_hints

import numpy as np
import pytest

from qa_arch import Answer, Query, Span
from qa_arch.errors import ConfigError, DataError
from qa_arch.serving.reader import Options

WRONG = [
    ({"question": 5}, "question: text is wanted, not int"),
    ({"question": None}, "question: text is wanted, not NoneType"),
    ({"question": b"Who?"}, "question: text is wanted, not bytes"),
    ({"documents": "a text"}, "documents: a list of texts is wanted, not str"),
    ({"documents": None}, "documents: a list of texts is wanted, not NoneType"),
    ({"documents": ()}, "documents: there is none"),
    ({"documents": ("a", 3)}, r"documents\[1\]: text is wanted, not int"),
    ({"documents": (("a",),)}, r"documents\[0\]: text is wanted, not tuple"),
    ({"top_k": 0}, "top_k: 0 is out of range"),
    ({"top_k": "3"}, "top_k: a whole number is wanted, not str"),
    ({"top_k": True}, "top_k: a whole number is wanted, not bool"),
    ({"top_k": 1.5}, "top_k: a whole number is wanted, not float"),
    ({"max_answer_tokens": 0}, "max_answer_tokens: 0 is out of range"),
    ({"max_answer_tokens": "long"}, "max_answer_tokens: a whole number is wanted, not str"),
    ({"null_threshold": "0"}, "null_threshold: a number is wanted"),
    ({"null_threshold": math.nan}, "null_threshold: a number is wanted .*, not NaN"),
    ({"null_threshold": False}, "null_threshold: a number is wanted"),
    ({"distinct": 1}, "distinct: true or false is wanted, not int"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(values, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        Query(**{"question": "Who?", "documents": ("a",), **values})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"question": "a\ud83d"}, "question: character 1"),
        ({"documents": ("", "\udc00")}, r"documents\[1\]: char"),
    ],
)
def test_half_a_surrogate_pair_is_a_data_error_that_names_field_and_place(values, name):
    with pytest.raises(DataError, match=f"^{name}.*surrogate"):
        Query(**{"question": "Who?", "documents": ("a",), **values})


def test_what_is_right_is_taken():
    query = Query("", ["", "\x00 <b>"], np.int64(2), np.int32(9), -math.inf, False)  # type: ignore[arg-type]
    assert query.documents == ("", "\x00 <b>")
    assert Query("q", ("a",), null_threshold=0).null_threshold == 0
    assert hash(query) == hash(Query("", ("", "\x00 <b>"), 2, 9, -math.inf, False))


def test_the_options_of_a_reader_are_the_fields_of_a_query():
    options = {field.name for field in fields(Query)} - {"question", "documents"}
    assert set(Options.__annotations__) == options
    hints = get_type_hints(Query)
    assert {name: hints[name] for name in options} == get_type_hints(Options)


def test_an_answer_is_json_readable_and_false_without_text():
    nothing = Answer("", None, None, None, None, 0.9, math.inf, -math.inf, 0)
    span = Span("Ada", 0, 3, 1, 2.5, 0.5)
    answer = Answer("Ada", 0, 3, 1, 2.5, 0.5, -1.25, 0.0, 2, (span,), Query("Who?", ("", "Ada")))
    assert not nothing
    assert answer
    assert repr(nothing) == "Answer(no answer, confidence=0.900, null_odds=inf)"
    assert repr(answer) == "Answer('Ada', start=0, end=3, document=1, confidence=0.500)"
    plain = json.loads(json.dumps(nothing.as_dict(), allow_nan=False))
    assert plain["null_odds"] is plain["null_threshold"] is None
    plain = json.loads(json.dumps(answer.as_dict(), allow_nan=False))
    assert set(plain) == {field.name for field in fields(Answer)} - {"query"}
    assert (plain["null_odds"], plain["null_threshold"]) == (-1.25, 0.0)
    assert plain["spans"] == [
        {"text": "Ada", "start": 0, "end": 3, "document": 1, "score": 2.5, "confidence": 0.5}
    ]


PLACES = [("cat", 4, 7, 0), ("cat mat", -1, -1, 0), ("cat sat", -1, -1, 0), ("cat sat", -1, -1, 1)]


@pytest.mark.parametrize("place", [*PLACES, ("", None, None, None)])
def test_alternatives_are_the_spans_without_the_answer(place):
    """-1: words of a sequence model that do not stand side by side."""
    spans = {item: Span(*item, 1.0, 0.1) for item in PLACES}
    answer = Answer(*place, 1.0, 0.3, -1.0, 0.0, 1, tuple(spans.values()))
    assert answer.alternatives == tuple(span for item, span in spans.items() if item != place)
    assert answer._repr_html_().count("<li>") == len(answer.alternatives)

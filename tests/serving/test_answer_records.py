"""Questions, answers and how they are shown: fields are checked, the mark is right, every text is escaped."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from html.parser import HTMLParser

import numpy as np
import pytest

from qa_arch import Answer, Query, Span
from qa_arch.errors import ConfigError
from qa_arch.serving.answers import plain, sentence

WRONG = [
    ({"question": 5}, "question: text is wanted, not int"),
    ({"documents": "a text"}, "documents: a list of texts is wanted, not str"),
    ({"documents": ()}, "documents: there is none"),
    ({"documents": ("a", 3)}, r"documents\[1\]: text is wanted, not int"),
    ({"top_k": "3"}, "top_k: a whole number is wanted, not str"),
    ({"max_answer_tokens": 0}, "max_answer_tokens: 0 is out of range"),
    ({"null_threshold": math.nan}, "null_threshold: a number is wanted .*, not NaN"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(values, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        Query(**{"question": "Who?", "documents": ("a",), **values})


def test_what_is_right_is_taken():
    query = Query("", ["", "\x00 <b>"], np.int64(2), np.int32(9), -math.inf, False)  # type: ignore[arg-type]
    assert query.documents == ("", "\x00 <b>")
    assert Query("q", ("a",), null_threshold=0).null_threshold == 0
    assert hash(query) == hash(Query("", ("", "\x00 <b>"), 2, 9, -math.inf, False))


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


EVIL = '</div><script>alert("&1")</script>'


class Page(HTMLParser):
    """Tags and texts; a tag that is not closed in its place fails."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.text = self.marked = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        self.marked += data if "mark" in self.open else ""


def answer(documents, *, document=0, start=4, end=7, question="Who?", confidence=0.876, spans=()):
    text = documents[document][start:end]
    query = Query(question, tuple(documents))
    return Answer(text, start, end, document, 1.0, confidence, -1.0, 0.0, 1, spans, query)


def nothing(documents, **values):
    return Answer("", None, None, None, None, 0.5, math.inf, 0.0, 1, query=Query("Who?", documents), **values)


def test_the_answer_is_marked_in_its_passage():
    page = Page(answer(["the cat sat"])._repr_html_())
    assert page.marked == "cat"
    assert "Who?the cat satcat confidence 88%" in page.text


@pytest.mark.parametrize("place", ["question", "before", "answer", "after", "span"])
def test_nothing_in_a_text_becomes_html(place):
    texts = {name: EVIL if name == place else "word" for name in ("question", "before", "answer", "after")}
    document = texts["before"] + texts["answer"] + texts["after"]
    start = len(texts["before"])
    spans = (Span(EVIL, 0, len(EVIL), 0, 0.0, 0.2),) if place == "span" else ()
    html = answer(
        [document], start=start, end=start + len(texts["answer"]), question=texts["question"], spans=spans
    )._repr_html_()
    page = Page(html)
    assert page.tags <= {"div", "b", "bdi", "mark", "span", "ol", "li", "em"}
    assert EVIL in page.text
    assert page.marked == texts["answer"]
    assert document in page.text


def test_no_answer_is_said_plainly():
    page = Page(nothing(("a text",))._repr_html_())
    assert "a textno answer in this text confidence 50%" in page.text
    assert "mark" not in page.tags
    page = Page(nothing(("a text", "another"))._repr_html_())
    assert "no answer in these texts" in page.text
    shown = Page(nothing(("a text",), spans=(Span("text", 2, 6, 0, 0.0, 0.2),))._repr_html_())
    assert shown.text.endswith("Alternativestext confidence 20%")


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("It stood. Odo built it. It burnt.", "Odo", ("", "Odo", " built it.")),
        ("It stood. Odo built it. It burnt.", "built it.", ("Odo ", "built it.", "")),
        ("It stood.\nOdo built it\nIt burnt", "built", ("Odo ", "built", " it")),
        ("他来了。她走了。", "她", ("", "她", "走了。")),
        ("one. two three. four", "two three. four", ("", "two three. four", "")),
        ("red\x1b[31m and\tblue", "and", ("red [31m ", "and", " blue")),
    ],
)
def test_the_sentence_around_a_span(text, span, expected):
    start = text.index(span)
    assert sentence(text, start, start + len(span)) == expected


def test_no_text_steers_a_terminal():
    assert plain("a\x1b]0;x\x07\u2028\x85b\ud83d") == "a ]0;x   b "
    assert plain("é 世界 👩‍👩‍👧") == "é 世界 👩‍👩‍👧"

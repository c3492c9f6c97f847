"""Query and Answer: checks of fields, JSON, and the HTML and plain text that they are shown as."""

import json
import math
from dataclasses import fields
from html.parser import HTMLParser

import numpy as np
import pytest

from qa_arch import Answer, Query, Span
from qa_arch.errors import ConfigError, DataError
from qa_arch.qa.answers import plain, sentence


@pytest.mark.parametrize(
    ("values", "message", "error"),
    [
        ({"question": 5}, "question: must be a string, not int", ConfigError),
        ({"question": " \t"}, "question: is empty", ConfigError),
        ({"documents": "a text"}, "documents: must be a list of strings, not str", ConfigError),
        ({"documents": ()}, "documents: no text to read", ConfigError),
        ({"documents": ("", " \n\u00a0")}, "documents: no text to read", ConfigError),
        ({"documents": ("a", 3)}, r"documents\[1\]: must be a string, not int", ConfigError),
        ({"documents": ("a \ud83d",)}, r"documents\[0\]: character 2 .*surrogate", DataError),
        ({"top_k": "3"}, "top_k: '3' is out of range", ConfigError),
        ({"max_answer_tokens": 0}, "max_answer_tokens: 0 is out of range", ConfigError),
        ({"null_threshold": math.nan}, "null_threshold: nan is not a number", ConfigError),
    ],
)
def test_invalid_value_names_its_field(values, message, error):
    with pytest.raises(error, match=f"^{message}"):
        Query(**{"question": "Who?", "documents": ("a",), **values})


def test_valid_values_are_accepted():
    query = Query("?", ["", "\x00 <b>"], np.int64(2), np.int32(9), -math.inf, False)  # type: ignore[arg-type]
    assert query.documents == ("", "\x00 <b>")
    assert Query("q", ("a",), null_threshold=0).null_threshold == 0


def answer(document="the cat sat", start=4, end=7, question="Who?", spans=()):
    return Answer(
        document[start:end], start, end, 0, 1.0, 0.876, 0.1, -1.0, 0.0, 1, spans, Query(question, (document,))
    )


def no_answer(**values):
    query = Query("Who?", ("a text",))
    return Answer("", None, None, None, None, 0.5, 0.5, math.inf, -math.inf, 1, query=query, **values)


def test_answer_serializes_to_json_and_is_falsy_without_text():
    assert answer()
    assert not no_answer()
    assert repr(no_answer()) == "Answer(no answer, no_answer_probability=0.500, null_odds=inf)"
    assert repr(answer()) == "Answer('cat', start=4, end=7, document=0, confidence=0.876)"
    written = json.loads(json.dumps(no_answer().as_dict(), allow_nan=False))
    assert written["null_odds"] is written["null_threshold"] is None
    written = json.loads(json.dumps(answer(spans=(Span("cat", 4, 7, 0, 2.5, 0.5),)).as_dict()))
    assert set(written) == {field.name for field in fields(Answer)} - {"query"}
    assert written["spans"][0]["score"] == 2.5


SPANS = [("cat", 4, 7, 0), ("cat mat", -1, -1, 0), ("cat sat", -1, -1, 0), ("cat sat", -1, -1, 1)]


@pytest.mark.parametrize("answer_fields", [*SPANS, ("", None, None, None)])
def test_alternatives_are_the_other_spans(answer_fields):
    """Offsets -1: scattered words of a sequence model."""
    spans = {key: Span(*key, 1.0, 0.1) for key in SPANS}
    result = Answer(*answer_fields, 1.0, 0.3, 0.1, -1.0, 0.0, 1, tuple(spans.values()))
    assert result.alternatives == tuple(span for key, span in spans.items() if key != answer_fields)
    assert result._repr_html_().count("<small>") == len(result.alternatives)


class Page(HTMLParser):
    """Tags, text and marked text of HTML; fails if tags are not nested properly."""

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


def test_html_marks_the_answer_or_states_that_there_is_none():
    page = Page(answer()._repr_html_())
    assert page.marked == "cat"
    assert page.text == "Who?the cat satcat (88%)"
    page = Page(no_answer(spans=(Span("text", 2, 6, 0, 0.0, 0.2),))._repr_html_())
    assert page.text == "Who?no answer (50%)text (20%)"


@pytest.mark.parametrize("field", ["question", "before", "answer", "after", "span"])
def test_html_escapes_every_text(field):
    evil = '</div><script>alert("&1")</script>'
    texts = {name: evil if name == field else "word" for name in ("question", "before", "answer", "after")}
    start = len(texts["before"])
    spans = (Span(evil, 0, len(evil), 0, 0.0, 0.2),) if field == "span" else ()
    document = texts["before"] + texts["answer"] + texts["after"]
    html = answer(document, start, start + len(texts["answer"]), texts["question"], spans)._repr_html_()
    page = Page(html)
    assert page.tags <= {"div", "b", "mark", "small", "em"}
    assert evil in page.text
    assert page.marked == texts["answer"]


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("It stood. Odo built it. It burnt.", "Odo", ("", "Odo", " built it.")),
        ("It stood. Odo built it. It burnt.", "built it.", ("Odo ", "built it.", "")),
        ("It stood.\nOdo built it\nIt burnt", "built", ("Odo ", "built", " it")),
        ("他来了。她走了。", "她", ("", "她", "走了。")),
        ("red\x1b[31m and\tblue", "and", ("red [31m ", "and", " blue")),
    ],
)
def test_sentence_around_a_span(text, span, expected):
    start = text.index(span)
    assert sentence(text, start, start + len(span)) == expected


def test_plain_replaces_control_characters():
    assert plain("a\x1b]0;x\x07\u2028\x85b\ud83d") == "a ]0;x   b "
    assert plain("é 世界 👩‍👩‍👧") == "é 世界 👩‍👩‍👧"

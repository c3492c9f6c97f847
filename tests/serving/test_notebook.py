"""An answer in a notebook: the mark is where the answer is, and every text is escaped."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from qa_arch import Answer, Query, Span

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


def test_of_several_documents_that_with_the_answer_is_shown():
    spans = (Span("cat", 4, 7, 1, 1.0, 0.876), Span("dog", 0, 3, 0, 0.0, 0.1))
    page = Page(answer(["dogs bark", "the cat sat", "third"], document=1, spans=spans)._repr_html_())
    assert page.marked == "cat"
    assert "the cat sat" in page.text
    assert "bark" not in page.text
    assert "third" not in page.text
    assert "confidence 88%, document 2 of 3" in page.text
    assert page.text.endswith("Alternativesdog confidence 10%, document 1 of 3")


def test_no_answer_is_said_plainly():
    page = Page(nothing(("a text",))._repr_html_())
    assert "a textno answer in this text confidence 50%" in page.text
    assert "mark" not in page.tags
    page = Page(nothing(("a text", "another"))._repr_html_())
    assert "no answer in these texts" in page.text
    shown = Page(nothing(("a text",), spans=(Span("text", 2, 6, 0, 0.0, 0.2),))._repr_html_())
    assert shown.text.endswith("Alternativestext confidence 20%")


def test_a_long_passage_is_cut_around_the_answer():
    page = Page(answer(["a" * 5000 + "cat" + "b" * 5000], start=5000, end=5003)._repr_html_())
    assert re.search(r"\?…a{400}catb{400}…cat", page.text)
    assert "…" not in Page(answer(["the cat" + "b" * 400])._repr_html_()).text


def test_an_answer_without_its_query_is_shown_alone():
    bare = Answer("cat", 4, 7, 0, 1.0, 0.5, -1.0, 0.0, 1)
    assert Page(bare._repr_html_()).text == "cat confidence 50%"
    assert "\x00" not in answer(["the \x00\x00\x00 sat"])._repr_html_()


def test_colours_fit_light_and_dark():
    html = answer(["the cat sat"])._repr_html_()
    assert "color:inherit" in html
    assert not re.search(r"#[0-9a-f]{3}|:\s*(black|white)\b", html)

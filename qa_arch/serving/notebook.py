"""An answer as HTML for notebooks: its passage with the answer marked, its confidence, the alternatives.

Every text is escaped. The styles are inline and take colours from the page, so that light and dark both fit.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qa_arch.serving.query import Answer

AROUND = 400
"""Characters of the passage that are shown on each side of the answer."""
_MARK = "background:rgba(255,200,0,.35);color:inherit;border-radius:.2em;padding:0 .1em"
_PASSAGE = "white-space:pre-wrap;border-left:.2em solid rgba(128,128,128,.5);padding-left:.8em;margin:.4em 0"


def answer_html(answer: Answer) -> str:
    """A ``div`` that stands alone."""
    query = answer.query
    documents = query.documents if query else ()
    parts = [f'<div dir="auto"><b>{_text(query.question)}</b></div>'] if query else []
    if passage := _passage(answer, documents):
        parts.append(f'<div dir="auto" style="{_PASSAGE}">{passage}</div>')
    line = _line(answer.text, answer.confidence, answer.document, len(documents))
    parts.append(f"<div>{line}</div>")
    rows = [
        f"<li>{_line(span.text, span.confidence, span.document, len(documents))}</li>"
        for span in answer.alternatives
    ]
    if rows:
        parts.append(f'<div style="opacity:.7">Alternatives</div><ol style="margin:0">{"".join(rows)}</ol>')
    return f'<div style="line-height:1.5;max-width:50em">{"".join(parts)}</div>'


def _passage(answer: Answer, documents: tuple[str, ...]) -> str:
    """The document that holds the answer, cut around it; the only document where there is no answer."""
    if answer.document is None:
        return _cut(documents[0], 0, 2 * AROUND) if len(documents) == 1 else ""
    if not documents or answer.start is None or answer.end is None:
        return ""
    document = documents[answer.document]
    if answer.start < 0:  # words of a sequence model that do not stand side by side
        return _cut(document, 0, 2 * AROUND)
    before = _cut(document[: answer.start], answer.start - AROUND, answer.start)
    after = _cut(document[answer.end :], 0, AROUND)
    return f'{before}<mark style="{_MARK}">{_text(answer.text)}</mark>{after}'


def _line(text: str, confidence: float, document: int | None, documents: int) -> str:
    """A text, or that there is none, with its confidence and its place among several documents."""
    nothing = f"<em>no answer in {'these texts' if documents > 1 else 'this text'}</em>"
    place = f", document {document + 1} of {documents}" if documents > 1 and document is not None else ""
    words = f"<bdi>{_text(text)}</bdi>" if text else nothing
    return f'{words} <span style="opacity:.7">confidence {confidence:.0%}{place}</span>'


def _cut(text: str, start: int, end: int) -> str:
    """``text[start:end]`` escaped, with an ellipsis where something is left out."""
    start = max(start, 0)
    return ("…" if start else "") + _text(text[start:end]) + ("…" if end < len(text) else "")


def _text(text: str) -> str:
    return escape(text.replace("\x00", "\ufffd"))

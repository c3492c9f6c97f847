"""Sentences of a document, by the rules of ``data.selection_sets``."""

from __future__ import annotations

from qa_arch.data.selection_sets import sentence_spans


def sentences(document: str) -> list[str]:
    """Sentences of ``document`` in order, without outer white space; none for a blank document."""
    return [document[start:end] for start, end in sentence_spans(document)]

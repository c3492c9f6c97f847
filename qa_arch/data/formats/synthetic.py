"""``synthetic:SPLIT[:LEVEL]``: a split of the built-in generated set."""

from __future__ import annotations

from collections.abc import Sequence

from qa_arch.data.formats import Format, OnError
from qa_arch.types.text import QuestionSet


def _open(sources: Sequence[str], *, name: str, on_error: OnError) -> QuestionSet:
    from qa_arch.data import synthetic

    return synthetic.named(sources[0])


FORMAT = Format("synthetic:SPLIT", "the embedded set", open=_open, files=lambda source: ())

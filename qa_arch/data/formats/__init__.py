"""One module a data format, found by the scheme of a source: ``hub:...`` is opened by ``formats.hub``.

Such a module states a ``FORMAT`` and imports what is heavy only when it opens a set: help texts name every
format. ``data.sources`` is the registry; nothing else lists formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from qa_arch.data.input_files import expand
from qa_arch.types.text import QuestionSet, SelectionSet

OnError = Literal["raise", "skip"]
"""Stop at the first faulty record, or leave such records out and list them in the set."""
Holds = Literal["passages", "candidates", "classes"]
"""What a set is made of: questions on passages, answers to choose from, or the classes of questions."""


class Opener(Protocol):
    """Opens sources (without their scheme) as one set; raises DataError naming file, place and remedy."""

    def __call__(
        self, sources: Sequence[str], /, *, name: str, on_error: OnError
    ) -> QuestionSet | SelectionSet: ...


@dataclass(frozen=True)
class Format:
    """How the sources of one scheme are written, opened and identified. Sources come without their scheme."""

    usage: str
    """How a source is written, for help texts: ``hub:NAME:SPLIT``."""
    title: str
    """What one source is called in messages: ``a hub set``."""
    open: Opener
    holds: Holds = "passages"
    files: Callable[[str], Sequence[Path]] = expand
    """The files that a source reads: their content identifies it. Empty where its name does that."""
    joins: bool = False
    """Whether several sources make one set. If not, ``open`` is given a single one."""
    offline: bool = True
    """Whether it can be opened without a network."""
    counts: Callable[[str], Mapping[str, int]] | None = None
    """Questions, right answers and words of the questions, where these can be had without opening all."""

"""Data formats, a module each, named after the scheme of a source: ``formats.hub`` opens ``hub:...``.

A module defines ``FORMAT`` and imports heavy packages only when it opens a set, because help texts load
every format. ``data.sources`` is the registry; no other module lists formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from qa_arch.data.input_files import expand
from qa_arch.types.text import QuestionSet, SelectionSet

OnError = Literal["raise", "skip"]
"""Raise at the first faulty record, or leave faulty records out and list them in the set."""
Holds = Literal["passages", "candidates", "classes"]
"""The kinds of sets: questions on passages, questions with candidate answers, or with classes."""


class Opener(Protocol):
    """Opens sources (without their scheme) as one set; raises DataError naming file, place and remedy."""

    def __call__(
        self, sources: Sequence[str], /, *, name: str, on_error: OnError
    ) -> QuestionSet | SelectionSet: ...


@dataclass(frozen=True)
class Format:
    """How sources of a scheme are spelled, opened and identified; functions get them without the scheme."""

    usage: str
    """Spelling of a source, for help texts: ``hub:NAME:SPLIT``."""
    title: str
    """Noun for a source, for messages: ``a hub set``."""
    open: Opener
    holds: Holds = "passages"
    files: Callable[[str], Sequence[Path]] = expand
    """Files of a source, whose content identifies it. Empty where the name identifies it."""
    wraps: Callable[[str], tuple[str, str]] | None = None
    """(option, source) of a format that changes the set of any other source; the files are those of that."""
    joins: bool = False
    """Whether several sources make a single set. If not, ``open`` gets exactly one source."""
    offline: bool = True
    """Whether a source can be opened without a network."""
    licence: str = ""
    """The licence of its sets in a sentence; empty where that is not known."""
    counts: Callable[[str], Mapping[str, int]] | None = None
    """Counts of questions, right answers and question words, where these need no full read."""

"""Data formats, one module per source scheme: ``formats.hub`` opens ``hub:...``.

A module defines ``FORMAT`` and imports heavy packages only when it opens a set, as help texts load every
format. ``data.sources`` is the registry; no other module lists formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from qa_arch.data.input_files import expand

OnError = Literal["raise", "skip"]
"""Raise at the first faulty record, or skip faulty records and list them in the set."""
Use = Literal["training", "scoring", "answering"]
"""What a set is opened for. Training needs the place of every answer in its passage, scoring only ids and
answers, answering only ids, questions and passages."""
PASSAGES = "passages"
"""Kind of the sets that are a ``QuestionSet``; formats of extras may hold others."""


class Opener(Protocol):
    """Open sources (without their scheme) as one set. Raises DataError naming file, position and remedy."""

    def __call__(self, sources: Sequence[str], /, *, name: str, on_error: OnError, use: Use) -> Any: ...


@dataclass(frozen=True)
class Format:
    """Spelling, opening and identity of the sources of a scheme; functions get them without the scheme."""

    usage: str
    """Spelling of a source, for help texts: ``hub:NAME:SPLIT``."""
    title: str
    """Noun for a source, for messages: ``a hub set``."""
    open: Opener
    holds: str = PASSAGES
    model: str = "model=bert"
    """A model for sets of this kind, for messages."""
    files: Callable[[str], Sequence[Path]] = expand
    """Files of a source, whose content identifies it; empty if its name does."""
    joins: bool = False
    """Whether several sources can form a single set. If not, ``open`` gets exactly one source."""
    offline: bool = True
    """Whether a source can be opened without a network."""
    licence: str = ""
    """Licence of its sets, as a sentence; empty if unknown."""
    counts: Callable[[str], Mapping[str, int]] | None = None
    """Counts of questions, right answers and question words, for kinds other than passages."""

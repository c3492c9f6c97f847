"""FeatureTable: the features of a question set as flat arrays, unpadded and memory-mappable.

Every distinct passage and question is stored once, as a slice of the token columns. A window is a row
that refers to a question and to a slice of a passage; ``assemble`` joins the two.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qa_arch.errors import ConfigError

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Special(NamedTuple):
    """A special token of the template."""

    id: int
    segment: int


@dataclass(frozen=True, slots=True)
class Template:
    """Special tokens around a question and a passage: ``before q between c after``."""

    before: tuple[Special, ...]
    between: tuple[Special, ...]
    after: tuple[Special, ...]
    question_segment: int
    context_segment: int
    pad: int
    segments: bool
    """False for encoders without segment ids (``type_vocab_size <= 1``)."""

    @property
    def specials(self) -> int:
        """Number of special tokens of a window."""
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """All windows of a question set. Axes: ``N`` windows, ``X`` texts, ``K`` tokens, ``V`` words.

    Windows are ordered by example, then by position in the passage. The token columns end with one row
    that belongs to no text, without width and word; index -1 selects it.
    """

    template: Template
    vocabulary: tuple[str, ...]
    """The V distinct words of all texts, in their exact form."""
    folded: Ints
    """(V,) index of the case-folded form of each word: equal for words that differ only in case."""

    text_offsets: Longs
    """(X + 1,) tokens of text x are ``[text_offsets[x], text_offsets[x + 1])`` of the token columns."""
    ids: Ints
    """(K + 1,) vocabulary id of each piece."""
    char_start: Ints
    """(K + 1,) first character of each piece in its text; without white space at its edges."""
    char_end: Ints
    """(K + 1,) end of each piece, exclusive; equal to ``char_start`` for a piece of no width."""
    word_number: Ints
    """(K + 1,) running number, within the text, of the word that a piece belongs to; -1 for none."""
    word: Ints
    """(K + 1,) the same word as an index into ``vocabulary``; -1 for none."""

    example: Ints
    """(N,) row of the window's question in its set."""
    question_text: Ints
    """(N,) text of the question."""
    context_text: Ints
    """(N,) text of the passage."""
    question_length: Ints
    """(N,) tokens of the question, at most ``max_question``."""
    token_start: Longs
    """(N,) first context token of the window, an index into the token columns."""
    token_end: Longs
    """(N,) end of the window's context tokens, exclusive."""
    label_start: Ints
    """(N,) first token of the gold answer on the assembled window's axis; 0 if not answerable."""
    label_end: Ints
    """(N,) last token of the gold answer (inclusive); 0 if not answerable."""
    answerable: Bools
    """(N,) True where the window holds the whole gold answer."""

    truncated_questions: int = 0
    """Number of questions truncated to ``max_question`` tokens."""
    lost_answers: int = 0
    """Number of answerable questions without a window that holds the whole gold."""

    def __len__(self) -> int:
        return len(self.example)

    @property
    def context_at(self) -> Ints:
        """(N,) start of the context on the axis of the assembled window.

        Position ``t`` of window ``n`` is token ``token_start[n] + t - context_at[n]`` of the columns.
        """
        return self.question_length + np.int32(len(self.template.before) + len(self.template.between))

    @property
    def lengths(self) -> Ints:
        """(N,) tokens of each assembled window, special tokens included."""
        context = (self.token_end - self.token_start).astype(np.int32)
        return self.question_length + context + np.int32(self.template.specials)

    @property
    def largest_id(self) -> int:
        """The largest vocabulary id of all windows, special tokens and padding included."""
        template = self.template
        specials = [token.id for token in (*template.before, *template.between, *template.after)]
        return max(int(self.ids.max()), template.pad, *specials)


def check_ids(table: FeatureTable, vocab_size: int, encoder: str) -> None:
    """Raise ConfigError where a window holds an id that ``encoder`` has no embedding of.

    Ids that no text uses do not matter: some published tokenizers know a few more than their encoder.
    """
    if table.largest_id >= vocab_size:
        raise ConfigError(
            f"encoder.name: {encoder} has {vocab_size} token embeddings and its tokenizer"
            f" writes id {table.largest_id}: put the tokenizer that belongs to the encoder beside its weights"
        )


def array_names() -> tuple[str, ...]:
    """Array fields of FeatureTable, in storage order."""
    not_arrays = {"template", "vocabulary", "truncated_questions", "lost_answers"}
    return tuple(f.name for f in fields(FeatureTable) if f.name not in not_arrays)


def template_from(record: dict[str, Any]) -> Template:
    """Template from its ``dataclasses.asdict`` form, as read back from JSON."""
    parts = {name: tuple(Special(*pair) for pair in record[name]) for name in ("before", "between", "after")}
    return Template(**{**record, **parts})

"""Padded arrays of windows: ``before question between context after``, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qa_arch.features.table import Bools, FeatureTable, Longs


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Padded windows of a table. Axes: ``B`` windows, ``T`` tokens; see ``Batch``."""

    ids: Longs
    mask: Bools
    segments: Longs | None
    question: Bools
    context: Bools
    source: Longs
    """(B, T) row of each token in the table's token columns; -1 on special tokens and padding."""


def assemble(table: FeatureTable, rows: Longs, width: int | None = None) -> Window:
    """Windows ``rows`` of ``table``, padded on the right to ``width`` or to the longest window."""
    template = table.template
    lengths = table.lengths[rows][:, None]
    position = np.arange(int(lengths.max()) if width is None else width)[None, :]
    context_at, question_length = table.context_at[rows][:, None], table.question_length[rows][:, None]
    context_length = (table.token_end - table.token_start)[rows][:, None]

    in_question = position - len(template.before)
    in_context = position - context_at
    question = (in_question >= 0) & (in_question < question_length)
    context = (in_context >= 0) & (in_context < context_length)
    first = table.text_offsets[table.question_text[rows]][:, None]
    source = np.where(question, first + in_question, -1)
    source = np.where(context, table.token_start[rows][:, None] + in_context, source)

    ids = np.where(source >= 0, table.ids[source], template.pad).astype(np.int64)
    segments = np.where(context, template.context_segment, np.where(question, template.question_segment, 0))
    special_groups = (
        (template.before, np.zeros_like(question_length)),
        (template.between, len(template.before) + question_length),
        (template.after, context_at + context_length),
    )
    for specials, begin in special_groups:
        for nth, special in enumerate(specials):
            np.put_along_axis(ids, begin + nth, special.id, axis=1)
            np.put_along_axis(segments, begin + nth, special.segment, axis=1)
    visible = table.char_end[source] > table.char_start[source]
    return Window(
        ids=ids,
        mask=position < lengths,
        segments=segments if template.segments else None,
        question=question,
        context=context & visible,
        source=source,
    )

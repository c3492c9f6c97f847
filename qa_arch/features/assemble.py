"""Windows put together as padded arrays: ``before question between context after``, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qa_arch.features.table import Bools, FeatureTable, Longs


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Windows of a table, padded to the longest. Axes: ``B`` windows, ``T`` tokens; see ``Batch``."""

    ids: Longs
    mask: Bools
    segments: Longs | None
    question: Bools
    context: Bools
    source: Longs
    """(B, T) row of each token in the table's token columns; -1 on special tokens and padding."""


def assemble(table: FeatureTable, rows: Longs, width: int | None = None) -> Window:
    """The windows ``rows`` of ``table``, padded on the right to ``width`` or to the longest."""
    template = table.template
    lengths = table.lengths[rows][:, None]
    at = np.arange(int(lengths.max()) if width is None else width)[None, :]
    context_at, asked = table.context_at[rows][:, None], table.question_length[rows][:, None]
    shared = (table.token_end - table.token_start)[rows][:, None]

    in_question = at - len(template.before)
    in_context = at - context_at
    question = (in_question >= 0) & (in_question < asked)
    context = (in_context >= 0) & (in_context < shared)
    first = table.text_offsets[table.question_text[rows]][:, None]
    source = np.where(question, first + in_question, -1)
    source = np.where(context, table.token_start[rows][:, None] + in_context, source)

    ids = np.where(source >= 0, table.ids[source], template.pad).astype(np.int64)
    segments = np.where(context, template.context_segment, np.where(question, template.question_segment, 0))
    places = (
        (template.before, np.zeros_like(asked)),
        (template.between, len(template.before) + asked),
        (template.after, context_at + shared),
    )
    for specials, begin in places:
        for nth, special in enumerate(specials):
            np.put_along_axis(ids, begin + nth, special.id, axis=1)
            np.put_along_axis(segments, begin + nth, special.segment, axis=1)
    wide = table.char_end[source] > table.char_start[source]
    return Window(
        ids=ids,
        mask=at < lengths,
        segments=segments if template.segments else None,
        question=question,
        context=context & wide,
        source=source,
    )

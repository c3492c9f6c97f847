"""A table column with the length of the model's name."""

from __future__ import annotations

from qa_arch.results.columns import Column

COLUMNS = (Column("name_length", "letters", lambda scored: len(scored.model)),)

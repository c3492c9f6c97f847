"""A column of tables: how long a model's name is."""

from __future__ import annotations

from qa_arch.results.columns import Column

COLUMNS = (Column("name_length", "letters", lambda scored: len(scored.model)),)

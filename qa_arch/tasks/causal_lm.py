"""Causal language modelling: each token from those before it (Radford et al. 2018)."""

from __future__ import annotations

from typing import Any

from qa_arch.config.schema import Config
from qa_arch.pretraining.language_batches import CausalCollator, LanguageTable
from qa_arch.tasks.language import LanguageTask


class CausalLanguageTask(LanguageTask):
    """Every token of a block but its first, from left to right."""

    name = "causal_lm"
    every_token = True

    def collator(self, config: Config, table: LanguageTable, seed: int | None = None) -> CausalCollator:
        return CausalCollator(table, config.pretraining, seed)

    def measure(self, config: Config) -> dict[str, Any]:
        return {}


TASK = CausalLanguageTask()

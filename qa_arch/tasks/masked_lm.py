"""Masked language modelling (Devlin et al. 2019), with next-sentence prediction or sentence order (Lan et al.
2020) by ``model.sentence_task``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED
from qa_arch.errors import DataError
from qa_arch.pretraining.language_batches import LanguageTable, MaskedCollator
from qa_arch.pretraining.packing import Unit
from qa_arch.tasks.language import LanguageParts, LanguageTask


class MaskedLanguageTask(LanguageTask):
    """Hidden tokens from both sides; in pairs also whether the second part follows the first."""

    name = "masked_lm"
    every_token = False

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> LanguageParts:
        parts = super().assemble(config, trusted)
        for split, table in parts.tables.items():
            if _sentence_task(config) == "nsp" and len(table.blocks.documents) < 2:
                raise DataError(
                    f"data.{split}: {parts.sets[split].name} is a single document, and next-sentence"
                    " prediction takes false pairs from two; name a corpus of more, or"
                    " model.sentence_task=sop"
                )
        return parts

    def unit(self, config: Config) -> Unit:
        return "tokens" if _sentence_task(config) == "none" else "sentences"

    def collator(self, config: Config, table: LanguageTable, seed: int | None = None) -> MaskedCollator:
        return MaskedCollator(table, config.pretraining, seed, _sentence_task(config))

    def measure(self, config: Config) -> dict[str, Any]:
        noise = config.pretraining
        return {
            "sentence_task": _sentence_task(config),
            "mask_share": noise.mask_share,
            "masked": noise.masked,
            "replaced": noise.replaced,
            "whole_words": noise.whole_words,
        }


def _sentence_task(config: Config) -> Any:
    return config.model.get("sentence_task", "none")


TASK = MaskedLanguageTask()

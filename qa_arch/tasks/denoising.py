"""Denoising: a text from one with spans hidden and sentences moved (Lewis et al. 2020, BART)."""

from __future__ import annotations

from typing import Any

from qa_arch.config.schema import Config
from qa_arch.pretraining.language_batches import DenoisingCollator, LanguageTable
from qa_arch.tasks.language import LanguageTask


class DenoisingTask(LanguageTask):
    """Every token of a block, from the noisy block and the tokens before it."""

    name = "denoising"
    every_token = True

    def collator(self, config: Config, table: LanguageTable, seed: int | None = None) -> DenoisingCollator:
        return DenoisingCollator(table, config.pretraining, seed)

    def measure(self, config: Config) -> dict[str, Any]:
        noise = config.pretraining
        return {
            "mask_share": noise.mask_share,
            "span_length": noise.span_length,
            "permute_sentences": noise.permute_sentences,
        }


TASK = DenoisingTask()

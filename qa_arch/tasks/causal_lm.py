"""Causal language modelling: each token from those before it (Radford et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError
from qa_arch.models.language_models import CausalLM
from qa_arch.pretraining.language_batches import CausalCollator, LanguageTable
from qa_arch.tasks.language import LanguageParts, LanguageTask
from qa_arch.types.tensors import LanguageBatch


class CausalLanguageTask(LanguageTask):
    """Every token of a block but its first, from left to right."""

    name = "causal_lm"
    every_token = True

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> LanguageParts:
        parts = super().assemble(config, trusted)
        if isinstance(parts.model, CausalLM) and not looks_ahead_never(parts.model):
            raise ConfigError(
                f"encoder: {parts.encoder.config.model_type} reads tokens that a look-ahead mask hides from"
                " it, so it cannot be a decoder; choose bert, roberta, albert, distilbert or qa_transformer"
            )
        return parts

    def collator(self, config: Config, table: LanguageTable, seed: int | None = None) -> CausalCollator:
        return CausalCollator(table, config.pretraining, seed)

    def measure(self, config: Config) -> dict[str, Any]:
        return {}


def looks_ahead_never(model: CausalLM) -> bool:
    """Whether what a model says of a token is the same whatever comes behind it."""
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]]) % model.encoder.vocab_size
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    segments = torch.zeros_like(ids) if model.encoder.has_segments else None
    batch = LanguageBatch(ids[:, 0], ids, everywhere, segments, ids, everywhere, torch.ones(2))
    was_training = model.training
    try:
        with torch.inference_mode():
            first, second = model.eval()(batch).tokens
    except (RuntimeError, ValueError):  # of an attention that takes no such mask
        return False
    finally:
        model.train(was_training)
    return torch.equal(first[:3], second[:3])


TASK = CausalLanguageTask()

"""Any ``AutoModelForMaskedLM`` checkpoint: the library's own class, whole, asked for masked tokens."""

from __future__ import annotations

from typing import NamedTuple

from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from qa_arch.errors import ConfigError
from qa_arch.models.checkpoint_files import CheckpointFiles
from qa_arch.models.encoders import load_tokenizer
from qa_arch.models.span_checkpoint import load_with_head, read_config


class MaskedCheckpoint(NamedTuple):
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_masked_checkpoint(files: CheckpointFiles) -> MaskedCheckpoint:
    """Model (in fp32) and tokenizer of ``files``; nothing is downloaded, no code of theirs is run.

    Raises ConfigError for what is no masked language model or was saved without its head, UnavailableError
    for files that cannot be read.
    """
    config = read_config(files)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise ConfigError(
            f"{files.source}: transformers has no masked language model of '{config.model_type}'; name one of"
            " BERT's kind, or a run of model=pretrain/mlm"
        )
    tokenizer = load_tokenizer(str(files.folder))
    remedy = "a bare encoder predicts no tokens, name a checkpoint with its MLM head or a pre-training run"
    model = load_with_head(files, config, AutoModelForMaskedLM, "head of masked language modelling", remedy)
    return MaskedCheckpoint(model.eval(), tokenizer)

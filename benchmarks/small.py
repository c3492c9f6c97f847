"""A model with a negligible forward pass, which leaves the cost of our own code."""

from __future__ import annotations

import torch

from baselines.transformer import TransformerSpan
from benchmarks import inputs
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.nn.encoder import Encoder
from qa_arch.qa.reader import Reader


def small_predictor() -> Reader:
    """One random layer of width 16 with MiniLM's tokenizer."""
    torch.manual_seed(inputs.SEED)
    tokenizer = inputs.tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32}
    encoder = Encoder.from_description({"model_type": "bert", "vocab_size": len(tokenizer), **sizes})
    config = validate(compose(["model=bert", "encoder=minilm", "glove=none", "logger=none"]))
    return Reader(TransformerSpan(encoder), tokenizer, None, config, segments=True)

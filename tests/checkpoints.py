"""Tiny checkpoints of the library's own question-answering classes, with the tokenizers of their families."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    DebertaTokenizer,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerFast,
    SplinterTokenizer,
)

from qa_arch.features import tokenizers

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2},
    "roberta": {"type_vocab_size": 1, "max_position_embeddings": 66},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "albert": {"type_vocab_size": 2, "embedding_size": 8},
    "electra": {"type_vocab_size": 2, "embedding_size": 8},
    "deberta": {"type_vocab_size": 0, **DEBERTA},
    "deberta-v2": {"type_vocab_size": 0, "position_buckets": 8, "share_att_key": True, **DEBERTA},
    "mpnet": {"max_position_embeddings": 66},
    "splinter": {"type_vocab_size": 2, "question_token_id": 5},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 16},
}
"""Model type -> sizes besides ``SIZES``; ``type_vocab_size`` as in the published checkpoints."""


def make_tokenizer(family: str, texts: Sequence[str], size: int = 320) -> PreTrainedTokenizerFast:
    """A tokenizer of the class and with the template that the family's checkpoints use."""
    if family in ("bert", "distilbert", "electra"):
        return tokenizers.build("wordpiece", texts, size)
    if family == "roberta":
        return tokenizers.build("byte_bpe", texts, size)
    if family == "albert":
        return tokenizers.build("unigram", texts, size)
    if family == "mpnet":
        pieces = _model(tokenizers.build("wordpiece", texts, size))["vocab"]
        return MPNetTokenizer(vocab=_numbered(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], list(pieces)[5:]))
    if family == "splinter":
        pieces = _model(tokenizers.build("wordpiece", texts, size))["vocab"]
        return SplinterTokenizer(
            vocab=_numbered(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[QUESTION]"], list(pieces)[5:])
        )
    if family == "deberta-v2":
        pieces = _model(tokenizers.build("unigram", texts, size))["vocab"][5:]
        specials = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
        return DebertaV2Tokenizer(vocab=[*specials, *map(tuple, pieces)])
    bpe = _model(tokenizers.build("byte_bpe", texts, size))
    vocab = _numbered(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], bpe["vocab"])
    deberta = DebertaTokenizer(vocab=vocab, merges=[tuple(pair) for pair in bpe["merges"]])
    return deberta if family == "deberta" else _modernbert(deberta)


def _modernbert(byte_bpe: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """ModernBERT's tokenizer: generic byte-level BPE with BERT's template but without segment ids."""
    backend = byte_bpe.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:0 [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **names
    )


def make_checkpoint(
    family: str,
    folder: Path,
    texts: Sequence[str],
    *,
    model_class: Any = AutoModelForQuestionAnswering,
    **sizes,
) -> Path:
    """Save a randomly initialised model of the library's class and its tokenizer to ``folder``."""
    tokenizer = make_tokenizer(family, texts)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(family, **{**SIZES, **CONFIGS[family], **ids, **sizes})
    torch.manual_seed(7)
    model_class.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def relabel(weights: Path, new: str, names: str = "") -> None:
    """Give the tensors whose name ends with ``names`` the type ``new`` in the header; no value changes."""
    content = weights.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    for name, tensor in header.items():
        if name != "__metadata__" and name.endswith(names):
            tensor["dtype"] = new
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def _model(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]


def _numbered(specials: Sequence[str], pieces: Sequence[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys([*specials, *pieces]))}

"""Special tokens of a tokenizer around a pair, read from an encoded pair, never hard-coded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from qa_arch.errors import ConfigError
from qa_arch.features.table import Special, Template


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The Rust tokenizer behind ``tokenizer``. Raises ConfigError for a tokenizer without one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ConfigError(
            f"{name_of(tokenizer)} is a slow tokenizer and knows no character offsets: "
            "choose an encoder whose folder has a tokenizer.json"
        )
    return backend


def name_of(tokenizer: PreTrainedTokenizerBase) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


@contextmanager
def unlimited(backend: Tokenizer) -> Iterator[Tokenizer]:
    """``backend`` with truncation and padding switched off inside the ``with`` block."""
    truncation, padding = backend.truncation, backend.padding
    backend.no_truncation()
    backend.no_padding()
    try:
        yield backend
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def has_segment_ids(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether ``tokenizer`` itself tells question from context by segment ids (RoBERTa's writes zeros)."""
    with unlimited(backend_of(tokenizer)) as backend:
        return any(backend.encode("a", "b").type_ids)


def probe(tokenizer: PreTrainedTokenizerBase, segments: bool) -> Template:
    """Template of ``tokenizer`` for (question, context), read from an encoded pair.

    ``segments`` says whether the encoder has segment ids (``type_vocab_size > 1``). They are the
    template's own, or 0 up to the separator and 1 after it where the template has only zeros.
    Raises ConfigError for a slow tokenizer, one without a padding token, or another order of the pair.
    """
    with unlimited(backend_of(tokenizer)) as backend:
        pair = backend.encode("a", "b")
    parts = pair.sequence_ids
    if 0 not in parts or 1 not in parts or parts.index(0) > parts.index(1):
        raise ConfigError(f"{name_of(tokenizer)} does not encode a pair as question, then context")
    if tokenizer.pad_token_id is None:
        raise ConfigError(f"{name_of(tokenizer)} has no padding token: set tokenizer.pad_token")
    question, context = parts.index(0), parts.index(1)
    after_question = len(parts) - parts[::-1].index(0)
    after_context = len(parts) - parts[::-1].index(1)
    types = pair.type_ids
    if not any(types):
        types = [int(position >= context) for position in range(len(parts))]
    tokens = [Special(*token) for token in zip(pair.ids, types, strict=True)]
    return Template(
        before=tuple(tokens[:question]),
        between=tuple(tokens[after_question:context]),
        after=tuple(tokens[after_context:]),
        question_segment=types[question],
        context_segment=types[context],
        pad=tokenizer.pad_token_id,
        segments=segments,
    )

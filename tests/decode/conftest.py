"""Windows made up for the decoding tests: one word per token, one letter and a number per word."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qa_arch.types.tensors import SpanLogits
from qa_arch.types.text import Example, QuestionSet


def span_logits(start, end, null_start=None, null_end=None, **more) -> SpanLogits:
    start, end = torch.as_tensor(start).float(), torch.as_tensor(end).float()
    zero = torch.zeros(len(start))
    return SpanLogits(
        start,
        end,
        zero if null_start is None else torch.as_tensor(null_start).float(),
        zero if null_end is None else torch.as_tensor(null_end).float(),
        **more,
    )


def world(sizes, tokens=12, before=3, words=40, seed=0):
    """Questions with ``sizes[q]`` overlapping windows each: questions, table, logits of all windows.

    A window is ``before`` positions that are no context, then ``tokens`` tokens of the passage.
    """
    contexts = [" ".join(f"{chr(97 + q % 26)}{w}" for w in range(words)) for q in range(len(sizes))]
    examples = tuple(Example(f"q{q}", "what", context) for q, context in enumerate(contexts))
    spans = [(m, m + len(word)) for m, word in _words(contexts)]
    step = tokens // 2
    example = np.repeat(np.arange(len(sizes)), sizes)
    nth = np.concatenate([np.arange(size) for size in sizes])
    table = SimpleNamespace(
        example=example,
        token_start=example * words + nth * step,
        context_at=np.full(len(example), before),
        char_start=np.array([s for s, _ in spans] + [0]),
        char_end=np.array([e for _, e in spans] + [0]),
    )
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, len(example), before + tokens, generator=draw) * 2
    logits[:, :, :before] = -torch.inf
    null = torch.randn(2, len(example), generator=draw)
    return QuestionSet("made up", examples, "2.0", "0"), table, span_logits(*logits, *null)


def _words(contexts):
    for context in contexts:
        at = 0
        for word in context.split(" "):
            yield at, word
            at += len(word) + 1


@pytest.fixture(scope="session")
def make_logits():
    return span_logits


@pytest.fixture(scope="session")
def make_world():
    return world

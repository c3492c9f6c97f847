"""Windows made up for the decoding tests: one word per token, one letter and a number per word."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from qa_arch.spans.ranking import Ranking, char_spans, rank
from qa_arch.spans.search import best_spans
from qa_arch.types.tensors import SpanLogits
from qa_arch.types.text import Example, QuestionSet


def make_logits(start, end, null_start=None, null_end=None, **more) -> SpanLogits:
    start, end = torch.as_tensor(start).float(), torch.as_tensor(end).float()
    nulls = (
        torch.zeros(len(start)) if n is None else torch.as_tensor(n).float() for n in (null_start, null_end)
    )
    return SpanLogits(start, end, *nulls, **more)


def make_world(sizes, tokens=12, before=3, words=40, seed=0):
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
    return QuestionSet("made up", examples, "2.0", "0"), table, make_logits(*logits, *null)


def _words(contexts):
    for context in contexts:
        at = 0
        for word in context.split(" "):
            yield at, word
            at += len(word) + 1


def rank_world(
    made, search="band", order=None, *, n_best=20, any_span=False, max_answer_tokens=30
) -> Ranking:
    """Search, offsets and join of a made-up world, its windows in ``order``."""
    questions, table, logits = made
    windows = np.arange(len(table.example)) if order is None else np.asarray(order)
    options = {"n_best": n_best, "any_span": any_span, "max_answer_tokens": max_answer_tokens}
    result = best_spans(logits, search=search, **options).take(windows)
    origin = (table.token_start - table.context_at)[windows]
    start, end = char_spans(result, origin, table.char_start, table.char_end)
    return rank(
        result,
        questions.examples,
        window=windows,
        example=table.example[windows],
        char_start=start,
        char_end=end,
        expected=np.bincount(table.example, minlength=len(questions)),
        n_best=n_best,
        dedupe=search != "grid",
    )

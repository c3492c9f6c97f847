"""Synthetic windows for the decoding tests: one word per token, a letter and a number per word."""

import re
from types import SimpleNamespace

import numpy as np
import torch

from qa_arch.qa.ranking import Ranking, char_spans, rank
from qa_arch.qa.search import best_spans
from qa_arch.tensors import SpanLogits
from qa_arch.types import Example, QuestionSet


def make_logits(start, end, null_start=None, null_end=None, **more) -> SpanLogits:
    start, end = torch.as_tensor(start).float(), torch.as_tensor(end).float()
    nulls = (
        torch.zeros(len(start)) if n is None else torch.as_tensor(n).float() for n in (null_start, null_end)
    )
    return SpanLogits(start, end, *nulls, **more)


def make_windows(sizes, tokens=12, before=3, words=40, seed=0):
    """Questions, table and logits of windows; question q has ``sizes[q]`` overlapping ones.

    A window has ``before`` positions outside the context, then ``tokens`` tokens of the passage.
    """
    contexts = [" ".join(f"{chr(97 + q % 26)}{w}" for w in range(words)) for q in range(len(sizes))]
    examples = tuple(Example(f"q{q}", "what", context) for q, context in enumerate(contexts))
    spans = [match.span() for context in contexts for match in re.finditer(r"\S+", context)]
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
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, len(example), before + tokens, generator=generator) * 2
    logits[:, :, :before] = -torch.inf
    null = torch.randn(2, len(example), generator=generator)
    return QuestionSet("synthetic", examples, "2.0"), table, make_logits(*logits, *null)


def rank_windows(windows, search="band", order=None, *, n_best=20, max_answer_tokens=30) -> Ranking:
    """Search and rank the windows of ``make_windows``, processed in ``order``."""
    questions, table, logits = windows
    rows = np.arange(len(table.example)) if order is None else np.asarray(order)
    found = best_spans(logits, search=search, n_best=n_best, max_answer_tokens=max_answer_tokens)
    result = found.take(rows)
    origin = (table.token_start - table.context_at)[rows]
    start, end = char_spans(result, origin, table.char_start, table.char_end)
    return rank(
        result,
        questions.examples,
        window=rows,
        example=table.example[rows],
        char_start=start,
        char_end=end,
        expected=np.bincount(table.example, minlength=len(questions)),
        n_best=n_best,
        dedupe=search != "grid",
    )

"""Decoding: from the logits of all windows to n-best dictionaries, on generated passages.

The number of windows and their lengths match the 6,078 questions of the real dev set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset

from benchmarks import peers
from benchmarks.targets import Measure, Measurement, cost, speedup
from benchmarks.timing import alternate
from qa_arch.qa.decoding import best_spans
from qa_arch.qa.files import nbest, predictions
from qa_arch.qa.ranking import Ranking, SpanCandidates, char_spans, rank
from qa_arch.tensors import SpanLogits
from qa_arch.types import Example

WIDTH, BEFORE, ROOM, STRIDE = 384, 15, 368, 128
LONG = 500
"""Tokens of a passage that needs two windows."""
BATCH = 1024


@dataclass(frozen=True, slots=True, eq=False)
class DecodingInputs:
    """Q questions with 1 or 2 windows each, N in total; the arrays are those of a feature table."""

    examples: tuple[Example, ...]
    sizes: np.ndarray
    example: np.ndarray
    origin: np.ndarray
    tokens: np.ndarray
    """(N,) tokens of the passage in each window."""
    char_start: np.ndarray
    char_end: np.ndarray
    logits: SpanLogits


def random_inputs(questions: int, two_windows: int, seed: int = 0) -> DecodingInputs:
    """Generate inputs for ``questions``, of which ``two_windows`` need two windows."""
    draw = np.random.default_rng(seed)
    sizes = np.ones(questions, np.int64)
    sizes[draw.choice(questions, two_windows, replace=False)] += 1
    lengths = np.clip(draw.lognormal(np.log(150), 0.4, questions), 20, ROOM - 3).astype(int)
    lengths[sizes > 1] = LONG
    examples, starts, ends = [], [], []
    for q, length in enumerate(lengths):
        words = ["w" * int(k) for k in draw.integers(2, 9, length)]
        stops = np.cumsum([len(word) + 1 for word in words]) - 1
        starts.append(stops - [len(word) for word in words])
        ends.append(stops)
        examples.append(Example(f"q{q:05d}", "what", " ".join(words)))
    example = np.repeat(np.arange(questions), sizes)
    nth = np.arange(len(example)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    shift = nth * (LONG - ROOM)  # the second window ends where the passage does
    first = (np.cumsum(lengths) - lengths)[example] + shift
    return DecodingInputs(
        tuple(examples),
        sizes,
        example,
        first - BEFORE,
        np.minimum(lengths[example], ROOM),
        np.concatenate([*starts, [0]]).astype(np.int32),
        np.concatenate([*ends, [0]]).astype(np.int32),
        _logits(draw, np.minimum(lengths[example], ROOM)),
    )


def _logits(draw: np.random.Generator, tokens: np.ndarray) -> SpanLogits:
    position = np.arange(WIDTH)[None]
    inside = (position >= BEFORE) & (position < BEFORE + tokens[:, None])
    token_logits = [np.where(inside, draw.normal(0, 2, inside.shape), -np.inf) for _ in range(2)]
    nulls = [draw.normal(4, 2, len(tokens)) for _ in range(2)]
    start, end, null_start, null_end = (
        torch.from_numpy(x.astype(np.float32)) for x in (*token_logits, *nulls)
    )
    return SpanLogits(start, end, null_start, null_end)


def ranked(data: DecodingInputs) -> Ranking:
    """Candidates of each question, best first, as in ``qa-arch predict decode=grid``."""
    logits = data.logits
    parts = []
    for begin in range(0, len(data.example), BATCH):
        rows = slice(begin, begin + BATCH)
        part = SpanLogits(
            logits.start[rows], logits.end[rows], logits.null_start[rows], logits.null_end[rows]
        )
        parts.append(best_spans(part, search="grid"))
    spans = SpanCandidates.concatenate(parts)
    char_start, char_end = char_spans(spans, data.origin, data.char_start, data.char_end)
    return rank(
        spans,
        data.examples,
        window=np.arange(len(data.example)),
        example=data.example,
        char_start=char_start,
        char_end=char_end,
        expected=data.sizes,
        dedupe=False,
    )


def ours(data: DecodingInputs) -> tuple[list[str], list[list[peers.Entry]]]:
    """Texts and n-best lists, as in ``qa-arch predict decode=grid``."""
    ranking = ranked(data)
    return list(predictions(ranking, 0.0).values()), [candidates for _, candidates in nbest(ranking)]


def theirs(data: DecodingInputs) -> tuple:
    """Arguments of the peer's post-processing for the same windows; features are Arrow rows."""
    windows: list[list[int]] = [[] for _ in data.examples]
    offsets: list[list[tuple[int, int] | None]] = []
    for row, (q, origin, count) in enumerate(zip(data.example, data.origin, data.tokens, strict=True)):
        visible = slice(origin + BEFORE, origin + BEFORE + count)
        pairs = zip(data.char_start[visible].tolist(), data.char_end[visible].tolist(), strict=True)
        offsets.append([*[None] * BEFORE, *pairs, *[None] * (WIDTH - BEFORE - count)])
        windows[q].append(row)
    start, end = data.logits.start.numpy().copy(), data.logits.end.numpy().copy()
    start[:, 0], end[:, 0] = data.logits.null_start, data.logits.null_end
    zeros = np.zeros((len(offsets), WIDTH), np.int32)  # read with the row but unused
    columns: dict[str, object] = {"input_ids": zeros, "token_type_ids": zeros, "attention_mask": zeros}
    features = Dataset.from_dict(columns | {"offset_mapping": offsets})
    return [example.context for example in data.examples], windows, features, start, end


def equal(mine: tuple, peer: tuple) -> bool:
    """Compare texts and n-best lists, with probabilities to 1e-6."""
    if mine[0] != peer[0]:
        return False
    for entries, peer_entries in zip(mine[1], peer[1], strict=True):
        if [entry["text"] for entry in entries] != [entry["text"] for entry in peer_entries]:
            return False
        probabilities, expected = (
            [entry["probability"] for entry in entries] for entries in (entries, peer_entries)
        )
        if not np.allclose(probabilities, expected, rtol=0, atol=1e-6):
            return False
    return True


def dev_sized(quick: bool) -> DecodingInputs:
    return random_inputs(300, 30) if quick else random_inputs(6078, 206)


def grid(quick: bool) -> Measurement:
    data = dev_sized(quick)
    arguments = theirs(data)
    if not equal(ours(data), peers.post_process(*arguments)):
        raise RuntimeError("texts or n-best lists differ from the peer's")
    pairs = alternate(lambda: ours(data), lambda: peers.post_process(*arguments), 3, warm=False)
    return speedup(pairs, f"{len(data.examples)} generated questions, {len(data.example)} windows")


def floor(quick: bool) -> Measurement:
    """Decoding against the part no decoder can avoid: building dictionaries from a finished ranking."""
    data = dev_sized(quick)
    ranking = ranked(data)
    pairs = alternate(lambda: ours(data), lambda: dict(nbest(ranking)), 3 if quick else 5)
    return cost(pairs, f"{len(ranking.start):,} dictionaries of {len(data.examples):,} questions")


ROWS: dict[str, Measure] = {"decode-grid": grid, "decode-floor": floor}

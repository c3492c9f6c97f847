"""Training steps of MiniLM: length buckets against full padding, the proposed model against a linear head.

The pairs are different batches of one epoch, spread evenly over the lengths and timed once on both sides, so
the ratio is that of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial

import numpy as np
import torch
from torch import nn

from baselines.transformer import TransformerSpan
from benchmarks import inputs
from benchmarks.targets import EMULATED, Measure, Measurement, NotMeasuredError
from benchmarks.timing import Pairs, Timed, median_time, once
from qa_arch.features.batches import BucketBatchSampler, Collator
from qa_arch.models.proposed import BertMatch
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.losses import SpanLoss
from qa_arch.nn.precision import bf16_is_faster
from qa_arch.tensors import Batch

BATCH = 16
WORD_VECTOR_DIM = 300


def trainer_of(model: nn.Module) -> Callable[..., None]:
    """``step(batch, bf16=False)``: one optimizer step, optionally under bf16 autocast."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)

    def step(batch: Batch, bf16: bool = False) -> None:
        assert batch.labels is not None
        with torch.autocast(batch.ids.device.type, torch.bfloat16) if bf16 else nullcontext():
            loss = SpanLoss()(model(batch), batch.labels).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def encoder() -> Encoder:
    """MiniLM with attention dropout 0, as any other value disables torch's fused CPU attention."""
    inputs.require_minilm()
    return inputs.encoder(init="pretrained", name="minilm", attention_dropout=0.0)


def sample_batches(quick: bool) -> list[list[int]]:
    """Full batches of the training sampler, evenly spaced by width."""
    lengths = inputs.features(quick).lengths
    plan = [b for b in BucketBatchSampler(lengths, batch_size=BATCH, seed=inputs.SEED) if len(b) == BATCH]
    plan.sort(key=lambda rows: int(lengths[rows].max()))
    count = 2 if quick else 6
    indices = ((np.arange(count) + 0.5) * len(plan) / count).astype(int)
    return [plan[i] for i in indices]


@cache
def _bucketed_and_padded(quick: bool, with_bf16: bool) -> tuple[list[Timed], list[Timed], list[Timed]]:
    """Times on the same batches: bucketed, bucketed in bf16, padded to 384."""
    torch.manual_seed(inputs.SEED)
    table = inputs.features(quick)
    step = trainer_of(TransformerSpan(encoder()))
    short, long = Collator(table), Collator(table, multiple=384)
    times: tuple[list[Timed], list[Timed], list[Timed]] = ([], [], [])
    for number, rows in enumerate([sample_batches(quick)[0], *sample_batches(quick)]):
        batch, padded = short(rows), long(rows)
        runs = [partial(step, batch), partial(step, batch, bf16=True), partial(step, padded)]
        for samples, run in zip(times, runs, strict=True):
            if "bf16" in run.keywords and not with_bf16:
                continue
            time = once(run)
            if number:  # the first batch only warms up
                samples.append(time)
    return times


def bucketed(quick: bool) -> Measurement:
    fast, _, padded = _bucketed_and_padded(quick, bf16_is_faster())
    return _by_totals(fast, padded, faster=True)


def bucketed_bf16(quick: bool) -> Measurement:
    if not bf16_is_faster():
        raise NotMeasuredError(EMULATED)
    _, fast, padded = _bucketed_and_padded(quick, True)
    return _by_totals(fast, padded, faster=True)


def proposed_step(quick: bool) -> Measurement:
    """Hidden 150, word vectors of width 300 and the overlap flag, on bucketed batches."""
    torch.manual_seed(inputs.SEED)
    table = inputs.features(quick)
    size = len(table.vocabulary)
    vectors = torch.randn(size + 1, WORD_VECTOR_DIM)
    vectors[0] = 0
    proposed = BertMatch(encoder(), vectors=vectors, overlap_flag=True, hidden=150)
    ours, theirs = trainer_of(proposed), trainer_of(TransformerSpan(encoder()))
    collate = Collator(table, vectors=np.arange(1, size + 1))
    pairs: tuple[list[Timed], list[Timed]] = ([], [])
    for number, rows in enumerate([sample_batches(quick)[0], *sample_batches(quick)]):
        batch = collate(rows)
        for samples, step in zip(pairs, (ours, theirs), strict=True):
            time = once(partial(step, batch))
            if number:
                samples.append(time)
    return _by_totals(*pairs, faster=False)


def _by_totals(ours: list[Timed], theirs: list[Timed], *, faster: bool) -> Measurement:
    pairs = Pairs(tuple(ours), tuple(theirs))
    values = [pairs.total_cost(clock) for clock in ("wall", "cpu")]
    wall, cpu = (1 / value if faster else value for value in values)
    rate = BATCH * len(ours) / sum(t.wall for t in ours)
    note = f"{len(ours)} batches of {BATCH}; attention dropout 0, hidden dropout on; {rate:.1f} examples/s"
    return Measurement(wall, cpu, median_time(ours), median_time(theirs), note)


def tokens_computed(quick: bool) -> Measurement:
    """Tokens in one epoch's batches, padding included, over real tokens; nothing is timed."""
    lengths = inputs.features(quick).lengths
    share = BucketBatchSampler(lengths, batch_size=BATCH, seed=inputs.SEED).pad_share
    padded = 384 * len(lengths) / lengths.sum()
    return Measurement(1 / (1 - share), note=f"{len(lengths)} windows; padded to 384: {padded:.2f}")


ROWS: dict[str, Measure] = {
    "sampler-tokens": tokens_computed,
    "train-bucketed": bucketed,
    "train-bucketed-bf16": bucketed_bf16,
    "proposed-step": proposed_step,
}

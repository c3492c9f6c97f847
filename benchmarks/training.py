"""Training steps of MiniLM: length buckets against full padding, the proposed model against a linear head.

The pairs are different batches of one epoch, spread evenly over the lengths and timed once on both times, so
the ratio is that of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from baselines.transformer import TransformerSpan
from benchmarks import inputs
from benchmarks.targets import Measure, Measurement
from benchmarks.timing import Pairs, Timed, median_time, once
from qa_arch.features.batches import BucketBatchSampler, Collator
from qa_arch.models.proposed import BertMatch
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.losses import SpanLoss
from qa_arch.tensors import Batch

BATCH = 16
WORD_VECTOR_DIM = 300
StepOn = Callable[[list[int]], Callable[[], Any]]
"""Function of a batch's windows that returns the step to time."""


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
    return inputs.encoder(init="pretrained", name="minilm", attention_dropout=0.0)


def sample_batches(quick: bool) -> list[list[int]]:
    """A narrow and a wide full batch of the training sampler."""
    lengths = inputs.features(quick).lengths
    plan = [b for b in BucketBatchSampler(lengths, batch_size=BATCH, seed=inputs.SEED) if len(b) == BATCH]
    plan.sort(key=lambda rows: int(lengths[rows].max()))
    return [plan[len(plan) // 4], plan[len(plan) * 3 // 4]]


def compare(quick: bool, ours: StepOn, theirs: StepOn, *, faster: bool) -> Measurement:
    """Time the two on the same batches, after a warm-up on the shortest, and compare the sums."""
    batches = sample_batches(quick)
    times: tuple[list[Timed], list[Timed]] = ([], [])
    for number, rows in enumerate([batches[0], *batches]):
        for samples, step in zip(times, (ours(rows), theirs(rows)), strict=True):
            time = once(step)
            if number:
                samples.append(time)
    return _by_totals(*times, faster=faster)


def bucketed(quick: bool, *, bf16: bool) -> Measurement:
    """Bucketed batches against the same padded to 384 in fp32."""
    torch.manual_seed(inputs.SEED)
    table = inputs.features(quick)
    step = trainer_of(TransformerSpan(encoder()))
    short, long = Collator(table), Collator(table, multiple=384)
    return compare(
        quick,
        lambda rows: partial(step, short(rows), bf16=bf16),
        lambda rows: partial(step, long(rows)),
        faster=True,
    )


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
    return compare(
        quick,
        lambda rows: partial(ours, collate(rows)),
        lambda rows: partial(theirs, collate(rows)),
        faster=False,
    )


class Products(TorchDispatchMode):
    """Records the matrix products and the fused attention of the block, forward and backward."""

    KINDS = (
        *(torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(func, *args, **kwargs or {})
        if func.overloadpacket in self.KINDS:
            self.calls.append(call)
        return call()


def above_products(quick: bool) -> Measurement:
    """Whole training steps against their matrix products alone, on the same operands."""
    torch.manual_seed(inputs.SEED)
    step = trainer_of(TransformerSpan(encoder()))
    collate = Collator(inputs.features(quick))

    def products_of(rows: list[int]) -> Callable[[], None]:
        with Products() as recorded:
            step(collate(rows))

        def run() -> None:
            with torch.no_grad():
                for call in recorded.calls:
                    call()

        return run

    return compare(quick, lambda rows: partial(step, collate(rows)), products_of, faster=False)


def _by_totals(ours: list[Timed], theirs: list[Timed], *, faster: bool) -> Measurement:
    pairs = Pairs(tuple(ours), tuple(theirs))
    values = [pairs.total_cost(clock) for clock in ("wall", "cpu")]
    wall, cpu = (1 / value if faster else value for value in values)
    rate = BATCH * len(ours) / sum(t.wall for t in ours)
    note = f"{len(ours)} batches of {BATCH}; attention dropout 0, hidden dropout on; {rate:.1f} examples/s"
    return Measurement(wall, cpu, median_time(ours), median_time(theirs), note)


def padding_overhead(lengths: NDArray[np.integer[Any]], batches: Iterable[Sequence[int]]) -> float:
    """Tokens computed over real tokens, with each batch padded to its longest window."""
    return sum(int(lengths[rows].max()) * len(rows) for rows in batches) / int(lengths.sum())


def tokens_computed(quick: bool) -> Measurement:
    """Tokens in one epoch's batches, padding included, over real tokens; nothing is timed."""
    lengths = inputs.features(quick).lengths
    overhead = padding_overhead(lengths, BucketBatchSampler(lengths, batch_size=BATCH, seed=inputs.SEED))
    padded = 384 * len(lengths) / lengths.sum()
    return Measurement(overhead, note=f"{len(lengths)} windows; padded to 384: {padded:.2f}")


ROWS: dict[str, Measure] = {
    "sampler-tokens": tokens_computed,
    "train-bucketed": partial(bucketed, bf16=False),
    "train-bucketed-bf16": partial(bucketed, bf16=True),
    "train-floor": above_products,
    "proposed-step": proposed_step,
}

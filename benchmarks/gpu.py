"""Rows that need a CUDA device: the fused match-LSTM and training steps of bert-base, 384 tokens × 32.

Weights are random (they do not change the speed), windows are real. Every run waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from statistics import median
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from baselines.transformer import TransformerSpan
from benchmarks import inputs
from benchmarks.targets import Measure, Measurement, NotMeasuredError, cost, speedup
from benchmarks.timing import alternate, repeat
from benchmarks.training import trainer_of
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.features.batches import BucketBatchSampler, Collator
from qa_arch.models.proposed import BertMatch
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.match_lstm import MatchLSTM, recur_reference
from qa_arch.nn.reading import Batches
from qa_arch.tensors import Batch
from qa_arch.training.module import TrainingData

B, C, Q = 32, 384, 32
WIDTHS = ((150, 300), (384, 384))
"""(hidden, input) widths of the match-LSTM; a row's value is the worse of the two."""
PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bf16 FLOP/s from the data sheets."""


def synchronised(run: Callable[[], None]) -> Callable[[], None]:
    def run_and_wait() -> None:
        run()
        torch.cuda.synchronize()

    return run_and_wait


def match_lstm(quick: bool) -> Measurement:
    """fp32 at torch's defaults, which allow TF32 in cuDNN's LSTM but not in our matrix products."""
    device = torch.device("cuda")
    results = []
    for hidden, width in WIDTHS:
        lstm = nn.LSTM(2 * width, hidden, bidirectional=True, batch_first=True).to(device)
        wide = torch.randn(B, C, 2 * width, device=device, requires_grad=True)
        ours, theirs = _match_step(hidden, width, device), partial(_lstm_step, lstm, wide)
        pairs = alternate(synchronised(ours), synchronised(theirs), 5 if quick else 20)
        results.append(cost(pairs, _size(hidden)))
    return _worst(results, max(results, key=lambda result: result.value))


def match_lstm_eager(quick: bool) -> Measurement:
    """Against the plain loop under autograd, op by op."""
    device = torch.device("cuda")
    results = []
    for hidden, width in WIDTHS:
        step = _match_step(hidden, width, device)

        def plain(step: Callable[[], None] = step) -> None:
            with mock.patch("qa_arch.extras.kernels.autograd.recur_fused", recur_reference):
                step()

        pairs = alternate(synchronised(step), synchronised(plain), 3 if quick else 7)
        results.append(speedup(pairs, _size(hidden)))
    return _worst(results, min(results, key=lambda result: result.value))


def proposed_step(quick: bool) -> Measurement:
    device = torch.device("cuda")
    collate, batches = _padded(quick, device)
    assert collate.vectors is not None
    vectors = torch.randn(len(collate.vectors) + 1, 300)
    vectors[0] = 0
    proposed = BertMatch(_bert(), vectors=vectors, overlap_flag=True, hidden=150).to(device)
    linear = TransformerSpan(_bert()).to(device)
    ours, theirs = (synchronised(_cycle(model, batches)) for model in (proposed, linear))
    return cost(alternate(ours, theirs, 5 if quick else 20), "bert-base, attention dropout 0, hidden 150")


def baseline_mfu(quick: bool) -> Measurement:
    """Model FLOPs (6 per weight and token, 12 T² width per layer) over time and peak FLOP/s."""
    device = torch.device("cuda")
    name = torch.cuda.get_device_name(device)
    peak = next((flops for key, flops in PEAK.items() if key in name), None)
    if peak is None:
        raise NotMeasuredError(f"the bf16 peak of {name} is not in benchmarks/gpu.py")
    _, batches = _padded(quick, device)
    utilisation = {}
    for kind in ("eager", "compiled"):
        model = TransformerSpan(_bert()).to(device)
        flops = _flops(model, batches[0])
        if kind == "compiled":
            model.compile()
        times = repeat(synchronised(_cycle(model, batches)), 5 if quick else 20)
        utilisation[kind] = flops / median(run.wall for run in times) / peak
    shares = ", ".join(f"{kind} {share:.3f}" for kind, share in utilisation.items())
    return Measurement(max(utilisation.values()), note=f"{shares}; fused AdamW, bf16, {name}")


def loader(quick: bool) -> Measurement:
    """Bucketed batches of 32 from two workers, as in training."""
    device = torch.device("cuda")
    step = partial(trainer_of(TransformerSpan(_bert()).to(device)), bf16=True)
    collator = Collator(inputs.features(quick), multiple=8)
    sampler = BucketBatchSampler(collator.table.lengths, batch_size=B, seed=inputs.SEED)
    settings = replace(validate(compose(["model=bert"])).trainer, batch_size=B, workers=2)
    data = TrainingData(Batches(collator, None), settings, seed=inputs.SEED, pin=True)
    total_wait, started = 0.0, 0.0
    for number, (batch, wait) in enumerate(_timed(iter(data._loader(collator, sampler)))):
        if number == 3:  # the first batches start workers and choose kernels
            total_wait, started = 0.0, time.perf_counter()
        total_wait += wait
        step(batch.to(device, non_blocking=True))
        torch.cuda.synchronize()
    return Measurement(total_wait / (time.perf_counter() - started), note="bert-base, bf16, two workers")


def _timed(batches: Iterator[Batch]) -> Iterator[tuple[Batch, float]]:
    """(batch, seconds waited for it)."""
    while True:
        started = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield batch, time.perf_counter() - started


def _match_step(hidden: int, width: int, device: torch.device) -> Callable[[], None]:
    """Forward + backward of the match-LSTM without padding; fails if the kernel check failed."""
    torch.manual_seed(inputs.SEED)
    model = MatchLSTM(width, hidden, kernel="fused").to(device)
    passage, question = (torch.randn(B, n, width, device=device, requires_grad=True) for n in (C, Q))
    masks = [torch.ones(B, n, dtype=torch.bool, device=device) for n in (C, Q)]
    return lambda: model(passage, question, *masks).sum().backward()


def _lstm_step(lstm: nn.LSTM, wide: Tensor) -> None:
    lstm(wide)[0].sum().backward()


def _size(hidden: int) -> str:
    return f"hidden {hidden}, batch {B}, context {C}, question {Q}"


def _worst(results: list[Measurement], worst: Measurement) -> Measurement:
    values = "; ".join(f"{result.note}: {result.value:.2f}" for result in results)
    return Measurement(worst.value, None, worst.ours, worst.theirs, values)


def _bert() -> Encoder:
    return inputs.encoder(init="random", family="bert", attention_dropout=0.0)


def _padded(quick: bool, device: torch.device) -> tuple[Collator, list[Batch]]:
    """Collator and batches of 32 windows padded to 384, on the device."""
    table = inputs.features(quick)
    collate = Collator(table, vectors=np.arange(1, len(table.vocabulary) + 1), multiple=C)
    return collate, [collate(range(first, first + B)).to(device) for first in range(0, 4 * B, B)]


def _cycle(model: nn.Module, batches: list[Batch]) -> Callable[[], None]:
    """Function that takes one bf16 step on the next batch."""
    step, remaining = trainer_of(model), cycle(batches)
    return lambda: step(next(remaining), bf16=True)


def _flops(model: TransformerSpan, batch: Batch) -> float:
    config = model.encoder.config
    weights = sum(
        p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embeddings" not in name
    )
    tokens, length = batch.ids.numel(), batch.ids.shape[1]
    return tokens * (6 * weights + 12 * config.num_hidden_layers * length * config.hidden_size)


ROWS: dict[str, Measure] = {
    "gpu-match-lstm": match_lstm,
    "gpu-match-lstm-eager": match_lstm_eager,
    "gpu-proposed-step": proposed_step,
    "gpu-baseline-mfu": baseline_mfu,
    "gpu-loader": loader,
}

"""The match-LSTM against torch's own LSTM of the same hidden width over an input twice as wide."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.inputs import SEED
from benchmarks.targets import Measure, Measurement, cost
from benchmarks.timing import alternate
from qa_arch.nn.match_lstm import MatchLSTM

B, C, Q = 32, 384, 32


def compare_with_lstm(quick: bool, *, hidden: int, width: int, backward: bool) -> Measurement:
    """fp32, both directions, no padding; the autograd graph is recorded even without ``backward``."""
    torch.manual_seed(SEED)
    batch, context = (4, 48) if quick else (B, C)
    lstm = nn.LSTM(2 * width, hidden, bidirectional=True, batch_first=True)
    match = MatchLSTM(width, hidden)
    wide = torch.randn(batch, context, 2 * width, requires_grad=True)
    passage = torch.randn(batch, context, width, requires_grad=True)
    question = torch.randn(batch, Q, width, requires_grad=True)
    masks = [torch.ones(batch, size, dtype=torch.bool) for size in (context, Q)]

    def run(forward: Callable[[], Tensor]) -> None:
        out = forward()
        if backward:
            out.sum().backward()

    pairs = alternate(
        lambda: run(lambda: match(passage, question, *masks)),
        lambda: run(lambda: lstm(wide)[0]),
        2 if quick else 3,
    )
    return cost(pairs, f"batch {batch}, context {context}, question {Q}")


ROWS: dict[str, Measure] = {
    f"match-lstm-h{hidden}-{part}": partial(
        compare_with_lstm, hidden=hidden, width=width, backward=part == "both"
    )
    for hidden, width in ((150, 300), (384, 384))
    for part in ("forward", "both")
}

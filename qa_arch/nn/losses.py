"""The losses of span, sequence and selection models, outside the models.

Axes: ``B`` windows, ``T`` tokens, ``S`` steps, ``N`` candidates.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from qa_arch.types.tensors import SpanLabels, SpanLogits, StepLogits, log_choices


def window_loss(logits: SpanLogits | StepLogits, labels: SpanLabels) -> Float[Tensor, "B"]:
    """The loss of each window by the kind of its logits, not yet weighted."""
    if isinstance(logits, StepLogits):
        return sequence_loss(logits, labels)
    return span_loss(logits, labels)


def sequence_loss(logits: StepLogits, labels: SpanLabels) -> Float[Tensor, "B"]:
    """Minus the log-probability of the gold tokens in order and of the stop behind them.

    Wang & Jiang 2016, section 3.3. Where the window holds no answer, the stop at the first step is
    right; of an answer beyond the last step, its first S tokens are. The result is not yet weighted.
    """
    steps = torch.arange(logits.stop.shape[1], device=labels.start.device)
    length = torch.where(labels.answerable, labels.end - labels.start + 1, 0)[:, None]
    gold = labels.start[:, None] + steps
    target = torch.where(steps < length, gold, logits.token.shape[2])
    chosen = log_choices(logits).gather(2, target[..., None].clamp(max=logits.token.shape[2]))[..., 0]
    # A token that no answer may consist of (one of no width) is passed over.
    counts = (steps <= length) & chosen.isfinite()
    return -chosen.masked_fill(~counts, 0.0).sum(1)


def span_loss(logits: SpanLogits, labels: SpanLabels) -> Float[Tensor, "B"]:
    """Cross-entropy of each window: the mean of start and end, plus the verifier's if there is one.

    "No answer" is one more class beside the tokens (the null logits), right for every window that
    does not hold the gold answer (Devlin et al. 2019, section 4.3). The result is not yet weighted.
    """
    start = _cross_entropy(logits.start, logits.null_start, labels.start, labels.answerable, before=True)
    end = _cross_entropy(logits.end, logits.null_end, labels.end, labels.answerable, before=False)
    loss = (start + end) / 2
    if logits.verifier is not None:
        empty = (~labels.answerable).float()
        loss = loss + functional.binary_cross_entropy_with_logits(
            logits.verifier.float(), empty, reduction="none"
        )
    return loss


def _cross_entropy(
    scores: Float[Tensor, "B T"],
    null: Float[Tensor, "B"],
    gold: Int[Tensor, "B"],
    answerable: Bool[Tensor, "B"],
    *,
    before: bool,
) -> Float[Tensor, "B"]:
    classes = torch.cat([scores, null[:, None]], dim=1).float()
    position, found = snap_outward(gold, classes[:, :-1].isfinite(), before=before)
    target = torch.where(answerable & found, position, scores.shape[1])
    return functional.cross_entropy(classes, target, reduction="none")


def snap_outward(
    gold: Int[Tensor, "B"], open_positions: Bool[Tensor, "B T"], *, before: bool
) -> tuple[Int[Tensor, "B"], Bool[Tensor, "B"]]:
    """The nearest open position at or before (``before``), else at or after, each gold position.

    A model that scores words opens only the first piece of each word for a start and the last for
    an end; a gold answer that begins inside a word is widened to the whole word. The second result
    is False where there is no open position on that side.
    """
    steps = torch.arange(open_positions.shape[1], device=gold.device)
    if before:
        usable = open_positions & (steps <= gold[:, None])
        position = torch.where(usable, steps, -1).amax(dim=1)
    else:
        usable = open_positions & (steps >= gold[:, None])
        position = torch.where(usable, steps, len(steps)).amin(dim=1)
    found = usable.any(dim=1)
    return torch.where(found, position, 0), found


def choice_loss(
    scores: Float[Tensor, "B N"], right: Bool[Tensor, "B N"], offered: Bool[Tensor, "B N"]
) -> Float[Tensor, "B"]:
    """Minus the log of the probability that the right candidates have together in a softmax over all.

    0 where a question lacks a right one.
    """
    lowest = torch.finfo(torch.float32).min
    every, found = (scores.float().masked_fill(~kept, lowest).logsumexp(1) for kept in (offered, right))
    return torch.where(right.any(1), every - found, 0.0)


def hinge_loss(
    scores: Float[Tensor, "B N"],
    right: Bool[Tensor, "B N"],
    offered: Bool[Tensor, "B N"],
    margin: float,
) -> Float[Tensor, "B"]:
    """max(0, margin - right + wrong) of the best right and the best wrong candidate (Tan et al. 2015, eq. 6).

    Of the wrong answers that were drawn, the hardest counts. 0 where a question lacks either.
    """
    lowest = torch.finfo(torch.float32).min
    best = scores.float().masked_fill(~right, lowest).amax(1)
    hardest = scores.float().masked_fill(right | ~offered, lowest).amax(1)
    both = right.any(1) & (offered & ~right).any(1)
    return torch.where(both, margin - best + hardest, 0.0).clamp(min=0)

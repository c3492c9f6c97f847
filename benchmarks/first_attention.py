"""``python -m benchmarks.first_attention [OVERRIDE ...]``: attention of the match-LSTM before training.

The overrides choose data, encoder and vectors as in ``qa-arch train``. For the states that the match-LSTM of
``model=proposed`` reads, prints how even its attention is and how much of it depends on the passage.
"""

from __future__ import annotations

import math
import statistics
import sys

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.models.proposed import Alignment
from qa_arch.nn.match_lstm import MatchLSTM
from qa_arch.qa import task

WINDOWS = 32
HIDDEN = 150


def evenness(attention: Float[Tensor, "*R N"]) -> float:
    """Mean entropy of attention over N units, relative to uniform attention."""
    entropy = torch.special.entr(attention).sum(-1).mean()
    return float(entropy) / math.log(attention.shape[-1])


def interaction(attention: Float[Tensor, "*R C Q"]) -> float:
    """Share of the score variance not explained by question unit or context unit alone.

    Scores are log attention; a constant per context unit cancels in the softmax.
    """
    scores = attention.log()
    scores = scores - scores.mean(-1, keepdim=True)
    return float((scores - scores.mean(-2, keepdim=True)).square().sum() / scores.square().sum())


def attentions(
    context: Float[Tensor, "B C D"],
    question: Float[Tensor, "B Q D"],
    context_mask: Bool[Tensor, "B C"],
    question_mask: Bool[Tensor, "B Q"],
    seed: int = 1,
) -> dict[str, Float[Tensor, "B C N"]]:
    """Name -> forward attention of new layers over the N = Q + 1 question units, "nothing" last."""
    torch.manual_seed(seed)
    layer = MatchLSTM(context.shape[-1], HIDDEN)
    matched = layer.attention(context, question, context_mask, question_mask)[:, 0]
    torch.manual_seed(seed)
    aligned = Alignment(context.shape[-1], HIDDEN).attention(context, question, question_mask)
    return {"match attention": matched, "alignment": aligned.detach()}


def main(overrides: list[str]) -> None:
    """Print both figures for each attention, averaged over training windows."""
    torch.manual_seed(0)
    config = validate(compose(["model=proposed", f"data.train_questions={WINDOWS}", *overrides]))
    parts = task.new_parts(config)
    rows = list(range(min(WINDOWS, len(parts.tables["train"]))))
    model, calls = parts.model.eval(), []
    layer = next(module for module in model.modules() if isinstance(module, MatchLSTM))
    handle = layer.register_forward_pre_hook(lambda _, arguments: calls.append(arguments))
    with torch.no_grad():
        model(task.batches(config, parts).train(rows))
    handle.remove()
    context, question, context_mask, question_mask = calls[0]
    figures: dict[str, list[tuple[float, float]]] = {}
    for row, (c, q) in enumerate(zip(context_mask.sum(1), question_mask.sum(1), strict=True)):
        window = context[row : row + 1, :c], question[row : row + 1, :q]
        context_real, question_real = (torch.ones(1, int(n), dtype=torch.bool) for n in (c, q))
        for name, weights in attentions(*window, context_real, question_real).items():
            figures.setdefault(name, []).append((evenness(weights), interaction(weights[..., :-1])))
    for name, pairs in figures.items():
        even, crossed = (statistics.fmean(column) for column in zip(*pairs, strict=True))
        print(f"{name}: {even:.0%} of uniform entropy, {crossed:.0%} of the variance is interaction")


if __name__ == "__main__":
    main(sys.argv[1:])

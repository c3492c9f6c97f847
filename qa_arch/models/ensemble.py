"""Ensemble of trained models: the mean of their probabilities.

Axes: ``B`` windows, ``K`` classes of a softmax and, last, the null: ``N`` = K + 1; ``M`` members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qa_arch.errors import ConfigError
from qa_arch.types.tensors import Batch, SpanLogits, StepLogits, log_choices

Logits = SpanLogits | StepLogits


class Ensemble(nn.Module):
    """The members' probabilities of start, of end and of "no answer" are averaged, or of each step.

    ``rows`` gives for each member the row, in its own table of word vectors, of every row of the table
    that batches refer to (None where it has no word vectors), as each knows the words it was saved with.
    Raises ConfigError where members differ in kind: spans and sequences, verifiers or none.
    """

    def __init__(self, members: Sequence[nn.Module], rows: Sequence[Int[Tensor, "V"] | None]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        for number, mapping in enumerate(rows):
            self.register_buffer(f"rows_{number}", mapping, persistent=False)

    def forward(self, batch: Batch) -> Logits:
        return average([member(self._own_rows(n, batch)) for n, member in enumerate(self.members)])

    def _own_rows(self, number: int, batch: Batch) -> Batch:
        """The batch with the rows of this member's own table of word vectors."""
        rows = getattr(self, f"rows_{number}")
        return batch if rows is None or batch.vector is None else replace(batch, vector=rows[batch.vector])


def average(members_logits: Sequence[Logits]) -> Logits:
    """The mean probabilities of the members in one record; of equal members, those of each of them."""
    spans = [logits for logits in members_logits if isinstance(logits, SpanLogits)]
    steps = [logits for logits in members_logits if isinstance(logits, StepLogits)]
    if spans and not steps:
        return _average_spans(spans)
    if steps and not spans and len({logits.stop.shape[1] for logits in steps}) == 1:
        choices = _log_mean(torch.stack([log_choices(logits) for logits in steps]))
        return StepLogits(choices[..., :-1], choices[..., -1])
    raise ConfigError(
        "an ensemble's models must all choose spans, or all choose sequences of one length (model.limit)"
    )


def _average_spans(members_logits: Sequence[SpanLogits]) -> SpanLogits:
    verifier = _average_verifiers(members_logits)
    start = _average_scores([(logits.start, logits.null_start) for logits in members_logits])
    end = _average_scores([(logits.end, logits.null_end) for logits in members_logits])
    return SpanLogits(start[:, :-1], end[:, :-1], start[:, -1], end[:, -1], verifier)


def _average_verifiers(members_logits: Sequence[SpanLogits]) -> Float[Tensor, "B"] | None:
    """Log-odds of the mean probability of "no answer"; None without verifiers."""
    weighted = [
        logits.verifier_weight * logits.verifier for logits in members_logits if logits.verifier is not None
    ]
    if not weighted:
        return None
    if len(weighted) < len(members_logits):
        raise ConfigError("an ensemble's models must all have a verifier (model.no_answer), or none of them")
    odds = torch.stack(weighted).float()
    return _log_mean(nn.functional.logsigmoid(odds)) - _log_mean(nn.functional.logsigmoid(-odds))


def _average_scores(
    members: Sequence[tuple[Float[Tensor, "B K"], Float[Tensor, "B"]]],
) -> Float[Tensor, "B N"]:
    """Mean probabilities of the classes and, last, of the null, as scores on the scale of the members'.

    Several windows of a question are compared by their scores, and these say more than probabilities
    within a window: the mean of the members' normalisers is added again.
    """
    scores = torch.stack([torch.cat([classes, null[:, None]], dim=1).float() for classes, null in members])
    return _log_mean(scores.log_softmax(-1)) + scores.logsumexp(-1).mean(0)[:, None]


def _log_mean(logs: Float[Tensor, "M *R"]) -> Float[Tensor, "*R"]:
    """The logarithm of the mean of what the first axis holds the logarithms of."""
    return logs.logsumexp(0) - torch.tensor(float(len(logs)), device=logs.device).log()

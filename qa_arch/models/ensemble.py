"""Several trained models as one: the mean of their probabilities.

Axes: ``B`` windows, ``T`` tokens, ``M`` members.
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
    Raises ConfigError where members say different things: spans and sequences, verifiers or none.
    """

    def __init__(self, members: Sequence[nn.Module], rows: Sequence[Int[Tensor, "V"] | None]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        for number, mapping in enumerate(rows):
            self.register_buffer(f"rows_{number}", mapping, persistent=False)

    def forward(self, batch: Batch) -> Logits:
        return average([member(self._seen_by(n, batch)) for n, member in enumerate(self.members)])

    def _seen_by(self, number: int, batch: Batch) -> Batch:
        rows = getattr(self, f"rows_{number}")
        return batch if rows is None or batch.vector is None else replace(batch, vector=rows[batch.vector])


def average(said: Sequence[Logits]) -> Logits:
    """One record of the mean probabilities; an ensemble of equals says what each of them says."""
    spans = [logits for logits in said if isinstance(logits, SpanLogits)]
    steps = [logits for logits in said if isinstance(logits, StepLogits)]
    if spans and not steps:
        return _spans(spans)
    if steps and not spans and len({logits.stop.shape[1] for logits in steps}) == 1:
        choices = _mean(torch.stack([log_choices(logits) for logits in steps]))
        return StepLogits(choices[..., :-1], choices[..., -1])
    raise ConfigError(
        "an ensemble's models must all choose spans, or all choose sequences of one length (model.limit)"
    )


def _spans(said: Sequence[SpanLogits]) -> SpanLogits:
    start = _side([(logits.start, logits.null_start) for logits in said])
    end = _side([(logits.end, logits.null_end) for logits in said])
    verifiers = [logits.verifier_weight * logits.verifier for logits in said if logits.verifier is not None]
    if len(verifiers) not in (0, len(said)):
        raise ConfigError("an ensemble's models must all have a verifier (model.no_answer), or none of them")
    odds = None
    if verifiers:
        weighted = torch.stack(verifiers).float()
        odds = _mean(nn.functional.logsigmoid(weighted)) - _mean(nn.functional.logsigmoid(-weighted))
    return SpanLogits(start[:, :-1], end[:, :-1], start[:, -1], end[:, -1], odds)


def _side(said: Sequence[tuple[Float[Tensor, "B T"], Float[Tensor, "B"]]]) -> Float[Tensor, "B N"]:
    """Mean probabilities of the tokens and, last, of the null, as scores on the scale of the members'.

    Several windows of a question are compared by their scores, and these say more than probabilities
    within a window: the mean of the members' normalisers is added again.
    """
    scores = torch.stack([torch.cat([tokens, null[:, None]], dim=1).float() for tokens, null in said])
    return _mean(scores.log_softmax(-1)) + scores.logsumexp(-1).mean(0)[:, None]


def _mean(logs: Float[Tensor, "M *R"]) -> Float[Tensor, "*R"]:
    """The logarithm of the mean of what the first axis holds the logarithms of."""
    return logs.logsumexp(0) - torch.tensor(float(len(logs)), device=logs.device).log()

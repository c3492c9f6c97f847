"""Answer pointer and the heads built on it (Wang & Jiang 2016, section 2.3).

Axes: ``B`` windows, ``C`` context units, ``D`` input width, ``l`` hidden width.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.config.check import Range
from qa_arch.nn.heads import SpanScores, append_sentinel, linear_scores, neutral_null
from qa_arch.nn.masking import fill, linear_fp32, masked_softmax


class AnswerPointer(nn.Module):
    """Pointer network whose steps are conditioned on the previous ones (Wang & Jiang 2016, eqs. 7-9)::

        F_k = tanh(V H + W^a h_{k-1} + b^a),   scores_k = v^T F_k + c,   b_k = softmax(scores_k)
        h_k = LSTM(H b_k, h_{k-1}),   h_0 = 0

    Attention has (D l + l) + (l² + l) + (l + 1) parameters, the LSTM 4(D l + l² + 2l). V's bias is redundant
    with b^a; ``all_biases=False`` omits it.
    """

    def __init__(self, in_dim: int, hidden: int, *, all_biases: bool = True) -> None:
        super().__init__()
        self.memory = nn.Linear(in_dim, hidden, bias=all_biases)  # V
        self.state = nn.Linear(hidden, hidden)  # W^a, b^a
        self.score = nn.Linear(hidden, 1)  # v, c
        self.cell = nn.LSTMCell(in_dim, hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot for inputs, orthogonal for the recurrence, forget gate bias 1."""
        for linear in (self.memory, self.state, self.score):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                continue
            for block in parameter.data.chunk(4):
                (nn.init.orthogonal_ if name == "weight_hh" else nn.init.xavier_uniform_)(block)
        # torch orders the gates i, f, g, o.
        nn.init.ones_(self.cell.bias_hh.data.chunk(4)[1])

    def forward(
        self,
        memory: Float[Tensor, "B N D"],
        mask: Bool[Tensor, "B N"],
        steps: int = 2,
        shortcut: Float[Tensor, "B N steps"] | None = None,
    ) -> tuple[Float[Tensor, "B N"], ...]:
        """Unmasked scores of each step; with two steps, of the first and the second boundary.

        ``shortcut`` is added to the scores before their softmax gives the next step its input.
        """
        projected, query = self.memory(memory), self.state.bias  # h_0 = 0
        scores: list[Tensor] = []
        state = None
        for step in range(steps):
            if step:
                # The paper feeds the attended memory, not the position that was chosen, so steps need no
                # decoding.
                weights = masked_softmax(scores[-1], mask).to(memory.dtype)
                state = self.cell((weights[:, None] @ memory)[:, 0], state)
                query = self.state(state[0])[:, None]
            row = linear_fp32(self.score, torch.tanh(projected + query))[..., 0]
            scores.append(row if shortcut is None else row + shortcut[..., step])
        return tuple(scores)


class SequenceHead(nn.Module):
    """Sequence pointer: each of ``steps`` steps points to a context unit or to the stop symbol.

    The stop is a row of zeros after H^r. A step is conditioned on the attention of the previous steps and not
    on their choices, so all steps are computed at once, in training and in inference.
    """

    def __init__(self, in_dim: int, hidden: int, *, steps: int, all_biases: bool = True) -> None:
        super().__init__()
        self.steps = steps
        self.pointer = AnswerPointer(in_dim, hidden, all_biases=all_biases)

    def forward(
        self, context: Float[Tensor, "B C D"], mask: Bool[Tensor, "B C"]
    ) -> tuple[Float[Tensor, "B S C"], Float[Tensor, "B S"]]:
        """Scores of the units (-inf on padding) and of the stop at each step."""
        scores = torch.stack(self.pointer(*append_sentinel(context, mask, None), self.steps), dim=1)
        return fill(scores[..., :-1], mask[:, None]), scores[..., -1]


class PointerHead(nn.Module):
    """Boundary pointer over the context, optionally with a sentinel and a second, backward pointer.

    The sentinel is a row after the context that means "nothing"; without it the null scores are
    ``neutral_null``. ``bidirectional`` adds a second pointer that chooses the end first, then the start, and
    averages the scores of both. ``shortcut`` adds the scores of a linear span head over the same rows at each
    step, and the pointer's start near zero, so training starts from the standard head.
    """

    def __init__(
        self,
        in_dim: int,
        hidden: Annotated[int, Range(1)],
        *,
        sentinel: bool = True,
        bidirectional: bool = False,
        shortcut: bool = False,
        all_biases: bool = True,
    ) -> None:
        super().__init__()
        self.sentinel = sentinel
        self.forwards = AnswerPointer(in_dim, hidden, all_biases=all_biases)
        self.backwards = AnswerPointer(in_dim, hidden, all_biases=all_biases) if bidirectional else None
        self.shortcut = linear_scores(in_dim) if shortcut else None
        for pointer in (self.forwards, self.backwards) if shortcut else ():
            if pointer is not None:
                # Not exactly zero: the pointer's other weights would get no gradient.
                nn.init.xavier_uniform_(pointer.score.weight, gain=0.01)

    def forward(
        self,
        context: Float[Tensor, "B C D"],
        mask: Bool[Tensor, "B C"],
        nothing: Float[Tensor, "B D"] | None = None,
    ) -> SpanScores:
        """``nothing``: the sentinel's row (default zeros, as in the authors' code)."""
        C = context.shape[1]
        if self.sentinel:
            context, real = append_sentinel(context, mask, nothing)
        else:
            real = mask
        linear = linear_fp32(self.shortcut, context) if self.shortcut else None
        start, end = self.forwards(context, real, shortcut=linear)
        if self.backwards is not None:
            reverse = None if linear is None else linear.flip(-1)
            end_first, start_second = self.backwards(context, real, shortcut=reverse)
            start, end = (start + start_second) / 2, (end + end_first) / 2
        if self.sentinel:
            null_start, null_end = start[:, C], end[:, C]
        else:
            null_start, null_end = neutral_null(start, mask), neutral_null(end, mask)
        return SpanScores(fill(start[:, :C], mask), fill(end[:, :C], mask), null_start, null_end)

"""Batches, labels and logits. Axes: ``B`` batch, ``T`` tokens of a window, padded; ``S`` steps; ``P``
predicted tokens; ``V`` vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

from jaxtyping import Bool, Float, Int
from torch import Tensor, cat
from torch.nn import functional


class Movable:
    """Methods that Lightning and the data loader call on a batch: move it, pin it."""

    __slots__ = ()

    def _map(self, function) -> Self:
        changed = {}
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if isinstance(value, (Tensor, Movable)):
                changed[f.name] = function(value)
        return replace(self, **changed)  # type: ignore[type-var]

    def to(self, *args, **kwargs) -> Self:
        return self._map(lambda value: value.to(*args, **kwargs))

    def pin_memory(self) -> Self:
        return self._map(lambda value: value.pin_memory())


@dataclass(frozen=True, slots=True, eq=False)
class SpanLabels(Movable):
    """Where the gold answer lies in each window; meaningless where ``answerable`` is False."""

    start: Int[Tensor, "B"]
    """First token of the gold answer, an index on the window's token axis."""
    end: Int[Tensor, "B"]
    """Last token of the gold answer (inclusive)."""
    answerable: Bool[Tensor, "B"]
    """True where the window holds the whole gold answer."""
    weight: Float[Tensor, "B"]
    """1 for a window that counts, 0 for one that only keeps an idle rank in step."""
    twin: Int[Tensor, "B"] | None = None
    """Place in the batch of a window's answerable twin, -1 for none; None where no twins are looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Movable):
    """Windows, padded to the longest of them. Masks have one meaning: True = yes, real."""

    index: Int[Tensor, "B"]
    """Row of each window in its feature table."""
    ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    """True on every token that is not padding."""
    segments: Int[Tensor, "B T"] | None
    """Segment ids for encoders that have them (``type_vocab_size > 1``), else None."""
    question: Bool[Tensor, "B T"]
    """True on the question's tokens, special tokens excluded."""
    context: Bool[Tensor, "B T"]
    """True on context tokens that an answer may begin or end with (those of some width)."""
    word: Int[Tensor, "B T"]
    """Number of the word a piece belongs to, counted in its own text; -1 on special tokens and padding."""
    overlap: Bool[Tensor, "B T"]
    """True on a context (question) piece whose word, case folded, is in the question (context)."""
    vector: Int[Tensor, "B T"] | None = None
    """Row of the word's vector in the word-vector table; 0 = unknown. None without word vectors."""
    labels: SpanLabels | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class SpanLogits(Movable):
    """Scores of where an answer starts and ends. ``start`` and ``end`` are -inf outside the context.

    No-answer is a field of its own and never an index: the null logits are one more class with the tokens in
    the start and the end softmax of the loss; decoding uses ``null`` alone. A span scores
    ``start[s] + end[e]``.
    """

    start: Float[Tensor, "B T"]
    end: Float[Tensor, "B T"]
    null_start: Float[Tensor, "B"]
    null_end: Float[Tensor, "B"]
    verifier: Float[Tensor, "B"] | None = None
    """Log-odds that the window holds no answer, from a head of its own."""
    verifier_weight: float = 1.0

    @property
    def null(self) -> Float[Tensor, "B"]:
        """Score of "no answer", on the scale of a span's score."""
        null = self.null_start + self.null_end
        return null if self.verifier is None else null + self.verifier_weight * self.verifier


LOWEST = -1e30
"""In place of -inf where gradients flow: a sum of two is still a number, and its exponential 0."""


def log_sum_of_spans(
    start: Float[Tensor, "B T"], end: Float[Tensor, "B T"], longest: int | None = None
) -> Float[Tensor, "B"]:
    """log Σ_{s <= e} exp(start_s + end_e) over all T (T + 1) / 2 spans of each window, exact, in O(T)::

        log Σ_s exp(start_s + r_s),   r_s = log Σ_{e >= s} exp(end_e)     r: cumulated from the last token

    With ``longest`` over the spans of at most so many tokens alone, in O(T longest).
    Where no span is open it is about -2e30, which no score is, with gradients of 0 behind any other term.
    """
    start, end = start.clamp(min=LOWEST), end.clamp(min=LOWEST)
    if longest is None:
        ends = end.flip(1).logcumsumexp(1).flip(1)
    else:
        ends = functional.pad(end, (0, longest - 1), value=LOWEST).unfold(1, longest, 1).logsumexp(2)
    return (start + ends).logsumexp(1)


@dataclass(frozen=True, slots=True, eq=False)
class StepLogits(Movable):
    """Scores of a sequence model: at each step a choice among the context's tokens and "stop".

    ``token`` is -inf outside the context. To stop at the first step is to answer with nothing. The
    last step is the generation limit: a sequence of S tokens has no stop.
    """

    token: Float[Tensor, "B S T"]
    stop: Float[Tensor, "B S"]

    @property
    def null(self) -> Float[Tensor, "B"]:
        """Log-probability of "no answer"."""
        return log_choices(self)[:, 0, -1]


def log_choices(logits: StepLogits) -> Float[Tensor, "B S N"]:
    """Log-probabilities of the choices of each step, over T tokens and, last, the stop."""
    return cat([logits.token, logits.stop[..., None]], dim=-1).float().log_softmax(-1)

"""Batches, labels and logits. Axes: ``B`` batch, ``T`` tokens of a window, padded; ``S`` steps; ``P``
predicted tokens; ``V`` vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self

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
    """Gold answer position in each window; meaningless where ``answerable`` is False."""

    start: Int[Tensor, "B"]
    """First token of the gold answer, an index on the window's token axis."""
    end: Int[Tensor, "B"]
    """Last token of the gold answer (inclusive)."""
    answerable: Bool[Tensor, "B"]
    """True where the window holds the whole gold answer."""
    weight: Float[Tensor, "B"]
    """Loss weight: 1, or 0 for a window that only keeps an idle rank in step."""
    twin: Int[Tensor, "B"] | None = None
    """Batch index of the window's answerable twin, -1 if it has none; None if twins are not used."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Movable):
    """Windows, padded to the longest one. In every mask, True marks what the field names."""

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
    """True on context tokens at which an answer may start or end (those of nonzero width)."""
    word: Int[Tensor, "B T"]
    """Index of the word a piece belongs to within its own text; -1 on special tokens and padding."""
    overlap: Bool[Tensor, "B T"]
    """True on a context (question) piece whose case-folded word also occurs in the question (context)."""
    vector: Int[Tensor, "B T"] | None = None
    """Row of the word's vector in the word-vector table; 0 = unknown. None without word vectors."""
    labels: SpanLabels | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def weight(self) -> Float[Tensor, "B"]:
        """Loss weight of each window."""
        assert self.labels is not None
        return self.labels.weight


@dataclass(frozen=True, slots=True, eq=False)
class SpanLogits(Movable):
    """Start and end logits of an answer; ``start`` and ``end`` are -inf outside the context.

    "No answer" has its own fields and is never a token index: the null logits are one more class in the start
    and end softmax of the loss, and decoding compares ``start[s] + end[e]`` of a span with ``null``.
    """

    start: Float[Tensor, "B T"]
    end: Float[Tensor, "B T"]
    null_start: Float[Tensor, "B"]
    null_end: Float[Tensor, "B"]
    verifier: Float[Tensor, "B"] | None = None
    """Log-odds that the window holds no answer, from a separate head."""
    verifier_weight: float = 1.0

    @property
    def null(self) -> Float[Tensor, "B"]:
        """Score of "no answer", on the scale of a span's: both null logits and the weighted verifier."""
        null = self.null_start + self.null_end
        return null if self.verifier is None else null + self.verifier_weight * self.verifier

    def folded(self) -> SpanLogits:
        """The same without a verifier: half of its weighted log-odds in each null logit, so that ``null`` is
        unchanged. Models with and without a verifier can then be compared."""
        if self.verifier is None:
            return self
        half = self.verifier_weight * self.verifier / 2
        return SpanLogits(self.start, self.end, self.null_start + half, self.null_end + half)


LOWEST = -1e30
"""Replaces -inf where gradients flow: a sum of two stays finite, and its exponential is 0."""


def log_sum_of_spans(
    start: Float[Tensor, "B T"], end: Float[Tensor, "B T"], longest: int
) -> Float[Tensor, "B"]:
    """log Σ exp(start_s + end_e) over the spans s <= e < s + ``longest`` of each window, exact, in
    O(T ``longest``).

    Without a valid span the result is about -2e30, far below any score, and contributes no gradient next to
    any other term.
    """
    start, end = start.clamp(min=LOWEST), end.clamp(min=LOWEST)
    # (B, T, longest): the ends that a span may have, by its start.
    ends = functional.pad(end, (0, longest - 1), value=LOWEST).unfold(1, longest, 1).logsumexp(2)
    return (start + ends).logsumexp(1)


@dataclass(frozen=True, slots=True, eq=False)
class StepLogits(Movable):
    """Logits of a sequence model, which chooses a context token or "stop" at each step.

    ``token`` is -inf outside the context. Stopping at the first step means "no answer". The last step is the
    generation limit: a sequence of S tokens has no stop.
    """

    token: Float[Tensor, "B S T"]
    stop: Float[Tensor, "B S"]

    @property
    def null(self) -> Float[Tensor, "B"]:
        """Log-probability of "no answer"."""
        return log_choices(self)[:, 0, -1]


Logits = SpanLogits | StepLogits


def log_choices(logits: StepLogits) -> Float[Tensor, "B S N"]:
    """Log-probabilities of each step's N = T + 1 choices: the tokens, then the stop."""
    return cat([logits.token, logits.stop[..., None]], dim=-1).float().log_softmax(-1)


def output_fields(output: Any) -> dict[str, Any]:
    """Fields of a model's output by name; a single tensor is named ``scores``."""
    if not is_dataclass(output):
        return {"scores": output}
    return {f.name: getattr(output, f.name) for f in fields(output)}


def output_tensors(output: Any) -> dict[str, Tensor]:
    """The tensors among ``output_fields``."""
    return {name: value for name, value in output_fields(output).items() if isinstance(value, Tensor)}


def difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; inf if only one of two scores is finite, or one is NaN."""
    errors = (actual - expected).abs().masked_fill(actual == expected, 0.0)  # equal infinities differ by NaN
    return float(errors.nan_to_num(math.inf, posinf=math.inf).max()) if errors.numel() else 0.0

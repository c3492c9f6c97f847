"""Losses ``(logits, labels) -> (B,)``: the loss of each window, chosen by ``conf/loss``.

A loss is a class without weights; the keys next to its ``_target_`` are its arguments. The result is not yet
multiplied by the labels' ``weight``, which is 0 for padding rows.

Axes: ``B`` windows, ``T`` tokens, ``S`` steps, ``K`` classes of a softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from qa_arch.config.check import Range
from qa_arch.config.schema import Config, default_loss
from qa_arch.config.target import TRUSTED, accepts, arguments, locate
from qa_arch.errors import ConfigError
from qa_arch.nn.masking import at_least_float32
from qa_arch.tensors import SpanLabels, SpanLogits, StepLogits, log_choices, log_sum_of_spans

Loss = Callable[[Any, Any], Tensor]
"""``(logits, labels) -> (B,)``."""
TWIN_SPANS = 30
"""Longest span in ``TwinLoss``, in tokens; equal to the longest answer in ``conf/decode``."""
NEEDS_VERIFIER = "needs a model with a verifier (model.no_answer=verifier or both)"


@dataclass(frozen=True)
class SpanLoss:
    """Cross-entropy per window: mean of start and end, plus the verifier's if the model has one.

    "No answer" is one more class next to the tokens (the null logits), and the target of every window that
    does not hold the gold answer (Devlin et al. 2019, section 4.3).

    ``label_smoothing`` ε (Szegedy et al. 2016, section 7) is the share of the target that is spread evenly
    over the classes that the model scores: (1 - ε) (-log p_gold) + ε mean_k(-log p_k). The verifier's
    target is not smoothed.

    ``null_weight`` ω multiplies the loss of windows without an answer. The weights are scaled to a mean of 1
    over the training set, in which a share p (``null_share``) of the windows has no answer::

        loss_i = c_i · ce_i,    c_i = ω / Z without an answer, 1 / Z with one,    Z = 1 + (ω - 1) p

    An epoch's mean, Σ c_i ce_i / Σ 1, is then the weighted mean Σ w_i ce_i / Σ w_i with w = ω or 1. A
    window's weight does not depend on how a step is split over ranks and accumulated batches. Z is 1 if
    ``null_share`` is unknown.

    ``verifier_weight`` multiplies the verifier's term, a binary cross-entropy. ``verifier_null_weight``
    replaces ω in that term, with the same normalisation; ``balanced`` is ω = (1 - p) / p, which gives windows
    with and without an answer the same total weight.

    Raises ConfigError for ``balanced`` if all training windows are of one class.
    """

    null_weight: Annotated[float, Range(0, above=True)] = 1.0
    label_smoothing: Annotated[float, Range(0, 1)] = 0.0
    null_share: float | None = None
    verifier_weight: Annotated[float, Range(0)] = 1.0
    verifier_null_weight: Annotated[float, Range(0, above=True)] | Literal["balanced"] | None = None
    tasks: ClassVar = ("span",)

    def __post_init__(self) -> None:
        if self.verifier_null_weight == "balanced" and self.null_share in (0.0, 1.0):
            raise ConfigError(
                "loss.verifier_null_weight: balanced needs training windows with and without an answer, but"
                f" {'all' if self.null_share == 0 else 'none'} have one; give a number"
            )

    def __call__(self, logits: SpanLogits, labels: SpanLabels) -> Float[Tensor, "B"]:
        start = self._boundary(logits.start, logits.null_start, labels.start, labels, before=True)
        end = self._boundary(logits.end, logits.null_end, labels.end, labels, before=False)
        loss = (start + end) / 2 * self._class_weights(self.null_weight, labels)
        if logits.verifier is not None:
            return loss + self._verification(logits.verifier, labels)
        _refuse_without_verifier(self)
        return loss

    @property
    def for_verifier(self) -> str:
        """A setting that has no effect on a model without a verifier; empty if there is none."""
        if self.verifier_null_weight is not None:
            return "verifier_null_weight"
        return "verifier_weight" if self.verifier_weight != 1 else ""

    def _verification(self, odds: Float[Tensor, "B"], labels: SpanLabels) -> Float[Tensor, "B"]:
        empty = (~labels.answerable).float()
        loss = functional.binary_cross_entropy_with_logits(odds.float(), empty, reduction="none")
        null_weight = self.null_weight if self.verifier_null_weight is None else self.verifier_null_weight
        return self.verifier_weight * loss * self._class_weights(null_weight, labels)

    def _class_weights(
        self, null_weight: float | Literal["balanced"], labels: SpanLabels
    ) -> Float[Tensor, "B"] | float:
        """c_i of each window; 1 if both classes have the same weight."""
        share = self.null_share
        if null_weight == "balanced":
            null_weight = 1.0 if share is None else (1 - share) / share
        if null_weight == 1:
            return 1.0
        mean = 1 + (null_weight - 1) * (share or 0.0)
        return torch.where(labels.answerable, 1 / mean, null_weight / mean)

    def _boundary(
        self,
        scores: Float[Tensor, "B T"],
        null: Float[Tensor, "B"],
        gold: Int[Tensor, "B"],
        labels: SpanLabels,
        *,
        before: bool,
    ) -> Float[Tensor, "B"]:
        """Cross-entropy of one boundary over T tokens and the null (last class)."""
        classes = torch.cat([scores, null[:, None]], dim=1).float()
        # A gold boundary on a position that cannot be chosen moves outward to the next one that can.
        position, is_open = snap_outward(gold, classes[:, :-1].isfinite(), before=before)
        target = torch.where(labels.answerable & is_open, position, scores.shape[1])
        return cross_entropy(classes, target, self.label_smoothing)


def _refuse_without_verifier(loss: object) -> None:
    if setting := getattr(loss, "for_verifier", ""):
        raise ConfigError(f"loss.{setting}: {getattr(loss, setting)} {NEEDS_VERIFIER}")


@dataclass(frozen=True)
class TwinLoss(SpanLoss):
    """``SpanLoss`` plus a margin loss between the two questions of a twin pair in the same batch::

        loss_i = span loss_i + λ softplus(m - v(i) + v(i')),    i unanswerable, i' its answerable twin
        v = null - log Σ_{s <= e < s + 30} exp(start_s + end_e)

    v is the null odds with all spans instead of the best one. The passage is the same for both questions, so
    the difference of v has to come from the few words in which they differ. λ (``twin_weight``) is the weight
    of a pair relative to a window, m is ``twin_margin``. Twins are questions on one passage that share at
    least ``twin_likeness`` of their words (``features.batches``). Cf. the pairs of Zhu et al. 2019.

    With ``twin_odds: verifier``, v is the verifier's log-odds alone: the margin then trains no span score,
    which with all odds costs answerable F1 (``experiments/decision``). The model must have a verifier.
    """

    twin_weight: Annotated[float, Range(0, above=True)] = 1.0
    twin_margin: Annotated[float, Range(0)] = 1.0
    twin_likeness: Annotated[float, Range(0, 1, above=True)] = 0.4
    twin_odds: Literal["all", "verifier"] = "all"

    @property
    def for_verifier(self) -> str:
        return "twin_odds" if self.twin_odds == "verifier" else super().for_verifier

    def __call__(self, logits: SpanLogits, labels: SpanLabels) -> Float[Tensor, "B"]:
        loss = super().__call__(logits, labels)
        if labels.twin is None:
            return loss
        value = self._odds(logits)
        twins = labels.twin.clamp(min=0)  # without a twin any row, which counts 0 times below
        ranking = functional.softplus(self.twin_margin - value + value[twins])
        return loss + self.twin_weight * ranking * (labels.twin >= 0)

    def _odds(self, logits: SpanLogits) -> Float[Tensor, "B"]:
        """v of each window."""
        if self.twin_odds == "verifier":
            assert logits.verifier is not None
            return at_least_float32(logits.verifier)
        start, end = at_least_float32(logits.start), at_least_float32(logits.end)
        return at_least_float32(logits.null) - log_sum_of_spans(start, end, TWIN_SPANS)


def cross_entropy(
    classes: Float[Tensor, "B K"], target: Int[Tensor, "B"], smoothing: float = 0.0
) -> Float[Tensor, "B"]:
    """Label-smoothed -log p of the target; classes with a score of -inf are excluded."""
    gold = functional.cross_entropy(classes, target, reduction="none")
    if not smoothing:
        return gold
    is_open = classes.isfinite()
    # Log p of an excluded class is -inf, which would be the mean of any row that has one.
    spread = -classes.log_softmax(1).masked_fill(~is_open, 0.0).sum(1) / is_open.sum(1)
    return (1 - smoothing) * gold + smoothing * spread


def snap_outward(
    gold: Int[Tensor, "B"], open_positions: Bool[Tensor, "B T"], *, before: bool
) -> tuple[Int[Tensor, "B"], Bool[Tensor, "B"]]:
    """Nearest open position at or before (``before``) or else at or after each gold position.

    A model that scores words opens only the first piece of each word as a start and the last as an end; a
    gold answer that begins inside a word is widened to the whole word. The second result is False if there is
    no open position on that side.
    """
    steps = torch.arange(open_positions.shape[1], device=gold.device)
    if before:
        usable = open_positions & (steps <= gold[:, None])
        position = torch.where(usable, steps, -1).amax(dim=1)
    else:
        usable = open_positions & (steps >= gold[:, None])
        position = torch.where(usable, steps, len(steps)).amin(dim=1)
    exists = usable.any(dim=1)
    return torch.where(exists, position, 0), exists


@dataclass(frozen=True)
class SequenceLoss:
    """Negative log-likelihood of the gold tokens in order, followed by the stop symbol.

    Wang & Jiang 2016, eq. 12. The target of a window without an answer is the stop at the first step, that of
    an answer longer than S its first S tokens.
    """

    tasks: ClassVar = ("sequence",)

    def __call__(self, logits: StepLogits, labels: SpanLabels) -> Float[Tensor, "B"]:
        steps = torch.arange(logits.stop.shape[1], device=labels.start.device)
        length = torch.where(labels.answerable, labels.end - labels.start + 1, 0)[:, None]
        gold = labels.start[:, None] + steps
        target = torch.where(steps < length, gold, logits.token.shape[2])  # the last choice is the stop
        chosen = log_choices(logits).gather(2, target[..., None].clamp(max=logits.token.shape[2]))[..., 0]
        # Tokens that cannot be part of an answer (of zero width) are skipped.
        counts = (steps <= length) & chosen.isfinite()
        return -chosen.masked_fill(~counts, 0.0).sum(1)


def build_loss(
    config: Config, trusted: Sequence[str] = TRUSTED, *, null_share: float | None = None, **supplied: Any
) -> Loss:
    """Build the loss of the config's ``loss`` section, or the default of its task.

    A loss that takes ``null_share`` receives the share of training windows without an answer, and what else
    it takes of ``supplied``; the section may set neither.
    Raises ConfigError naming the setting if the arguments or the task do not fit.
    """
    section = config.loss or default_loss(config.model)
    target = locate(section.get("_target_"), trusted, where="loss")
    task, tasks = config.model["task"], getattr(target, "tasks", None)
    if tasks is not None and task not in tasks:
        raise ConfigError(
            f"loss._target_: {target.__name__} is a loss for task {' or '.join(tasks)}, but"
            f" model.task is {task}"
        )
    supplied["null_share"] = null_share
    accepted = {name: value for name, value in supplied.items() if accepts(target, name)}
    loss = target(**accepted, **arguments(target, section, supplied, where="loss", trusted=trusted))
    if config.model.get("no_answer", "both") == "sentinel":  # of other models, the first logits tell
        _refuse_without_verifier(loss)
    if not callable(loss):
        raise ConfigError(f"loss._target_: {target.__name__} cannot be called as (logits, labels)")
    return loss

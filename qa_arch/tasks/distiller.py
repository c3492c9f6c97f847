"""The loss of a student: of its labels and, each with its weight, of how far it is from its teacher."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from qa_arch.config.schema import Config, Distillation
from qa_arch.errors import ConfigError
from qa_arch.features.collate import Collator
from qa_arch.nn.distillation import (
    MINILM_V2,
    aligned_layer,
    hidden_state_loss,
    relation_loss,
    soft_target_loss,
)
from qa_arch.nn.encoder import WithBackbone, encoder_of
from qa_arch.nn.layer_outputs import LayerOutputs, attention_linears, passed_layers, recorded
from qa_arch.nn.masking import at_least_float32
from qa_arch.tasks.base import device_of
from qa_arch.tasks.soft_targets import SoftTargets
from qa_arch.tasks.teacher import Reading, Teacher
from qa_arch.types.tensors import Batch, SpanLogits

TERMS = ("labels", "soft_targets", "hidden_states", "relations")
"""The terms of the loss, each named like the setting of its weight."""


class Distiller(nn.Module):
    """The terms of a student's loss, and their weighted sum.

    The teacher reads each batch, unless ``targets`` are its logits for all windows. The only parameters are
    maps from the student's width to the teacher's, where hidden states of other widths are compared: they
    are trained with the student and are no part of it.

    Raises ConfigError where the two models do not have what ``settings`` compares.
    """

    def __init__(self, settings: Distillation, teacher: Teacher, student: nn.Module, *, seed: int) -> None:
        super().__init__()
        self.settings, self.facts = settings, teacher.facts
        self.terms = tuple(name for name in TERMS if getattr(settings, name))
        self.teacher: Teacher | None = teacher
        self.targets: SoftTargets | None = None
        self.maps = nn.ModuleDict()
        self.related: tuple[int, int] | None = None
        """The layers of student and teacher, from 1, whose relations are compared."""
        if settings.hidden_states:
            own, theirs = _encoders("hidden_states", student, teacher)
            self.maps = _width_maps(own.config.hidden_size, theirs.config.hidden_size, seed)
        if settings.relations:
            own, theirs = _encoders("relations", student, teacher)
            self.heads = settings.relation_heads or int(own.config.num_attention_heads)
            self.related = (passed_layers(own), settings.relation_layer or passed_layers(theirs))
            _check_relations(own, theirs, self.heads, self.related[1])

    def forward(
        self, model: nn.Module, batch: Batch, label_loss: Callable[[SpanLogits], Tensor]
    ) -> dict[str, Tensor]:
        """(B,) each term, and ``loss``, their weighted sum; ``label_loss`` gives that of the labels."""
        with self._recorded(model) as layers:
            own = Reading(model(batch), layers)
        values = {"labels": label_loss(own.logits)} if "labels" in self.terms else {}
        with torch.autocast(batch.ids.device.type, enabled=False):  # exponentials and squares: in fp32
            values |= self._distances(own, batch)
        return {**values, "loss": sum(getattr(self.settings, name) * value for name, value in values.items())}

    def _recorded(self, model: nn.Module) -> AbstractContextManager[LayerOutputs]:
        hidden = "hidden_states" in self.terms
        if not hidden and self.related is None:
            return nullcontext(LayerOutputs())
        encoder = encoder_of(model)
        assert encoder is not None
        return recorded(encoder, hidden=hidden, attention=self.related[0] if self.related else None)

    def _distances(self, own: Reading, batch: Batch) -> dict[str, Tensor]:
        """How far what the student computed for the batch is from what the teacher says."""
        if set(self.terms) <= {"labels"}:
            return {}
        settings, values, theirs = self.settings, {}, self._taught(batch)
        if "soft_targets" in self.terms:
            values["soft_targets"] = soft_target_loss(
                own.logits, theirs.logits, temperature=settings.temperature, outcomes=settings.outcomes
            )
        if "hidden_states" in self.terms:
            values["hidden_states"] = self._hidden_states(own.layers.hidden, theirs.layers.hidden, batch)
        if "relations" in self.terms:
            values["relations"] = relation_loss(
                own.layers.attention,
                theirs.layers.attention,
                batch.mask,
                heads=self.heads,
                pairs=settings.relation_pairs or MINILM_V2,
            )
        return values

    def _taught(self, batch: Batch) -> Reading:
        if self.targets is not None:
            return Reading(self.targets(batch), LayerOutputs())
        assert self.teacher is not None
        hidden = "hidden_states" in self.terms
        return self.teacher.read(batch, hidden=hidden, attention=self.related[1] if self.related else None)

    def _hidden_states(self, own: list[Tensor], theirs: list[Tensor], batch: Batch) -> Tensor:
        """The mean over the embeddings and the layers of the student (Jiao et al. 2020, eq. 8 and 9)."""
        last = len(own) - 1
        losses = []
        for layer, states in enumerate(own):
            which = "layers" if layer else "embeddings"
            mapped = self.maps[which](at_least_float32(states)) if which in self.maps else states
            target = theirs[aligned_layer(layer, last, len(theirs) - 1)]
            losses.append(hidden_state_loss(mapped, target, batch.mask, self.settings.hidden_distance))
        return torch.stack(losses).mean(0)


def make_distiller(config: Config, teacher: Teacher, student: nn.Module, collate: Collator) -> Distiller:
    """The distiller of a run; ``collate`` makes the student's training batches.

    Both models read the two shortest windows, so that what cannot be compared is refused before anything is
    trained: raises ConfigError. A teacher that is needed for its logits alone then reads all windows once.
    """
    teacher.prepare(collate.table)
    distiller = Distiller(config.distillation, teacher, student, seed=config.seed)
    batch = collate(collate.lengths.argsort(kind="stable")[:2].tolist())
    training = student.training
    with torch.no_grad():
        distiller(student.eval(), batch, lambda logits: logits.null)
    student.train(training)
    if {"hidden_states", "relations"} & set(distiller.terms):
        return distiller
    if "soft_targets" in distiller.terms:
        if teacher.read(batch).logits.pair is not None:  # (T, T) scores of each window are too many to store
            return distiller
        gpu, size = device_of(config) == "cuda", config.trainer.eval_batch_size
        distiller.targets = teacher.soft_targets(config.features.cache_dir, size, gpu=gpu)
    distiller.teacher = None  # its memory is free again
    return distiller


def _encoders(term: str, student: nn.Module, teacher: Teacher) -> tuple[WithBackbone, WithBackbone]:
    """The encoders of both, whose layers ``term`` compares."""
    own, theirs = encoder_of(student), teacher.encoder
    if own is None or theirs is None:
        which = "teacher" if theirs is None else "student"
        raise ConfigError(f"distillation.{term}: the {which} has no layers to compare; leave it at 0")
    return own, theirs


def _width_maps(own: int, theirs: int, seed: int) -> nn.ModuleDict:
    """W_e for the embeddings and W_h for the layers (Jiao et al. 2020, eq. 8 and 9); none for the same width.

    They are drawn apart from the random state, so that the student begins as it would without.
    """
    if own == theirs:
        return nn.ModuleDict()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return nn.ModuleDict({name: nn.Linear(own, theirs, bias=False) for name in ("embeddings", "layers")})


def _check_relations(own: WithBackbone, theirs: WithBackbone, heads: int, layer: int) -> None:
    if layer > passed_layers(theirs):
        raise ConfigError(
            f"distillation.relation_layer: {layer}, and the teacher has {passed_layers(theirs)} layers"
        )
    for who, encoder in (("student", own), ("teacher", theirs)):
        for linears in attention_linears(encoder).values():
            width = linears[-1].out_features
            if width % heads:
                raise ConfigError(
                    f"distillation.relation_heads: {heads} do not divide the {who}'s width of {width}; give a"
                    " number that divides both models' widths"
                )

"""What a run starts with: a new model, or that of the run that ``init_from`` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qa_arch.config.schema import Config, changes_of
from qa_arch.config.target import TRUSTED
from qa_arch.data.splits import load_splits
from qa_arch.nn.encoder import Encoder
from qa_arch.provenance import system_hash
from qa_arch.qa import loading, task
from qa_arch.qa.task import SpanParts
from qa_arch.qa.teacher import Teacher, load_teacher, unseen_titles, with_teacher
from qa_arch.records import Origin, Parent


def assemble(config: Config, trusted: Sequence[str] = TRUSTED) -> SpanParts:
    """Data, features, model and loss of a run, with the distillation loss of its teacher, if it has one."""
    teacher = load_teacher(config, trusted)
    if config.init_from is None:
        parts = task.assemble(config, trusted, teacher)
    else:
        parts = _started(config, config.init_from, trusted, teacher)
    return parts if teacher is None else with_teacher(config, parts, teacher)


def _started(config: Config, run: str, trusted: Sequence[str], teacher: Teacher | None) -> SpanParts:
    """Parts with the model of ``run``, as extras change it.

    Raises the errors of loading and of a teacher, DataError if ``run`` was trained on articles of calibration
    or dev.
    """
    reader, sets = loading.load(run, device="cpu", trust=trusted), load_splits(config.data)
    record, name = reader.record, Path(run).resolve().name
    assert record is not None
    titles = unseen_titles(f"init_from {name}", [record], config.data, sets)
    if teacher is not None:
        teacher.check(config, reader.tokenizer, sets)
    parent = Parent(run=name, run_hash=record.run_hash, system=system_hash(record), titles=titles)
    parts = task.reassemble(config, sets, reader, trusted)
    for change in changes_of(config).values():
        parts = change.change(config, parts)
    _make_trainable(parts, config)
    return replace(parts, origin=Origin(parent=parent, encoder=record.encoder, initial=record.initial))


def _make_trainable(parts: SpanParts, config: Config) -> None:
    """Turn on dropout, frozen layers and gradient checkpointing, as in a new model."""
    parts.model.train()
    freeze = config.encoder.freeze
    if not isinstance(parts.encoder, Encoder):
        parts.encoder.freeze(freeze)
        return
    # A model with fewer layers than it had may have fewer than are to be trained.
    parts.encoder.freeze(min(freeze, parts.encoder.depth) if isinstance(freeze, int) else freeze).train()
    if config.trainer.gradient_checkpointing:
        parts.encoder.checkpoint_activations()

"""The teacher of a student: a trained span model that reads the student's windows without gradients."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config
from qa_arch.data.run_splits import closed_titles
from qa_arch.data.splits import require_disjoint
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.features.collate import Collator
from qa_arch.features.glove import vector_rows
from qa_arch.features.same_tokens import require_same_tokens
from qa_arch.features.table import FeatureTable, check_ids
from qa_arch.models.teacher_files import SETTING, require_teacher, teacher_identity
from qa_arch.nn.encoder import encoder_of
from qa_arch.nn.layer_outputs import LayerOutputs, recorded
from qa_arch.nn.precision import HALVES, Precision, cast_weights
from qa_arch.tasks.loading import load_predictor
from qa_arch.tasks.reading import device_of, read_table
from qa_arch.tasks.soft_targets import SoftTargets, TargetCollector, cached_targets
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.records import CALIBRATION, TRAIN, RunRecord, TeacherFacts
from qa_arch.types.tensors import Batch, SpanLogits
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """What a teacher computes for a batch."""

    logits: SpanLogits
    layers: LayerOutputs


class Teacher:
    """A trained model in evaluation mode, for the windows that a student is trained on.

    It is no module: nothing of it is trained, counted or saved with the student. Its weights are in fp32
    until ``prepare`` gives them the precision that it was trained in.
    """

    def __init__(self, predictor: SpanPredictor, source: str) -> None:
        record = predictor.record
        assert record is not None
        self.model = predictor.model.eval().requires_grad_(False)
        self.encoder = encoder_of(self.model)
        self.tokenizer, self.vectors, self.segments = (
            predictor.tokenizer,
            predictor.vectors,
            predictor.segments,
        )
        self.record, self.precision = record, _own_precision(record)
        self.facts = TeacherFacts(
            name=Path(source).resolve().name if Path(source).is_dir() else record.model,
            config_hash=record.config_hash,
            fingerprint=record.setting("model", "revision") or teacher_identity(source),
            precision=self.precision,
        )

    def check(
        self, config: Config, tokenizer: PreTrainedTokenizerBase, sets: Mapping[str, QuestionSet]
    ) -> None:
        """Raise ConfigError where the student's windows are not made of the teacher's tokens, or are longer
        than it can read, DataError where it knows articles that the student is judged on.

        How the teacher's own windows were cut does not matter.
        """
        name = self.facts.name
        limit = self.encoder.max_tokens if self.encoder is not None else None
        if limit is not None and config.features.max_length > limit:
            raise ConfigError(
                f"features.max_length: {config.features.max_length} is more than the {limit} tokens that the"
                f" teacher {name} can read"
            )
        names = (f"{SETTING}: the teacher {name}", "the student")
        require_same_tokens(self.tokenizer, tokenizer, sets[TRAIN], config.features, names=names)
        self._check_titles(closed_titles(config.data), sets)

    def _check_titles(self, closed: Mapping[str, frozenset[str]], sets: Mapping[str, QuestionSet]) -> None:
        seen, calibrated = self.record.trained_titles, frozenset(self.record.facts(CALIBRATION).titles)
        if not seen:
            log.warning(
                "teacher %s: is not known to have been trained without the articles of calibration and dev",
                self.facts.name,
            )
        judged = {split: questions.titles for split, questions in sets.items() if split != TRAIN}
        judged.update(closed)
        for split, titles in judged.items():
            known = seen - calibrated if split == CALIBRATION else seen
            require_disjoint(**{f"what the teacher {self.facts.name} was trained on": known, split: titles})
        own = frozenset(title for questions in sets.values() for title in questions.titles)
        self.facts = replace(self.facts, titles=tuple(sorted(seen - own)))

    def prepare(self, table: FeatureTable) -> None:
        """Get ready for the student's windows, with the teacher's own segment ids and word vectors."""
        if self.encoder is not None:
            check_ids(table, self.encoder.vocab_size, self.facts.name)
        cast_weights(self.model, self.precision)
        self.table = replace(table, template=replace(table.template, segments=self.segments))
        self.collate = Collator(self.table, vector_rows(self.vectors, table), labels=False)

    def read(self, batch: Batch, *, hidden: bool = False, attention: int | None = None) -> Reading:
        """What it computes for the windows of a student's batch, without gradients and in its own precision,
        whatever the student's is."""
        device = batch.ids.device
        if device_of(self.model) != device:
            self.model.to(device)
        own = self.collate(batch.index.tolist()).to(device)
        half = HALVES.get(self.precision)
        with torch.no_grad(), torch.autocast(device.type, half, enabled=half is not None):
            if self.encoder is None:
                return Reading(self.model(own), LayerOutputs())
            with recorded(self.encoder, hidden=hidden, attention=attention) as layers:
                return Reading(self.model(own), layers)

    def soft_targets(self, cache_dir: str | None, batch_size: int, *, gpu: bool) -> SoftTargets:
        """Its logits for all windows of its table, from the cache or read now."""

        def build() -> SoftTargets:
            log.info("teacher %s: reads %d windows", self.facts.name, len(self.table))
            begun = time.perf_counter()
            model, collector = self.model.to("cuda" if gpu else "cpu"), TargetCollector(self.table)
            targets = read_table(
                model, self.collate, collector, batch_size=batch_size, precision=self.precision
            )
            log.info("teacher %s: has read them in %.0f s", self.facts.name, time.perf_counter() - begun)
            return targets

        about = {"teacher": self.facts.fingerprint, "precision": self.facts.precision}
        return cached_targets(cache_dir, about, self.table, build)


def load_teacher(config: Config, trusted: Sequence[str]) -> Teacher | None:
    """The teacher that the config names, on the CPU; None where it names none.

    The random state is left as it was, so that a student begins as it would without. Raises what
    ``load_predictor`` raises, with the setting's name.
    """
    source = config.distillation.teacher
    if source is None:
        return None
    require_teacher(config)
    try:
        with torch.random.fork_rng(devices=()):
            predictor = load_predictor(source, device="cpu", trust=trusted)
    except QaArchError as error:
        raise type(error)(f"{SETTING}: {error}") from error
    assert isinstance(predictor, SpanPredictor)
    return Teacher(predictor, source)


def _own_precision(record: RunRecord) -> Precision:
    """The precision that a model was trained in; fp32 where its record leaves it open."""
    recorded: Any = record.precision or record.setting("trainer", "precision")
    return recorded if recorded in HALVES else "fp32"

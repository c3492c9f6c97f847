"""What a run starts with: a new model, or that of the run that ``init_from`` names, and its teacher.

In distillation a trained span model reads the student's windows once, and its logits are the targets. A
teacher without dropout gives the same logits for a window in every epoch: they are cached next to the
features.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config, Data, Distillation, changes_of
from qa_arch.config.target import TRUSTED
from qa_arch.data.splits import closed_dev, load_splits, require_disjoint
from qa_arch.errors import ConfigError, named
from qa_arch.features.batches import Collator
from qa_arch.features.cache import cache_file, read_or_build, read_sealed, require_same_tokens, write_sealed
from qa_arch.features.vectors import vector_rows
from qa_arch.features.windows import FeatureTable, array_names, check_ids, check_window
from qa_arch.models.checkpoint_files import SETTING, joint_hash, teacher_identity
from qa_arch.nn.distillation import soft_target_loss
from qa_arch.nn.encoder import Encoder, encoder_of
from qa_arch.nn.precision import HALVES, Precision, cast_weights
from qa_arch.nn.reading import run_device, run_model
from qa_arch.qa import loading, task
from qa_arch.qa.reader import Reader
from qa_arch.qa.task import SpanParts
from qa_arch.records import CALIBRATION, TRAIN, Origin, Parent, RunRecord, TeacherFacts
from qa_arch.results.systems import systems_hash
from qa_arch.tensors import Batch, SpanLogits
from qa_arch.types import QuestionSet

TOKEN_COLUMNS = ("start", "end")
log = logging.getLogger(__name__)


def assemble(config: Config, trusted: Sequence[str] = TRUSTED) -> SpanParts:
    """Data, features, model and loss of a run, with the distillation loss of its teacher, if it has one."""
    teacher = load_teacher(config, trusted)
    if config.init_from is None:
        parts = task.new_parts(config, trusted, teacher)
    else:
        parts = _started(config, config.init_from, trusted, teacher)
    if teacher is None:
        return parts
    settings, targets = config.distillation, None
    if settings.soft_targets:
        gpu, size = run_device(config) == "cuda", config.trainer.eval_batch_size
        targets = teacher.soft_targets(parts.tables[TRAIN], config.features.cache_dir, size, gpu=gpu)
    return replace(parts, distiller=Distiller(settings, teacher.facts, targets))


def _started(config: Config, run: str, trusted: Sequence[str], teacher: Teacher | None) -> SpanParts:
    """Parts with the model of ``run``, as extras change it.

    Raises the errors of loading and of a teacher, DataError if ``run`` was trained on articles of calibration
    or dev.
    """
    reader, sets = loading.load(run, device="cpu", trust=trusted), load_splits(config.data)
    record, name = reader.record, Path(run).resolve().name
    assert record is not None
    # Equal but for the cache's folder, in which this run's windows are kept (``require_start``).
    reader.config = replace(reader.config, features=config.features)
    titles = unseen_titles(f"init_from {name}", [record], config.data, sets)
    if teacher is not None:
        teacher.check(config, reader.tokenizer, sets)
    parent = Parent(run=name, run_hash=record.run_hash, system=systems_hash([record]), titles=titles)
    parts = task.continued_parts(config, sets, reader, trusted)
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


def unseen_titles(
    name: str, records: Sequence[RunRecord], data: Data, sets: Mapping[str, QuestionSet]
) -> tuple[str, ...]:
    """Titles of the articles that the runs ``records`` were trained on and that are not in ``sets``.

    Raises DataError if they were trained on articles of calibration or dev; ``name`` is what they are.
    """
    seen, trained = set[str](), set[str]()
    for record in records:
        seen |= record.trained_titles
        trained |= record.trained_titles - set(record.facts(CALIBRATION).titles)
    if not all(record.trained_titles for record in records):
        log.warning(
            "%s: its training articles are unknown and may include those of calibration and dev", name
        )
    evaluated = {split: questions for split, questions in sets.items() if split != TRAIN}
    for split, questions in {**evaluated, **closed_dev(data)}.items():
        # What the runs were calibrated on may calibrate again, but is not unseen as dev.
        known: Any = frozenset(trained if split == CALIBRATION else seen)
        require_disjoint(**{f"the training data of {name}": known, split: questions})
    return tuple(sorted(seen.difference(*(questions.titles for questions in sets.values()))))


# The teacher ---------------------------------------------------------------------------------------


def load_teacher(config: Config, trusted: Sequence[str]) -> Teacher | None:
    """Load the configured teacher on the CPU; None without one.

    The random state is unchanged, so that a student starts as it would without a teacher. Raises the errors
    of ``qa.loading.load``, prefixed with the setting's name.
    """
    sources = config.distillation.teachers
    if not sources:
        return None
    with named(SETTING), torch.random.fork_rng(devices=()):
        predictor = loading.load(sources, device="cpu", trust=trusted)
    return Teacher(predictor, *sources)


class Teacher:
    """A trained model, or an ensemble, in evaluation mode, that reads the windows of a student.

    It is not an ``nn.Module``, so that it is not trained, counted or saved with the student. Its weights are
    in fp32 until ``soft_targets`` casts them to its training precision. Raises ConfigError if the runs of an
    ensemble have different ones.
    """

    def __init__(self, predictor: Reader, *sources: str) -> None:
        self.records = predictor.records
        self.model = predictor.model.eval().requires_grad_(False)
        self.encoder = encoder_of(self.model)
        self.tokenizer, self.vectors = predictor.tokenizer, predictor.vectors
        self.segments = predictor.segments
        # A teacher computes as it was trained: its soft targets are part of what a student learns from.
        recorded = {record.precision or record.setting("trainer", "precision") for record in self.records}
        precisions: Any = {precision if precision in HALVES else "fp32" for precision in recorded}
        if len(precisions) > 1:
            raise ConfigError(
                f"{SETTING}: the runs were trained in {' and '.join(sorted(precisions))};"
                " name runs of the same precision"
            )
        self.precision: Precision = precisions.pop()
        runs = list(zip(sources, self.records, strict=True))
        self.facts = TeacherFacts(
            name=" + ".join(Path(s).resolve().name if Path(s).is_dir() else r.model for s, r in runs),
            run_hash=joint_hash([record.run_hash for record in self.records]),
            fingerprint=joint_hash([r.setting("model", "revision") or teacher_identity(s) for s, r in runs]),
            precision=self.precision,
        )

    def check(
        self, config: Config, tokenizer: PreTrainedTokenizerBase, sets: Mapping[str, QuestionSet]
    ) -> None:
        """Raise ConfigError if the student's windows have other tokens than the teacher's, or are longer than
        it can read, DataError if it was trained on articles that the student is evaluated on.

        How the teacher's own windows were cut does not matter.
        """
        name = self.facts.name
        limit = self.encoder.max_tokens if self.encoder is not None else None
        check_window(config.features.max_length, limit, f"the teacher {name}")
        names = (f"{SETTING}: the teacher {name}", "the student")
        require_same_tokens(self.tokenizer, tokenizer, sets[TRAIN], config.features, names=names)
        titles = unseen_titles(f"teacher {name}", self.records, config.data, sets)
        self.facts = replace(self.facts, titles=titles)

    def soft_targets(
        self, table: FeatureTable, cache_dir: str | None, batch_size: int, *, gpu: bool
    ) -> SoftTargets:
        """Logits for all windows of a student's ``table``, read with the teacher's own segment ids and word
        vectors; cached in ``cache_dir`` by everything they depend on (None: not cached)."""
        if self.encoder is not None:
            check_ids(table, self.encoder.vocab_size, self.facts.name)
        table = replace(table, template=replace(table.template, segments=self.segments))

        def build() -> SoftTargets:
            log.info("teacher %s: reading %d windows", self.facts.name, len(table))
            started = time.perf_counter()
            targets = run_model(
                cast_weights(self.model, self.precision).to("cuda" if gpu else "cpu"),
                Collator(table, vector_rows(self.vectors, table), labels=False),
                SoftTargets(table),
                batch_size=batch_size,
                precision=self.precision,
            )
            log.info("teacher %s: finished in %.0f s", self.facts.name, time.perf_counter() - started)
            return targets

        if cache_dir is None:
            return build()
        # The vocabulary, too, as a teacher may look up word vectors.
        windows = hashlib.sha256(json.dumps([asdict(table.template), table.vocabulary]).encode())
        for name in array_names():
            windows.update(np.ascontiguousarray(getattr(table, name)).data)
        teacher = {"teacher": self.facts.fingerprint, "precision": self.facts.precision}
        key = {**teacher, "windows": windows.hexdigest()}
        return read_or_build(
            cache_file(cache_dir, key, ".logits"),
            "teacher's logits",
            read=lambda path: SoftTargets(table).read(path),
            build=build,
            write=lambda path, targets: targets.write(path),
        )


@dataclass(frozen=True)
class Distiller:
    """Loss of a student: the weighted sum of its losses on labels and on its teacher's ``targets``."""

    settings: Distillation
    facts: TeacherFacts
    targets: SoftTargets | None
    """None if soft targets have zero weight."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Terms with nonzero weight, each named like the setting of its weight."""
        return tuple(name for name in ("labels", "soft_targets") if getattr(self.settings, name))

    def __call__(
        self, model: nn.Module, batch: Batch, label_loss: Callable[[SpanLogits], Tensor]
    ) -> dict[str, Tensor]:
        """(B,) each term, and ``loss``, their weighted sum; ``label_loss`` computes that of the labels."""
        logits = model(batch)
        values = {"labels": label_loss(logits)} if "labels" in self.terms else {}
        if self.targets is not None:
            with torch.autocast(batch.ids.device.type, enabled=False):  # exponentials in fp32
                values["soft_targets"] = soft_target_loss(
                    logits, self.targets(batch), temperature=self.settings.temperature
                )
        return {**values, "loss": sum(getattr(self.settings, name) * value for name, value in values.items())}


class SoftTargets:
    """A teacher's logits for all N windows of a table; collects its batches in any order.

    ``columns`` has ``start`` and ``end``, (K,), for the concatenated context tokens of all windows, and
    ``null_start``, ``null_end`` and possibly ``verifier``, (N,).
    """

    def __init__(self, table: FeatureTable) -> None:
        lengths = torch.from_numpy(np.asarray(table.token_end - table.token_start, np.int64))
        self.begin = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        """(N + 1,): the tokens of window n are ``[begin[n], begin[n + 1])``."""
        self.context_at = torch.from_numpy(table.context_at.astype(np.int64))
        self.columns: dict[str, Tensor] = {}
        self.verifier_weight = 1.0

    def add(self, batch: Batch, output: SpanLogits) -> None:
        logits, rows = output.to("cpu"), batch.index.cpu()
        index, inside = self._token_index(rows, batch.ids.shape[1])
        for name in (*TOKEN_COLUMNS, "null_start", "null_end", "verifier"):
            if (values := getattr(logits, name)) is None:
                continue
            if name not in self.columns:
                self.columns[name] = torch.full((self._size(name),), -torch.inf)
            if name in TOKEN_COLUMNS:
                self.columns[name][index[inside]] = values[inside].float()
            else:
                self.columns[name][rows] = values.float()
        self.verifier_weight = logits.verifier_weight

    def result(self) -> SoftTargets:
        return self

    def __call__(self, batch: Batch) -> SpanLogits:
        """Logits for the windows of ``batch``, on its token axis and device."""
        rows = batch.index.cpu()
        index, inside = self._token_index(rows, batch.ids.shape[1])
        logits = {
            name: column[index].masked_fill(~inside, -torch.inf) if name in TOKEN_COLUMNS else column[rows]
            for name, column in self.columns.items()
        }
        return SpanLogits(**logits, verifier_weight=self.verifier_weight).to(batch.ids.device)

    def _token_index(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(B, T) index in ``columns`` of every token of these windows, and (B, T) whether it is context."""
        offset = torch.arange(width) - self.context_at[rows, None]
        inside = (offset >= 0) & (offset < (self.begin[rows + 1] - self.begin[rows])[:, None])
        return (self.begin[rows, None] + offset).masked_fill(~inside, 0), inside  # any, where unused

    def _size(self, name: str) -> int:
        return int(self.begin[-1]) if name in TOKEN_COLUMNS else len(self.context_at)

    def write(self, path: Path) -> None:
        """Write the logits for ``read``."""
        # As precise as a Python float, to be read back unchanged.
        weight = torch.tensor(self.verifier_weight, dtype=torch.float64)
        write_sealed(path, save({**self.columns, "verifier_weight": weight}))

    def read(self, path: Path) -> SoftTargets:
        """Read the logits in ``path``. Raises ValueError if they are damaged or not of these windows."""
        self.columns = load(read_sealed(path))
        self.verifier_weight = float(self.columns.pop("verifier_weight"))
        for name, column in self.columns.items():
            if column.dtype != torch.float32 or len(column) != self._size(name):
                raise ValueError(f"{name} has {len(column)} values of {column.dtype}")
        return self

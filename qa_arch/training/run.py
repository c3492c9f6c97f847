"""A training run from config to record: ``run.json`` is written when the run begins, when it has read its
inputs, after each epoch, and at its end.

``train`` opens an ``OpenRun`` and hands it to a recipe: ``train_spans``, or one of an extra
(``manifest.Recipe``). A recipe reads the data, builds the model, and takes the steps of the run in order:
``describe``, ``fit``, ``add_scores`` of each split, ``finish``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from qa_arch import provenance
from qa_arch.config.schema import OOM_REMEDY, Config, cut_batch, recipe_of
from qa_arch.config.target import TRUSTED
from qa_arch.data.splits import held_out
from qa_arch.errors import QaArchError, RunError, out_of_memory
from qa_arch.evaluation import calibrate, read_set, reference_scores, score
from qa_arch.features.vectors import WordVectors
from qa_arch.files import write_atomic
from qa_arch.models import store
from qa_arch.nn.features import parameter_blocks
from qa_arch.provenance import encoder_run
from qa_arch.qa import task
from qa_arch.qa.start import assemble
from qa_arch.records import (
    CALIBRATION,
    DEV,
    MODEL,
    RECORD,
    BatchSizes,
    Epoch,
    InitialWeights,
    Origin,
    Points,
    RunRecord,
    SplitFacts,
    Status,
    TeacherFacts,
    Threshold,
    read_record,
    write_end,
    write_record,
)
from qa_arch.training import inputs
from qa_arch.training.checkpoint import LAST, PREVIOUS, discard, random_state, restore_random_state
from qa_arch.training.fit import (
    Fitted,
    device_facts,
    fit,
    peak_memory_mb,
    reset_peak_memory,
    span_fitting,
    start_process,
    strategy_name,
)
from qa_arch.training.loggers import Outcome, RunLogger, open_loggers
from qa_arch.training.module import Fitting
from qa_arch.training.ranks import other_ranks
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)
TRACEBACK = "traceback.txt"


@dataclass
class OpenRun:
    """A run in progress: its folder and its record; ``update`` writes the record, ``note`` leaves that to the
    next ``update``."""

    folder: Path
    record: RunRecord
    config: Config
    """Config for training and scoring, from ``begin`` on with the settings that this machine chose."""
    trusted: Sequence[str] = TRUSTED
    resumes: bool = False
    take_over: Callable[[], None] | None = None
    """Replaces another run in the folder, which stays until this one has read what it needs."""
    written: os.stat_result | None = None
    """The file of the record as this run wrote it last."""
    read: Mapping[str, str | None] = field(default_factory=dict)
    """Hashes of what a resumed run has read before."""
    closing: ExitStack = field(default_factory=ExitStack)
    """Closes the loggers when the run ends."""
    loggers: Sequence[RunLogger] = ()
    begun: float = 0.0
    """Clock of the process, as ``prepared``: when the training began, and when all was read and built."""
    prepared: float = 0.0

    @property
    def model_folder(self) -> Path:
        return self.folder / MODEL

    def begin(self) -> None:
        """Write the record, with what is known of a run that is resumed."""
        if self.resumes and (self.folder / RECORD).is_file():
            earlier = read_record(self.folder)
            self.read = inputs.recorded(self.folder, earlier)
            known = ("epochs", "batch", "data", "encoder", "teacher", "parent", "held_out")
            self.note(**{name: getattr(earlier, name) for name in known})
            is_begun = any((self.folder / name).exists() for name in (LAST, PREVIOUS))
            if is_begun and earlier.code != self.record.code:
                log.warning(
                    "%s: was begun by other code (commit %s), so it does not count as a pre-registered run;"
                    " use --if-exists replace to train it with one code",
                    self.folder,
                    (earlier.commit or "unknown")[:8],
                )
                self.note(code=None)
        if self.take_over is not None:
            with suppress(FileNotFoundError):
                # That of the run to replace: its folder may be renamed before this one begins.
                self.written = (self.folder / RECORD).stat()
            return
        self.update()
        (self.folder / TRACEBACK).unlink(missing_ok=True)

    def update(self, **changes: Any) -> None:
        """Change fields of the record and write it; RunError if it is no longer in its place.

        The first record of a run that replaces another ends that one.
        """
        self.require_in_place()
        take_over, self.take_over = self.take_over, None
        if take_over is not None:
            self.written = None  # take_over removes it
            take_over()
        self.note(**changes)
        self.written = write_record(self.folder, self.record).stat()

    def note(self, **changes: Any) -> None:
        """Change fields of the record, which is written later."""
        self.record = replace(self.record, **changes)

    def require_in_place(self) -> None:
        """Raise RunError if the folder was renamed, removed or replaced since the record was written."""
        if self.written is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(self.written, (self.folder / RECORD).stat()):
                return
        raise RunError(
            f"{self.folder}: was renamed, replaced or removed while the run trained in it, so the run ended;"
            " resume it in its new place with --config-from NEW --folder NEW --resume"
        )

    @contextmanager
    def ending(self, command: str) -> Iterator[None]:
        """Record how the body ends, and say which ``command`` resumes it; out of memory is a result."""
        try:
            with self.closing:
                self.config = start_process(self.config)
                self.begun = time.perf_counter()
                yield
        except BaseException as error:
            if self.take_over is not None:
                log.warning("%s: the run in it is unchanged, as the new one could not begin", self.folder)
                raise
            self.require_in_place()
            if self.record.status == "ok":  # only loggers have missed its outcome
                discard(self.folder)
                raise
            oom = out_of_memory(error)
            status: Status = "oom" if oom else "failed" if isinstance(error, Exception) else "killed"
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            self.note(status=status, error=reason)
            write_end(self.folder, self.record)  # before the traceback: a full disk may have no room for both
            with suppress(QaArchError):  # a disk that is still full must not hide the error
                write_atomic(self.folder / TRACEBACK, traceback.format_exc())
            if (self.folder / LAST).exists():
                log.info("resume: %s", command)
            if not oom:
                raise
            log.error("out of memory; try %s", OOM_REMEDY)
        else:
            discard(self.folder)

    # Steps of a recipe ----------------------------------------------------------------------------

    def describe(
        self,
        sets: Mapping[str, Any],
        facts: Mapping[str, SplitFacts],
        model: nn.Module,
        *,
        encoder: nn.Module | None = None,
        vectors: WordVectors | None = None,
        teacher: TeacherFacts | None = None,
        origin: Origin | None = None,
        held_out: SplitFacts | None = None,
    ) -> None:
        """Record what the run reads and trains; RunError if a resumed run has read something else.

        ``sets`` have a ``fingerprint``; ``facts`` are theirs, with titles except for dev. Without an
        ``origin`` the weights are those of ``encoder``.
        """
        settings, name = self.config.trainer, self.config.encoder.name
        origin = origin or Origin(encoder=encoder_run(name), initial=_initial_weights(self.config, encoder))
        fingerprints = {split: questions.fingerprint for split, questions in sets.items()}
        words = None if vectors is None else vectors.fingerprint
        hashes = provenance.inputs_of(fingerprints, words, origin.encoder, teacher, origin.parent)
        inputs.require_unchanged(self.folder, self.config, self.read, hashes)
        self.update(
            data=facts,
            held_out=self.record.held_out or held_out,  # what was closed stays so after a resume
            initial=origin.initial,
            precision=settings.precision,
            optimizer_bits=settings.optimizer_bits,
            parameters=parameter_blocks(model),
            run_hash=provenance.identify(self.record.config, hashes).run_hash,
            encoder=origin.encoder,
            parent=origin.parent,
            teacher=teacher,
            device=device_facts("cuda" if settings.accelerator == "gpu" else settings.accelerator),
            strategy=strategy_name(settings),
        )

    def fit(self, fitting: Fitting) -> None:
        """Train, with all ranks, and leave the best weights in the model and in the run folder."""
        self.loggers = self.closing.enter_context(open_loggers(self.config, self.folder, self.trusted))
        self.prepared = time.perf_counter()
        epochs, best = _fit_into_memory(self, fitting)
        self.note(epochs=tuple(map(Epoch.from_flat, epochs)), best_epoch=best)
        store.load_weights(self.model_folder, fitting.model)
        fitting.model.to(self.record.device.kind)

    def add_scores(
        self,
        split: str,
        points: Points,
        rows_hash: str,
        seconds: float,
        *,
        references: Points | None = None,
    ) -> None:
        """Add the scores of a split to the record, and the hash of the rows that they are of."""
        record = self.record
        self.note(
            scores={**record.scores, split: points},
            rows={**record.rows, split: rows_hash},
            references={**record.references, split: references or {}},
            seconds=replace(record.seconds, predict=round(seconds, 3)),
        )

    def finish(self, dev: QuestionSet | None = None) -> None:
        """Record the cost of training, that the run is finished, and its outcome in the loggers."""
        epochs = self.record.epochs  # including those before a resume
        seconds = sum(epoch.train_seconds or 0.0 for epoch in epochs)
        validation = sum(epoch.validation_seconds or 0.0 for epoch in epochs)
        trained = sum(epoch.windows or 0 for epoch in epochs)
        self.update(
            status="ok",
            examples_per_second=round(trained / seconds, 3) if seconds else None,
            peak_memory_mb=peak_memory_mb(self.record.device.kind == "cuda"),
            seconds=replace(
                self.record.seconds,
                prepare=round(self.prepared - self.begun, 3),
                fit=round(seconds, 3),
                fit_with_validation=round(seconds + validation, 3),
            ),
            weights_bytes=(self.model_folder / store.WEIGHTS).stat().st_size,
        )
        for logger in self.loggers:
            logger.log_outcome(Outcome(self.record, self.folder, dev))


def train(
    config: Config,
    *,
    folder: Path,
    resume: bool = False,
    trusted: Sequence[str] = TRUSTED,
    options: Sequence[str] = (),
    take_over: Callable[[], None] | None = None,
) -> RunRecord:
    """Train, choose epoch and null threshold on calibration, score, and record everything.

    The config was checked where the run was planned (``training.jobs``). The status of the record ends as
    ``ok``, ``oom``, ``failed`` or ``killed``. Errors are recorded and raised, except for running out of
    memory, which is a result. The command that resumes an interrupted run ends with ``options``.

    With ``take_over``, which makes the folder of another run that of this one, the other stays until this one
    has read what it needs; an error before that is raised alone.
    """
    record = provenance.new_record(asdict(config), status="running")
    run = OpenRun(folder, record, config, trusted, resume, take_over)
    run.begin()
    again = ["qa-arch", "train", "--config-from", str(folder), "--folder", str(folder), *options]
    again += ["--if-exists", "resume"]
    with run.ending(shlex.join(again)):
        recipe = recipe_of(config.model)
        train_spans(run) if recipe is None else recipe.load().train(run)
    return run.record


def train_spans(run: OpenRun) -> None:
    """The recipe of span models: questions and their windows, model, fit, null threshold, scores, record."""
    config = run.config
    parts = assemble(config, run.trusted)
    fitting = span_fitting(config, parts)  # may find faults, so before ``describe`` ends a replaced run
    run.describe(
        parts.sets,
        {
            split: task.facts(questions, parts.tables[split], titles=split != DEV)
            for split, questions in parts.sets.items()
        },
        parts.model,
        encoder=parts.encoder,
        vectors=parts.vectors,
        teacher=parts.distiller.facts if parts.distiller is not None else None,
        origin=parts.origin,
        held_out=held_out(config.data),
    )
    task.save(run.model_folder, parts)
    run.fit(fitting)
    if parts.origin is not None:  # in which weights may have been pruned
        nonzero = sum(int(weights.count_nonzero()) for weights in parts.model.parameters())
        run.update(parameters=replace(run.record.parameters, nonzero=nonzero))
    predictor = task.predictor(config, parts)
    run.note(threshold=Threshold(value=0.0, fitted_on="nothing"))
    steps = run.record.epochs[-1].step if run.record.epochs else None
    for split in (CALIBRATION, DEV):  # in this order: dev is scored at the threshold of calibration
        if split not in parts.sets:
            continue
        questions = parts.sets[split]
        reading = read_set(predictor, questions, table=parts.tables[split])
        if split == CALIBRATION:
            run.note(**vars(calibrate(predictor, reading)))
        scores, rows_hash = score(predictor, reading, run.folder, split=split, steps=steps)
        references = reference_scores(config, parts.sets.get(CALIBRATION), questions, run.trusted)
        run.add_scores(split, scores, rows_hash, reading.seconds, references=references)
    run.finish(parts.sets.get(DEV))


def _initial_weights(config: Config, encoder: Any) -> InitialWeights | None:
    """Hash and commit of the weights of a pretrained encoder before training."""
    if config.encoder.init != "pretrained" or not isinstance(encoder, nn.Module):
        return None
    total = hashlib.sha256()
    for name, value in sorted(encoder.state_dict().items()):
        total.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return InitialWeights(weights=total.hexdigest(), commit=getattr(encoder, "commit", None))


def _fit_into_memory(run: OpenRun, fitting: Fitting) -> Fitted:
    """Run ``fit`` on all ranks, with ``trainer.micro_batch=auto`` at the largest micro batch that fits into
    memory.

    It is halved each time the first epoch runs out of memory, and training starts over as if that size had
    been configured. A whole epoch shows that a size fits, so later epochs are never discarded.
    """
    model, trainer, again = fitting.model, run.config.trainer, False
    auto, micro = trainer.micro_batch == "auto", trainer.batch_size
    if auto:
        micro = run.record.batch.micro or micro  # as before a resume
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        generators = random_state()
    while True:
        settings = cut_batch(trainer, micro)
        micro, accumulate, world = settings.batch_size, settings.accumulate, int(settings.devices)
        total = micro * accumulate * world
        if again:
            message = "out of memory: training starts over with trainer.micro_batch=%d, accumulated %d times"
            log.warning(message, micro, accumulate)
        run.update(batch=BatchSizes(micro=micro, accumulate=accumulate, devices=world, global_size=total))
        try:
            with other_ranks(world, run.folder, resume=run.resumes, trusted=run.trusted):
                return fit(
                    replace(run.config, trainer=settings),
                    fitting,
                    run.folder,
                    resume=run.resumes,
                    trusted=run.trusted,
                    publish=lambda epochs: run.update(epochs=tuple(map(Epoch.from_flat, epochs))),
                    loggers=run.loggers,
                )
        except Exception as error:
            can_halve = (
                auto and micro > 1 and cut_batch(trainer, micro // 2).batch_size >= fitting.batches.least
            )
            if run.record.epochs or not (can_halve and out_of_memory(error)):
                raise
        # Outside the except block: the error would keep every tensor of the step alive.
        micro, again = micro // 2, True
        model.zero_grad(set_to_none=True)
        model.load_state_dict(weights)
        restore_random_state(generators)
        reset_peak_memory()
        discard(run.folder)

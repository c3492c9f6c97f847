"""A sweep: a list of run folders, each trained by processes of its own.

``sweep.json`` lists the points of a grid or a search. All of them are composed and checked before the first
starts, and what became of one is read from the lock and the record in its folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import pickle
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from qa_arch import hub, launchers, provenance, terminal
from qa_arch.config.check import FolderName, from_mapping
from qa_arch.config.find import CONFIG, use_config_dir
from qa_arch.config.machine import MACHINE, machine_overrides, machine_settings, within
from qa_arch.config.schema import (
    OOM_REMEDY,
    Config,
    Source,
    SweepSettings,
    objective,
    recipe_of,
    refuse_without_effect,
    validate,
)
from qa_arch.config.target import own_options, require_packages
from qa_arch.data.files import content_hash, packaged_files
from qa_arch.data.sources import identity
from qa_arch.errors import ConfigError, QaArchError, RunError, named
from qa_arch.files import LOCK, hold, holder, is_unfinished, read_json, write_atomic, write_json
from qa_arch.launchers import MANIFEST, PENDING, RESULTS, STUDY, Here, Launch, State, Value, state_of
from qa_arch.models.checkpoint_files import joint_hash, teacher_identity
from qa_arch.process import ended_by_signals, module_command, start
from qa_arch.provenance import ENCODER, NEUTRAL, PARENT, encoder_folder, encoder_run, identify
from qa_arch.records import RECORD, RunRecord, read_record
from qa_arch.terminal import counted
from qa_arch.training import jobs
from qa_arch.training.jobs import Job

if TYPE_CHECKING:
    from qa_arch.config.compose import Multirun

log = logging.getLogger(__name__)
SCHEMA = 2
UNFINISHED: tuple[State, ...] = ("queued", "running", "failed", "killed")
UNSUCCESSFUL: tuple[State, ...] = ("failed", "oom")
"""States of the points that ``resume`` runs, and of those that it runs ``again``."""


@dataclass(frozen=True)
class SweepPoint:
    """A point in the manifest."""

    name: Annotated[str, FolderName()]
    """Its folder."""
    key: str
    """Hash of its config and of the files it reads, without settings that do not change results."""
    overrides: tuple[str, ...]
    """Those that not all points share."""

    @property
    def title(self) -> str:
        return " ".join(self.overrides) or "the only point"


@dataclass(frozen=True)
class Manifest:
    """A sweep: what it was started with, and every point requested so far."""

    grid: str
    """Its settings without the swept values, and without those that change no result."""
    cwd: str
    """Base folder of relative paths in the configs; only there can the sweep be resumed."""
    trusted: list[str]
    """The ``--trust`` it was started with; this and ``config_dir`` must be given again to resume it."""
    config_dir: str | None
    """The ``--config-dir``, from which points also import trusted packages."""
    settings: dict[str, Any]
    points: list[SweepPoint] = field(default_factory=list)
    schema: int = SCHEMA

    def with_points(self, added: Iterable[SweepPoint]) -> Manifest:
        """Add or update points; a known one keeps its folder, even if its name has changed."""
        points = {point.key: point for point in self.points}
        names = {key: point.name for key, point in points.items()}
        points |= {point.key: replace(point, name=names.get(point.key, point.name)) for point in added}
        return replace(self, points=list(points.values()))


def read_manifest(folder: Path) -> Manifest:
    """Manifest of the sweep in ``folder``; RunError if it is missing or unreadable."""
    path, again = folder / MANIFEST, "start the sweep again in another folder"
    if not path.is_file():
        raise RunError(f"{folder}: contains no sweep ({MANIFEST} is missing); give a sweep's folder")
    raw = read_json(path, again)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise RunError(f"{path}: is not of schema {SCHEMA}, which this version reads; {again}")
    try:
        manifest = from_mapping(Manifest, raw)
        launchers.sweep_settings(manifest.settings)
        return manifest
    except ConfigError as error:
        raise RunError(f"{path}: {error}; {again}") from error


def grid_name(fixed: Iterable[str], swept: Iterable[str]) -> str:
    """What tells one sweep from another: ``fixed`` overrides and the names of the ``swept`` settings."""
    ignored = ("sweep", *NEUTRAL)
    relevant = [override for override in fixed if not within(override.partition("=")[0], ignored)]
    return " ".join([*sorted(relevant), *(f"{key}=..." for key in sorted(swept))])


def default_folder(base: Path, grid: str, swept: Sequence[str]) -> Path:
    """Folder of a sweep below ``base``; the order of the ``swept`` settings does not matter."""
    digest = hashlib.sha256(grid.encode()).hexdigest()[:8]
    short = "-".join(key.rpartition(".")[2].rpartition("/")[2] for key in sorted(swept))
    return base / "-".join(part for part in ("sweep", short[:60], digest) if part)


# Points before they start -------------------------------------------------------------------------------


def plan(composed: Iterable[tuple[Sequence[str], dict[str, Any]]], **options: Any) -> dict[SweepPoint, Job]:
    """Validate all points; raises an error naming the first that cannot run or is given twice.

    ``composed``: overrides and resolved config of each; ``options`` are those of ``jobs.plan_composed``.
    """
    planned: dict[str, tuple[SweepPoint, Job]] = {}
    for overrides, raw in composed:
        title = SweepPoint("", "", tuple(overrides)).title
        with named(title):
            job = jobs.plan_composed(raw, if_exists="resume", title=title, **options)
            key = point_key(job.config)
        point = SweepPoint(point_name(overrides, job.config, key), key, tuple(overrides))
        twin, _ = planned.setdefault(key, (point, job))
        if twin is not point:
            same = twin.overrides == point.overrides
            hint = ", given twice" if same else f"; these change no result: {', '.join(NEUTRAL)}"
            raise ConfigError(f"'{twin.title}' and '{title}' are the same point{hint}")
    if not planned:
        raise ConfigError("the grid is empty: one of the swept settings has no value")
    return dict(planned.values())


def point_key(config: Config) -> str:
    """What identifies a point: its config, and the content of what it reads."""
    return identify(asdict(config), sources(config)).run_hash


def point_name(overrides: Sequence[str], config: Config, key: str) -> str:
    """``bert-batch_size4-0e0f6f99`` for ``model=bert trainer.batch_size=4``, safe in paths."""
    parts = []
    for override in overrides:
        setting, _, value = override.lstrip("+~").partition("=")
        setting = setting.partition("@")[0].replace("/", ".")
        is_clear = re.match(r"[A-Za-z_]", value) and "." not in setting
        word = value if is_clear else f"{setting.rpartition('.')[2]}{value}"
        parts.append(re.sub(r"[^\w.+-]+", "_", word).strip("_"))
    label = "-".join(filter(None, parts))[:80].rstrip("-_")
    return f"{label or config.model.get('name', 'model')}-{key[:8]}"


def sources(config: Config) -> dict[str, str]:
    """Setting -> identity of what the run reads: hashes of files, names of remote sources."""
    data = config.data
    inputs: dict[str, Source | None] = {"train": data.train, "calibration": data.calibration}
    if data.open_dev:
        inputs["dev"] = data.dev
    if config.glove.use and config.glove.path and not config.init_from:  # which has its own vectors
        files = packaged_files(config.glove.path)
        inputs["glove"] = list(map(str, files)) if files else config.glove.path
    recipe = recipe_of(config.model)
    identity_of = identity if recipe is None else import_module(recipe.data).identity
    hashes: dict[str, str] = {}
    for name, source in inputs.items():
        if source is not None:
            with named("glove.path" if name == "glove" else f"data.{name}"):
                hashes[name] = identity_of(source)
    if config.glove.use and config.glove.name:  # which need not be here yet
        hashes["glove"] = config.glove.name
    if config.init_from:
        hashes[PARENT] = read_record(config.init_from).run_hash
    elif config.encoder.init == "random" and (tokenizer := config.encoder.tokenizer):
        path = (encoder_folder(tokenizer) or Path(tokenizer)) / "tokenizer.json"
        if path.is_file():
            hashes["tokenizer"] = content_hash(path)
    if not config.init_from and (encoder := encoder_run(config.encoder.name)):
        hashes[ENCODER] = encoder.run_hash
    if teachers := config.distillation.teachers:
        hashes["teacher"] = joint_hash([teacher_identity(teacher) for teacher in teachers])
    return hashes


def check(
    planned: Mapping[SweepPoint, Job],
    pool: Sequence[str] | None,
    *,
    local: bool = True,
    missing: list[QaArchError] | None = None,
) -> None:
    """``jobs.require_runnable`` of the points, and of the GPUs that are assigned to them, in another process.

    One that has used a GPU keeps some of its memory until it ends, and the sweep's process must not. Points
    that are not ``local`` run on machines with other devices, another cache and other access to the hub.
    """
    if not planned and not pool:
        return
    error, lacking, offline = ask([*planned.values()], pool, local, missing)
    if offline:
        hub.go_offline()  # also for the points
    if error:
        raise error
    if missing is not None:
        missing[:] = lacking


def ask(planned: Sequence[Job], pool: Sequence[str] | None, *more: Any) -> Any:
    """``examine`` in another process."""
    process = start(
        module_command("qa_arch.sweep"),
        env=os.environ if pool is None else {**os.environ, launchers.VISIBLE: ",".join(pool)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    output, _ = process.communicate(pickle.dumps((planned, pool, *more)))
    if process.returncode:
        code = process.returncode
        raise RunError(f"the points could not be checked (exit code {code}, see the output above)")
    return pickle.loads(output)  # of our own process


def examine(
    planned: Sequence[Job], pool: Sequence[str] | None, local: bool, missing: list[QaArchError] | None
) -> tuple[QaArchError | None, list[QaArchError] | None, bool]:
    """What ``check`` asks: the first error, what this machine lacks, and whether the hub is left out."""
    error = None
    try:
        jobs.require_runnable(planned, here=local, missing=missing)
        with jobs.collecting(missing):
            require_devices(pool or ())
    except QaArchError as problem:
        error = problem
    return error, missing, hub.offline()


def require_devices(pool: Sequence[str]) -> None:
    """Raise ConfigError for the first device of the pool that torch does not see."""
    if not pool:
        return
    import torch

    visible = torch.cuda.device_count()  # counts up to the first missing device
    if visible < len(pool):  # a point would silently train on the CPU instead
        raise ConfigError(
            f"sweep.devices: torch sees no device {pool[visible]}; qa-arch doctor lists the available ones,"
            " and trainer=cpu needs none"
        )


# What became of points ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointState:
    """One point, as ``sweep status`` shows it."""

    point: str
    status: State
    folder: str
    epoch: int | None = None
    """Whole epochs."""
    epochs: int | None = None
    f1: float | None = None
    """On calibration, or another ``score``."""
    seconds: float | None = None
    """Preparation, training and scoring, of all attempts."""
    memory_mb: float | None = None
    commit: str | None = None
    score: str = "f1"
    """Name of the calibration score: ``f1``, or that of an extra's recipe."""
    error: str | None = None
    remedy: str | None = None

    @property
    def note(self) -> str | None:
        return f"try {self.remedy}" if self.remedy else self.error

    def __str__(self) -> str:
        """Log line of a point that ended."""
        text = f"{self.status} {self.point}"
        if self.f1 is not None:
            text += f", calibration {score_name([self])} {self.f1:.1f}"
        if self.seconds is not None:
            text += f", in {terminal.clock(self.seconds)}"
        return text + (f": {self.note}" if self.note else "")


def select(folder: Path, points: Iterable[SweepPoint], states: Sequence[State]) -> list[SweepPoint]:
    """Points of the sweep in ``folder`` that are in one of ``states``."""
    return [point for point in points if state_of(folder / point.name)[0] in states]


def row(folder: Path, point: SweepPoint) -> PointState:
    """Row of a point of the sweep in ``folder``."""
    place = folder / point.name
    try:
        status, record = state_of(place)
    except RunError as error:
        return PointState(point.title, "failed", str(place), error=str(error))
    if record is None:
        lost = f"its {RECORD} is missing or damaged" if status == "failed" else None
        return PointState(point.title, status, str(place), error=lost)
    f1, spent, score = record.tuning_score, record.seconds, objective(record.config.get("model", {}))
    # A point in training has no final score: that of its last epoch stands for it.
    if f1 is None and record.epochs:
        f1 = record.epochs[-1].value(f"calibration_{score}")
    fitted = [(epoch.train_seconds, epoch.validation_seconds) for epoch in record.epochs]
    return PointState(
        point=point.title,
        status=status,
        folder=str(place),
        epoch=len(record.epochs),
        epochs=record.setting("trainer", "epochs"),
        f1=f1,
        seconds=sum(filter(None, [*chain(*fitted), spent.prepare, spent.predict])) or None,
        memory_mb=record.peak_memory_mb,
        commit=record.commit,
        score=score,
        error=None if status in ("ok", "running") else _reason(record),
        remedy=OOM_REMEDY if status == "oom" else None,
    )


def _reason(record: RunRecord) -> str | None:
    """Why the run ended; the interrupt of a user or a sweep is called that."""
    interrupted = (record.error or "").startswith(KeyboardInterrupt.__name__)
    return "interrupted" if interrupted else record.error


def score_name(rows: Sequence[PointState]) -> str:
    """Name of the score in ``PointState.f1``."""
    names = {row.score for row in rows}
    return names.pop().replace("_", " ") if len(names) == 1 and "f1" not in names else "F1"


# Sweeps -------------------------------------------------------------------------------------------------


@dataclass
class Sweep:
    """A grid or a search in its folder, started or continued by ``launch``."""

    folder: Path
    grid: str
    settings: SweepSettings
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of ``jobs.plan_composed``: ``overrides``, ``trust`` and ``config_dir``."""
    place: Callable[[Path, SweepSettings, Sequence[str] | None], Here | launchers.Cluster] = Here
    local: bool = True
    """Whether that is this machine, with its devices."""
    has_all: bool = True
    """Whether the first ``launch`` has all points; a search has few, which may not read what others do."""
    missing: list[QaArchError] | None = None
    """What this machine lacks, of a dry run; None for a sweep that runs."""
    requested: dict[str, SweepPoint] = field(default_factory=dict)
    """By key: every point so far, including finished ones."""

    @classmethod
    def of(cls, given: Multirun, *, dry: bool, **options: Any) -> Sweep:
        """The sweep that a command line asks for; nothing is written for a ``dry`` run."""
        settings, parameters = launchers.sweep_settings(given.settings), given.plugin("launcher")
        grid, swept = given.grid() if given.sweeper == "grid" else [], given.keys
        if settings.seeds > 1 and "seed" in swept:
            raise ConfigError("sweep.seeds: seed is swept as well; leave out one of the two")
        if (kind := given.launcher) != "isolated":
            launchers.require_submittable(kind, parameters, settings, dry=dry)
        raw, name = given.compose(next(iter(grid), [])), grid_name(given.fixed, swept)
        folder = default_folder(Path(raw["runs_dir"]) / raw["name"], name, swept)
        return cls(
            folder=Path(settings.folder) if settings.folder else folder,
            grid=name,
            settings=settings,
            options=options,
            place=Here if kind == "isolated" else partial(launchers.Cluster, kind, parameters),
            local=kind != "slurm",
            has_all=given.sweeper == "grid",
            missing=[] if dry else None,
        )

    def run(self, given: Multirun) -> None:
        """Run the grid, or search."""

        def launch(points: Sequence[Sequence[str]]) -> list[Value]:
            values = self.launch([run for own in points for run in _seeded(given, own, seeds)])
            return [_mean(values[n : n + seeds]) for n in range(0, len(values), seeds)]

        seeds = self.settings.seeds
        if given.sweeper == "grid":
            launch(given.grid())
            return
        require_packages("optuna", "hydra/sweeper=qa_optuna")
        from qa_arch.search import search, space_of

        space, dry = space_of(given.swept), self.missing is not None
        fail_fast, parameters = self.settings.fail_fast, given.plugin("sweeper")
        self._require_same_values(given)
        search(self.folder, space, launch, **parameters, seeds=seeds, fail_fast=fail_fast, dry=dry)

    def _require_same_values(self, given: Multirun) -> None:
        """Raise RunError if a point of the search has the value of another config or of other files: it would
        guide the sampler, and compete with those that follow."""
        known = read_manifest(self.folder) if (self.folder / MANIFEST).is_file() else None
        if known is None or known.grid != self.grid:  # ``_manifest`` refuses another sweep
            return
        warn_of_other_code([row(self.folder, point) for point in known.points])
        for point in select(self.folder, known.points, ("ok",)):
            config = validate(given.compose(point.overrides))
            if point_key(config) != point.key:
                raise _changed(self.folder, point, config)

    def launch(self, composed: Iterable[tuple[Sequence[str], dict[str, Any]]]) -> list[Value]:
        """Run points without a result; returns the value of every point, NaN if it has no calibration split.

        ``composed``: overrides and resolved config of each. All checks run before the first point starts and
        before any file is written.
        """
        planned = self._placed(plan(composed, **self.options))
        if self.has_all:
            refuse_without_effect(self.options.get("overrides", ()), [job.config for job in planned.values()])
        # Checked without the lock, so that a dry run waits for nobody.
        waiting = {point: planned[point] for point in select(self.folder, planned, UNFINISHED)}
        pool = launchers.device_pool(self.settings, waiting.values())
        check(waiting, pool, local=self.local, missing=self.missing)
        if self.missing is not None:
            return [0.0] * len(planned)  # a search needs a value of every point
        with hold(self.folder, "sweep"):
            planned = self._placed(planned)  # again: another process may have run the same sweep meanwhile
            from qa_arch.config.compose import to_yaml

            write_json(self.folder / MANIFEST, asdict(self._manifest(planned)))
            for job in planned.values():
                # A point with a result, or one that is running, keeps its config: its record is of that one.
                config, (status, _) = job.folder / CONFIG, state_of(job.folder)
                if not (config.is_file() and status in (*RESULTS, "running")):
                    write_atomic(config, to_yaml(job.raw))
            to_run = select(self.folder, planned, UNFINISHED)
            run_points(planned, to_run, self.place(self.folder, self.settings, pool), pool, self.settings)
        return [_value(*state_of(job.folder)) for job in planned.values()]

    def _placed(self, planned: Mapping[SweepPoint, Job]) -> dict[SweepPoint, Job]:
        """The points as the manifest has them, with their folders."""
        known = {point.key: point for point in self._manifest(planned).points}
        placed = {known[point.key]: job for point, job in planned.items()}
        self.requested |= {point.key: point for point in placed}
        return {point: replace(job, folder=self.folder / point.name) for point, job in placed.items()}

    def _manifest(self, points: Iterable[SweepPoint]) -> Manifest:
        """Manifest that includes these points; RunError if the folder contains something else."""
        folder, trust, config_dir = self.folder, self.options["trust"], self.options["config_dir"]
        cwd, settings = str(Path.cwd()), asdict(self.settings)
        new = Manifest(self.grid, cwd, [*trust], config_dir, settings, [*points])
        if (folder / MANIFEST).is_file():
            old = read_manifest(folder)
            # A sweep that grows by a setting has another name, but all of its points.
            if old.grid != self.grid and not {p.key for p in old.points} <= {p.key for p in new.points}:
                raise RunError(
                    f"{folder}: contains another sweep ({old.grid}); add values to that one's, or give this"
                    " one its own sweep.folder=DIR"
                )
            return replace(new, points=old.with_points(new.points).points)
        preliminary = (LOCK, STUDY)  # may exist before the manifest, as may temporary files
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder}: is a file; give sweep.folder=DIR")
        if folder.is_dir() and not all(p.name in preliminary or is_unfinished(p) for p in folder.iterdir()):
            raise RunError(f"{folder}: is not empty and contains no sweep; give sweep.folder=DIR")
        return new


def _value(status: State, record: RunRecord | None) -> Value:
    if status == "ok" and record is not None:
        return math.nan if record.tuning_score is None else float(record.tuning_score)
    return None if status in ("failed", "oom") else PENDING


def _mean(values: Sequence[Value]) -> Value:
    """Value of a point from those of its seeds."""
    scores = [value for value in values if isinstance(value, float)]
    return fmean(scores) if len(scores) == len(values) else PENDING if PENDING in values else None


def _seeded(given: Multirun, own: Sequence[str], seeds: int) -> list[tuple[Sequence[str], dict[str, Any]]]:
    """Overrides and config of a point, or with several seeds of each of its runs."""
    config = given.compose(own)
    if seeds == 1:
        return [(own, config)]
    seeded = [[*own, f"seed={config['seed'] + n}"] for n in range(seeds)]
    return [(run, given.compose(run)) for run in seeded]


def warn_of_other_code(rows: Sequence[PointState]) -> None:
    """Log how many results of a sweep were made by another commit, and are kept."""
    current, _ = provenance.commit()
    outdated = [it.commit for it in rows if it.status in RESULTS and it.commit not in (None, current)]
    if outdated:
        log.warning(
            "kept the results of %s run with other code (commit %s, now %s)",
            counted(len(outdated), "point"),
            ", ".join(sorted({str(commit)[:8] for commit in outdated})),
            (current or "none")[:8],
        )


def run_points(
    planned: Mapping[SweepPoint, Job],
    to_run: Iterable[SweepPoint],
    place: Here | launchers.Cluster,
    pool: Sequence[str] | None,
    settings: SweepSettings,
) -> None:
    """Run the points ``to_run`` of a sweep, whose lock the caller holds."""
    warn_of_other_code([row(job.folder.parent, point) for point, job in planned.items()])
    launches = {}
    for point in to_run:
        job = planned[point]
        if process := holder(job.folder):
            log.warning("%s: is still running (%s), skipped", point.name, process)
            continue
        if launchers.is_damaged(job.folder):  # nothing to go on from
            launchers.reset_point(job.folder)
        command, devices = tuple(point_command(job)), launchers.devices_of(job.config, pool)
        launches[Launch(job.folder.absolute(), command, devices)] = point
    done, total = len(planned) - len(launches), len(planned)
    with ended_by_signals(), closing(launchers.run(launches, place)) as events:  # break stops the others
        for launch, has_ended in events:
            point, done = launches[launch], done + has_ended
            now = row(launch.folder.parent, point)
            log.info("[%d/%d] %s", done, total, now if has_ended else f"started {point.title}")
            if has_ended and settings.fail_fast and now.status == "failed":
                break


def point_command(job: Job) -> list[str]:
    """The ``qa-arch train`` command that trains or resumes a point."""
    folder, machine = job.folder.absolute(), json.dumps(machine_settings(job.raw))
    words = ["--config-from", str(folder / CONFIG), "--folder", str(folder), "--if-exists", "resume"]
    words += ["--machine", machine, *job.options, *job.machine]
    return module_command("qa_arch.cli.main", "train", *words)


def resume(
    folder: Path,
    overrides: Sequence[str],
    changes: Mapping[str, Any],
    *,
    trust: Sequence[str],
    config_dir: str | None,
    again: bool = False,
) -> None:
    """Run what is queued, was killed or failed; or ``again``, from the beginning, what failed or ran out of
    memory.

    ``overrides`` choose the settings of this machine, ``changes`` are of the section ``sweep``. Raises
    RunError for the first point, also a finished one, that would read other files than when it was started.
    """
    if other := [word for word in overrides if word not in machine_overrides(overrides)]:
        raise ConfigError(f"{other[0]}: points keep their settings, except for {', '.join(MACHINE)}")
    read_manifest(folder)  # before a lock file is written into a folder that is not a sweep
    with hold(folder, "sweep"):
        manifest = read_manifest(folder)
        _require_same_start(folder / MANIFEST, manifest, trust, config_dir)
        config_dir = use_config_dir(config_dir, trust)
        settings = launchers.sweep_settings({**manifest.settings, **changes})
        to_run = select(folder, manifest.points, UNSUCCESSFUL if again else UNFINISHED)
        planned = {
            point: job
            for point in manifest.points
            if (job := _job_again(folder, point, overrides, point in to_run, trust, config_dir)) is not None
        }
        waiting = {point: planned[point] for point in to_run if point in planned}
        pool = launchers.device_pool(settings, waiting.values())
        check(waiting, pool)
        # Last, after all checks: it deletes what the points had computed.
        for job in waiting.values() if again else ():
            launchers.reset_point(job.folder)
        run_points(planned, waiting, Here(folder, settings, pool), pool, settings)


def _job_again(
    folder: Path,
    point: SweepPoint,
    overrides: Sequence[str],
    runs: bool,
    trust: Sequence[str],
    config_dir: str | None,
) -> Job | None:
    """The job of a point as its config says; None for a point that was not begun, or that does not run now
    and whose files are gone. RunError if it would read others than when it was started."""
    from qa_arch.config.compose import merge

    path = folder / point.name / CONFIG
    if not path.is_file():
        log.warning("%s: was not begun; the train -m that started the sweep begins it", point.name)
        return None
    made: Any = {"if_exists": "resume", "config_dir": config_dir, "trust": trust, "title": point.title}
    try:
        raw = merge(path, overrides, config_dir, resumes=runs)
        with named(str(path)):
            validate(raw)
        job = jobs.plan_composed(raw, overrides, folder=path.parent, **made)
        key = point_key(job.config)
    except QaArchError as error:
        # A finished point needs no files, and may have read those of another machine.
        if runs:
            raise
        log.warning("%s: what it read is not here to be compared (%s)", point.name, error)
        return None
    # Also of finished points: otherwise a table would mix results on different data.
    if key != point.key:
        raise _changed(folder, point, job.config)
    return job


def _changed(folder: Path, point: SweepPoint, config: Config) -> RunError:
    """A point of the sweep in ``folder`` had another ``config``, or read other files."""
    read = [*config.data.opened.values(), config.glove.source, config.encoder.name]
    files = ", ".join(str(source) for source in (*read, config.distillation.teacher) if source)
    return RunError(
        f"{folder}: {point.name}: what it reads ({files}) or its config has changed since the sweep began;"
        " restore it, or start the sweep in another folder (sweep.folder=DIR)"
    )


def _require_same_start(path: Path, manifest: Manifest, trust: Sequence[str], config_dir: str | None) -> None:
    """Raise ConfigError if the sweep was started in another working folder, or with packages or a config
    folder that the command line does not name: the manifest may come from anyone, and both execute code."""
    untold = own_options(
        [prefix for prefix in manifest.trusted if prefix not in trust],
        None if config_dir else manifest.config_dir,
    )
    if untold:
        raise ConfigError(
            f"{path}: was started with {shlex.join(untold)}, which is not taken from a file; if you trust it,"
            " add it to this command"
        )
    if manifest.cwd != str(Path.cwd()):
        raise ConfigError(
            f"{path}: was started in {manifest.cwd}, where its relative paths begin; run this command there,"
            " or repeat here the train -m that started it"
        )


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what is printed meanwhile is no answer
    pickle.dump(examine(*pickle.load(sys.stdin.buffer)), answers)

"""Where the points of a sweep run: in process groups of this machine, or as cluster jobs through submitit.

What became of a point is read from the lock and the record in its folder. The folder of a sweep on a cluster
must be on a shared file system: the sweep's process only sees the files that points write there.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal

from qa_arch import provenance
from qa_arch.config.check import from_mapping
from qa_arch.config.find import CONFIG
from qa_arch.config.schema import Config, SweepSettings, validate
from qa_arch.errors import ConfigError, QaArchError, RunError, one_line
from qa_arch.files import LOCK, hold, holder, read_yaml
from qa_arch.process import SAFE_PATH, has_ended, kill_group, start
from qa_arch.records import RECORD, RunRecord, Status, clear_run, read_record, write_end
from qa_arch.training.jobs import Job, require_alone

log = logging.getLogger(__name__)
MANIFEST, STUDY, LOG = "sweep.json", "study.journal", "log.txt"
"""Files of a sweep: its points, Optuna's journal if it chose them, and the output of each in its folder."""
DAMAGED = "damaged"
"""Folder of a sweep with what was moved out of points whose records are damaged."""
State = Literal["queued"] | Status
RESULTS: tuple[State, ...] = ("ok", "oom")
"""States with a result: such points run again only on request."""
PENDING: Literal["pending"] = "pending"
Value = float | None | Literal["pending"]
"""What a search gets of a point: its calibration score, None if it failed or ran out of memory, PENDING if it
has not ended."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
GRACE = 10.0
"""Seconds for an interrupted point to save a checkpoint, then again to write its record without one."""
SCRUBBED = (
    *("LOCAL_RANK", "RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"),
    *("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SERVICE"),
    *("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
)
"""Variables of distributed training and of a single wandb run, which a point must not inherit.

The user's wandb key, mode and project are kept. With SLURM's task variables Lightning would treat a point as
one rank of the whole job.
"""
MAX_TIMEOUTS = "max_num_timeout"
"""Parameter of submitit's constructor, not of ``update_parameters``."""
JOBS = "submitit"
"""Folder of a sweep with submitit's files and logs, one folder per job."""
SQUEUE_INTERVAL = 10.0
"""Seconds between calls of squeue, which queries the controller of the whole cluster."""


def record_of(folder: Path) -> RunRecord | None:
    """Record of the run; None if there is none yet, or if its file is not JSON.

    Raises RunError for a record that may be a good one: of another version, or unreadable for the moment.
    """
    try:
        return read_record(folder) if (folder / RECORD).exists() else None
    except OSError as error:
        raise RunError(f"{folder / RECORD}: cannot be read ({error.strerror}); correct the folder") from error
    except RunError as error:
        if isinstance(error.__cause__, JSONDecodeError):
            return None
        raise


def state_of(folder: Path) -> tuple[State, RunRecord | None]:
    """What became of the point in ``folder``: ``running`` while its lock is held, then what its record says.

    A point that has begun, which its log shows, and has no record has failed.
    """
    # Asked first: a point writes its record before it drops its lock.
    is_held = holder(folder)
    record = record_of(folder)
    if is_held:
        return "running", record
    if record is None:
        return "failed" if (folder / LOG).exists() or (folder / RECORD).exists() else "queued", None
    return "killed" if record.status == "running" else record.status, record


def reset_point(folder: Path) -> None:
    """Queue a point again: clear its folder except for config and log.

    If its record is damaged, everything is moved into the sweep's folder ``DAMAGED`` instead. Raises RunError
    for a link, and for a point with other runs or exports below it.
    """
    if folder.is_symlink():
        raise RunError(f"{folder}: is a link, whose target is not cleared; put the folder itself here")
    remaining = (CONFIG, LOG, LOCK)
    with hold(folder, "run"):
        if is_damaged(folder):
            names = (folder.parent / DAMAGED / f"{folder.name}-{n}" for n in count(1))
            aside = next(path for path in names if not path.exists())
            aside.mkdir(parents=True)
            paths = [path for path in folder.iterdir() if path.name not in remaining]
            for path in sorted(paths, key=lambda path: path.name == RECORD):  # last, in case of a kill
                path.rename(aside / (f"{path.name}.{DAMAGED}" if path.name == RECORD else path.name))
            log.warning(
                "%s: its %s is not JSON; the run starts over, its files are in %s", folder, RECORD, aside
            )
        require_alone(folder)
        clear_run(folder, keep=remaining)


def is_damaged(folder: Path) -> bool:
    """Whether the record is there, but not JSON."""
    return (folder / RECORD).exists() and record_of(folder) is None


def sweep_settings(raw: Mapping[str, Any]) -> SweepSettings:
    """Validate the section ``sweep``; ConfigError names the dotted key."""
    settings = from_mapping(SweepSettings, raw, "sweep")
    devices = settings.devices
    if devices is not None and (not devices or len(set(map(str, devices))) < len(devices)):
        raise ConfigError(f"sweep.devices: {devices} must list at least one device, and each only once")
    return settings


def device_pool(
    settings: SweepSettings, planned: Collection[Job], environment: Mapping[str, str] = os.environ
) -> list[str] | None:
    """Devices to assign to points, as named in CUDA_VISIBLE_DEVICES; numbers index the devices that are
    already visible. None if no point needs any; ConfigError if one needs more than there are."""
    if settings.devices is None:
        return None
    pool, visible = [str(device) for device in settings.devices], environment.get(VISIBLE)
    known = [name.strip() for name in (visible or "").split(",") if name.strip()]
    for place, device in enumerate(settings.devices if visible is not None else ()):
        if isinstance(device, int):
            if not 0 <= device < len(known):
                raise ConfigError(
                    f"sweep.devices: there is no device {device}; {VISIBLE}={visible} leaves {len(known)},"
                    " counted from 0"
                )
            # As CUDA counts within what is visible, a point must get the name, not the number.
            pool[place] = known[device]
    needs = {job.title: devices_of(job.config, pool) for job in planned}
    for title, needed in needs.items():
        if needed > len(pool):
            raise ConfigError(f"{title}: needs {needed} devices, sweep.devices lists {len(pool)}")
    return pool if any(needs.values()) else None


def devices_of(config: Config, pool: Sequence[str] | None) -> int:
    """How many devices of the pool a point takes."""
    if pool is None or config.trainer.accelerator == "cpu":
        return 0
    return len(pool) if config.trainer.devices == "auto" else config.trainer.devices


@dataclass(frozen=True)
class Launch:
    """A point to start."""

    folder: Path
    command: tuple[str, ...]
    devices: int = 0


@dataclass
class Process:
    """A point as a process group of this machine."""

    folder: Path
    popen: subprocess.Popen[Any]
    devices: list[str]
    before: tuple[int, int] | None
    """The file of the record that an earlier attempt left; no times are compared, for clocks go back."""

    def has_ended(self) -> bool:
        return has_ended(self.popen)

    def settle(self, *, stopped: bool = False) -> None:
        """Kill what is left of the group, and record how the point ended if it did not do so itself."""
        # The whole group: ranks and loader workers outlive a trainer that was killed.
        code = kill_group(self.popen)
        if stopped:
            record_end(self.folder, self.before, "killed", "interrupted")
        elif code < 0:
            hint = " (by the kernel if the machine ran out of memory)" if -code == signal.SIGKILL else ""
            record_end(self.folder, self.before, "killed", f"killed by {signal_name(-code)}{hint}")
        else:
            text = (self.folder / LOG).read_text(encoding="utf-8", errors="replace")
            lines = [line for line in text.splitlines() if line.strip()]
            record_end(self.folder, self.before, "failed", lines[-1] if lines else f"exit code {code}")


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Here:
    """Starts points on this machine, in order as devices become free; they end with this process.

    Single-threaded, because a point ends with the thread that starts it (see ``process.die_with``).
    """

    poll = 0.1
    """Seconds between looks at the running points."""

    def __init__(self, folder: Path, settings: SweepSettings, pool: Sequence[str] | None) -> None:
        self.group = folder.name
        self.jobs = settings.n_jobs or len(pool or [None])
        self.free = None if pool is None else [*pool]

    def start(self, waiting: deque[Launch], running: dict[Launch, Process]) -> list[Launch]:
        """Move as many points as possible from ``waiting`` to ``running``, and return them."""
        started = []
        # Strictly in order: smaller points must not overtake one that needs several devices for ever.
        while waiting and len(running) < self.jobs and waiting[0].devices <= len(self.free or ()):
            started.append(launch := waiting.popleft())
            devices = None if self.free is None else [self.free.pop(0) for _ in range(launch.devices)]
            environment = point_environment(devices=devices, side_by_side=self.jobs, group=self.group)
            before = record_file(launch.folder)
            with (launch.folder / LOG).open("ab") as output:
                popen = start(
                    launch.command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a terminal's interrupt reaches only this process
                )
            running[launch] = Process(launch.folder, popen, devices or [], before)
        return started

    def settle(self, process: Process) -> None:
        """Record the end of a point, and take back its devices."""
        process.settle()
        if self.free is not None:
            self.free += process.devices

    def stop(self, running: Sequence[Process]) -> None:
        """Interrupt the first process of each group, wait up to ``GRACE`` seconds, twice; kill the rest."""
        try:
            for _ in range(2):  # like a user's second Ctrl-C: at the second interrupt a point exits at once
                for process in running:
                    if not process.has_ended():
                        process.popen.send_signal(signal.SIGINT)
                deadline = time.monotonic() + GRACE
                while time.monotonic() < deadline and not all(process.has_ended() for process in running):
                    time.sleep(0.05)
        finally:  # also after a second interrupt
            for process in running:
                process.settle(stopped=True)


def run(launches: Iterable[Launch], place: Here | Cluster) -> Generator[tuple[Launch, bool], None, None]:
    """Run every point, and yield each when it has started (False) and when it has ended (True).

    An interrupt, an error or ``close`` stops those that run.
    """
    waiting, running = deque(launches), dict[Launch, Any]()
    try:
        while waiting or running:
            for launch in place.start(waiting, running):
                yield launch, False
            for launch in [launch for launch, process in running.items() if process.has_ended()]:
                place.settle(running.pop(launch))
                yield launch, True
            time.sleep(place.poll)
    finally:
        place.stop([*running.values()])


def record_end(folder: Path, before: tuple[int, int] | None, status: Status, error: str) -> None:
    """Record how a point ended, unless it did so itself after its record was the file ``before``."""
    try:
        with hold(folder, "run"):
            record = record_of(folder)
            if record is None:
                record = provenance.new_record(asdict(validate(read_yaml(folder / CONFIG))), status="running")
            # A record that was not touched since the start has the error of an earlier attempt.
            elif record.status == "ok" or (record.error and record_file(folder) != before):
                return
            write_end(folder, replace(record, status=status, error=error))
    except QaArchError as problem:  # the other points go on
        log.error("%s: %s (%s)", folder.name, error, problem)


def record_file(folder: Path) -> tuple[int, int] | None:
    """Identity of the file of a record; None if there is none."""
    with suppress(FileNotFoundError):
        file = (folder / RECORD).stat()
        return file.st_ino, file.st_mtime_ns
    return None


def point_environment(
    *,
    devices: Sequence[str] | None,
    side_by_side: int,
    group: str,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Environment of a point. ``devices``: the GPUs it may use; None: all that this process sees.

    The cores are split among ``side_by_side`` points unless OMP_NUM_THREADS is set. ``group`` is the wandb
    group of the sweep's runs.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name not in SCRUBBED and not name.startswith("TORCHELASTIC_")
    }
    variables["WANDB_RUN_GROUP"] = group
    if devices is not None:
        variables[VISIBLE] = ",".join(devices)
    if side_by_side > 1:
        variables.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // side_by_side)))
    return variables


@dataclass(frozen=True)
class Task:
    """What a job runs: one point."""

    launch: Launch
    cwd: str

    def __call__(self) -> None:
        # A queue may start a job twice, and after a pre-emption another may have finished it.
        if state_of(self.launch.folder)[0] not in (*RESULTS, "running"):
            os.chdir(self.cwd)  # where relative paths begin
            for _ in run([self.launch], Here(self.launch.folder.parent, SweepSettings(), None)):
                pass

    def checkpoint(self) -> Any:
        """Job that submitit queues after a timeout or pre-emption, to resume the point."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass
class Submitted:
    """A point as a job."""

    folder: Path
    job: Any
    before: tuple[int, int] | None
    """The file of the record that an earlier attempt left."""

    def has_ended(self) -> bool:
        return bool(self.job.done())

    def settle(self) -> None:
        """Record that the job was lost, or did not start the point."""
        where = f"see {self.folder.parent / JOBS / str(self.job.job_id)}"
        if not self.job.paths.result_pickle.exists():
            error = f"its job {self.job.job_id} was cancelled or lost with its machine; {where}"
            record_end(self.folder, self.before, "killed", error)
        elif failure := self.job.exception():
            error = f"its job did not start it ({one_line(failure, 200)}); {where}"
            record_end(self.folder, self.before, "failed", error)


class Cluster:
    """Submits points and waits for them; an interrupt cancels the jobs.

    SLURM gets all points at once and runs ``n_jobs`` of them (None: as many as it can); this machine runs
    that many at a time. If this process is killed, jobs on a cluster continue and write their results.
    """

    poll = 0.5

    def __init__(
        self,
        kind: str,
        parameters: Mapping[str, Any],
        folder: Path,
        settings: SweepSettings,
        pool: Sequence[str] | None = None,
    ) -> None:
        os.environ[SAFE_PATH] = "1"  # submitit starts its jobs with ``python -m``
        self.kind, self.jobs = kind, settings.n_jobs or 1
        self.executor = _executor(kind, parameters, folder, settings.n_jobs)
        self.queue = Queue()

    def start(self, waiting: deque[Launch], running: dict[Launch, Submitted]) -> list[Launch]:
        room = len(waiting) if self.kind == "slurm" else self.jobs - len(running)
        launches = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if launches:
            before = [record_file(launch.folder) for launch in launches]
            with self.executor.batch():  # one job array on SLURM
                submitted = [self.executor.submit(Task(launch, str(Path.cwd()))) for launch in launches]
            for launch, job, file in zip(launches, submitted, before, strict=True):
                running[launch] = Submitted(launch.folder, job, file)
                if self.kind == "slurm":
                    job.watcher = self.queue
        return launches

    def settle(self, process: Submitted) -> None:
        process.settle()

    def stop(self, running: Sequence[Submitted]) -> None:
        for submitted in running:
            submitted.job.cancel(check=False)  # it may have ended meanwhile


class Queue:
    """The user's pending and running SLURM jobs. Replaces submitit's watcher, whose sacct needs an accounting
    database: without one a cancelled job never ends."""

    def __init__(self) -> None:
        self.listed: set[str] | None = None
        self.next_call = 0.0

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether squeue no longer lists the job; False while squeue fails. Called by submitit's jobs."""
        if time.monotonic() >= self.next_call:
            self.next_call = time.monotonic() + SQUEUE_INTERVAL
            command = ["squeue", "--me", "--array", "--noheader", "--format=%i"]
            result = subprocess.run(command, capture_output=True, text=True)
            self.listed = set(result.stdout.split()) if result.returncode == 0 else None
        return self.listed is not None and job_id not in self.listed


def require_submittable(
    kind: str, parameters: Mapping[str, Any], settings: SweepSettings, *, dry: bool
) -> None:
    """Raise ConfigError for settings that cannot be submitted. A ``dry`` run also works on a machine without
    the cluster."""
    for key in ("nodes", "tasks_per_node"):
        if parameters.get(key, 1) != 1:
            raise ConfigError(
                f"hydra.launcher.{key}: {parameters[key]}, but a point starts its own ranks on one machine:"
                " leave it at 1 and give hydra.launcher.gpus_per_node=N trainer=ddp; docs/clusters.md has one"
                " run on several machines"
            )
    if settings.devices is not None:
        raise ConfigError(
            "sweep.devices: the cluster assigns devices; give hydra.launcher.gpus_per_node=N instead"
        )
    if kind == "slurm" and not dry and shutil.which("srun") is None:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: there is no srun on this machine; run the command on a login node"
            " of the cluster, or test it here with hydra/launcher=submitit_local"
        )


def _executor(kind: str, parameters: Mapping[str, Any], folder: Path, at_a_time: int | None) -> Any:
    """submitit's executor with the parameters of ``hydra.launcher``."""
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

    shared = {field.name for field in fields(BaseQueueConf)}  # all others take the cluster's name as a prefix
    settings = {key: value for key, value in parameters.items() if value is not None}
    if at_a_time and kind == "slurm":
        settings["array_parallelism"] = at_a_time
    timeouts = {f"{kind}_{MAX_TIMEOUTS}": settings.pop(MAX_TIMEOUTS)} if MAX_TIMEOUTS in settings else {}
    try:
        made = submitit.AutoExecutor(folder.absolute() / JOBS / "%j", cluster=kind, **timeouts)
        made.update_parameters(
            **{key if key in shared else f"{kind}_{key}": value for key, value in settings.items()}
        )
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"hydra/launcher=submitit_{kind}: {one_line(error)}") from error
    return made

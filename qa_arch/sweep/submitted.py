"""Points as cluster jobs through submitit; each job runs one point with the local schedule of its machine.

The sweep's folder must be on a shared file system: the sweep's process only sees the files that points write
there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from qa_arch import provenance
from qa_arch.config.schema import SweepSettings
from qa_arch.errors import ConfigError, one_line
from qa_arch.sweep import schedule
from qa_arch.sweep.state import RESULTS, Entry, actual_status
from qa_arch.system import lifeline, lock

Cluster = Literal["local", "slurm"]
SHARED = (
    *("name", "timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes"),
    "stderr_to_stdout",
)
"""Parameters that submitit shares between clusters; all others take the cluster's name as a prefix."""
MAX_TIMEOUTS = "max_num_timeout"
"""Parameter of submitit's constructor, not of ``update_parameters``."""
FOLDER = "submitit"
"""Subfolder of the sweep for submitit's files and logs, one folder per job."""
POLL = 0.5
SQUEUE_INTERVAL = 10.0
"""Seconds between calls of squeue, which queries the controller of the whole cluster."""


@dataclass(frozen=True)
class Job:
    """One point as a job on another machine."""

    entry: Entry
    plan: schedule.Plan

    def __call__(self) -> None:
        folder = self.plan.folder / self.entry.name
        if actual_status(folder, parent=False).status not in RESULTS and not lock.holder(folder):
            schedule.run([self.entry], self.plan, lambda _: None)

    def checkpoint(self) -> Any:
        """Job that submitit queues after a timeout or pre-emption, to resume the point."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


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


def engine(
    cluster: Cluster, parameters: Mapping[str, Any], settings: SweepSettings, *, dry: bool
) -> schedule.Engine:
    """Engine that runs points through submitit. ``parameters``: the section ``hydra.launcher``.

    Raises ConfigError, before any file is written, for settings that cannot be submitted. A ``dry`` run also
    works on a machine without the cluster.
    """
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
    if cluster == "slurm" and not dry and shutil.which("srun") is None:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: there is no srun on this machine; run the command on a login node"
            " of the cluster, or test it here with hydra/launcher=submitit_local"
        )
    return partial(run, cluster=cluster, parameters=dict(parameters), at_a_time=settings.n_jobs)


def run(
    entries: Sequence[Entry],
    plan: schedule.Plan,
    watch: Callable[[Entry | None], Any],
    *,
    cluster: Cluster,
    parameters: Mapping[str, Any],
    at_a_time: int | None = None,
) -> None:
    """Submit every point and wait for all; an interrupt or an error cancels the jobs.

    SLURM gets all points at once and runs ``at_a_time`` of them (None: as many as it can); this machine runs
    ``plan.jobs`` at a time. If this process is killed, jobs on a cluster continue and write their results.
    """
    os.environ[lifeline.SAFE_PATH] = "1"  # submitit starts its jobs with ``python -m``
    executor = _executor(plan, cluster, parameters, at_a_time)
    job_plan = replace(plan, jobs=1, pool=None)  # each job runs a single point
    waiting, running = list(entries), dict[str, tuple[Entry, Any]]()
    free = plan.jobs if cluster == "local" else len(waiting)
    queue = Queue()
    try:
        while waiting or running:
            batch, waiting = waiting[: free - len(running)], waiting[free - len(running) :]
            if batch:
                with executor.batch():  # one job array on SLURM
                    jobs = [executor.submit(Job(entry, job_plan)) for entry in batch]
                for job in jobs if cluster == "slurm" else ():
                    job.watcher = queue
                pairs = zip(batch, jobs, strict=True)
                running |= {entry.key: (entry, job) for entry, job in pairs}
            for entry, job in [pair for pair in running.values() if pair[1].done()]:
                del running[entry.key]
                status = _settle(entry, job, plan)
                watch(entry)
                if plan.fail_fast and status == "failed":
                    return
            watch(None)
            time.sleep(POLL)
    finally:
        for _, job in running.values():
            job.cancel(check=False)


def _executor(
    plan: schedule.Plan, cluster: Cluster, parameters: Mapping[str, Any], at_a_time: int | None
) -> Any:
    import submitit

    settings = {key: value for key, value in parameters.items() if value is not None}
    if at_a_time and cluster == "slurm":
        settings["array_parallelism"] = at_a_time
    timeouts = {f"{cluster}_{MAX_TIMEOUTS}": settings.pop(MAX_TIMEOUTS)} if MAX_TIMEOUTS in settings else {}
    try:
        executor = submitit.AutoExecutor(plan.folder / FOLDER / "%j", cluster=cluster, **timeouts)
        executor.update_parameters(
            **{key if key in SHARED else f"{cluster}_{key}": value for key, value in settings.items()}
        )
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"hydra/launcher=submitit_{cluster}: {one_line(error)}") from error
    return executor


def _settle(entry: Entry, job: Any, plan: schedule.Plan) -> str:
    """State of a point whose job ended: ``killed`` if the job was lost, ``failed`` if it did not start."""
    folder = plan.folder / entry.name
    status = actual_status(folder, parent=False)
    where = f"see {plan.folder / FOLDER / str(job.job_id)}"
    if status.status in ("queued", "killed") and not job.paths.result_pickle.exists():
        error = f"its job {job.job_id} was cancelled or lost with its machine; {where}"
        status = replace(status, status="killed", ended=provenance.now(), error=error)
        status.write(folder)
    elif status.status == "queued" and (failure := job.exception()):
        error = f"its job did not start it ({' '.join(str(failure).split())[:200]}); {where}"
        status = replace(status, status="failed", ended=provenance.now(), error=error)
        status.write(folder)
    return status.status

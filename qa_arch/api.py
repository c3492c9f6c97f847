"""Training from Python: ``qa_arch.train``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from os import PathLike
from threading import RLock
from typing import Any, get_args

from qa_arch.config.check import refuse_repeated
from qa_arch.config.schema import refuse_without_effect
from qa_arch.data.files import as_list
from qa_arch.data.memory import given
from qa_arch.errors import ConfigError
from qa_arch.process import launched
from qa_arch.results.notebooks import Run
from qa_arch.training import jobs
from qa_arch.training.jobs import IfExists

_turn = RLock()
"""Composing and rows in memory change the state of the process."""


def train(
    overrides: Sequence[str] = (),
    *,
    data: Any = None,
    folder: str | PathLike[str] | None = None,
    if_exists: IfExists = "fail",
    config_dir: str | PathLike[str] | None = None,
    trust: Sequence[str] | None = None,
) -> Run:
    """Train a model in this process, as ``qa-arch train`` does with the same settings, and return its run.

    ``overrides`` are settings in Hydra's syntax: ``["model=bert", "experiment=demo", "seed=14"]``.
    ``data`` are the rows to train on, or split (train, calibration, dev) -> rows: a list of records, as in a
    file of JSON, or a ``datasets.Dataset``. Without ``data=CHOICE`` in ``overrides`` they are all the data.
    The record has their hash; to resume the run, give them again.
    ``folder`` is the run folder (default: ``RUNS_DIR/NAME/MODEL-sSEED-HASH``). If it exists, ``if_exists``
    fails, replaces it, once what the new run needs has been read, or resumes the run: an unfinished run
    continues and a finished one is returned.
    ``config_dir`` contains your own choices for the config groups, and ``trust`` names packages whose classes
    a config may name. Calls from several threads take turns.

    Everything that needs no weights is checked first. Raises ConfigError for settings, DataError for data and
    RunError for a folder that cannot be used; if training fails, the run is recorded as failed and the error
    raised. A run that exceeds memory is returned with status ``oom``.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides: must be a list of settings, such as {overrides.split()}")
    overrides, packages = as_list(overrides, "overrides"), as_list(trust or (), "trust")
    for name, path in (("folder", folder), ("config_dir", config_dir)):
        as_list([] if path is None else [path], name)
    if if_exists not in get_args(IfExists):
        raise ConfigError(f"if_exists: '{if_exists}' is not one of {', '.join(get_args(IfExists))}")
    if launched() is not None:
        raise ConfigError("under torchrun or srun, start the command qa-arch train, not qa_arch.train")
    own_conf = None if config_dir is None else str(config_dir)
    rows: Any = nullcontext([]) if data is None else given(data)
    with _turn, rows as sources:
        chosen = not sources or any(word.startswith("data=") for word in overrides)
        settings = [*(() if chosen else ("data=files",)), *overrides, *sources]
        refuse_repeated(settings)
        job = jobs.plan(settings, folder=folder, if_exists=if_exists, config_dir=own_conf, trust=packages)
        refuse_without_effect(overrides, [job.config])
        jobs.check([job])
        jobs.train(job)
    return Run(job.folder)

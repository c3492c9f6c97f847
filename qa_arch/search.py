"""Hyper-parameter search with Optuna, which chooses the next points of a sweep from calibration scores.

The study is a journal file in the sweep's folder. An interrupted search continues with its unfinished
points; a larger ``n_trials`` extends it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from qa_arch.config.compose import IntervalSweep, Override, RangeSweep
from qa_arch.errors import BRIEF, ConfigError, RunError, one_line
from qa_arch.launchers import MANIFEST, PENDING, STUDY, Value

log = logging.getLogger(__name__)
NAME, SEEDS = "calibration", "seeds"
Launch = Callable[[list[list[str]]], Sequence[Value]]
"""Runs points, given as overrides; returns the value of each, NaN if nothing scores it."""
Space = Mapping[str, BaseDistribution]


def space_of(swept: Sequence[Override]) -> dict[str, BaseDistribution]:
    """Search space of a Hydra sweep; ConfigError names the first override that is none."""
    space = {}
    for override in swept:
        try:
            space[override.get_key_element()] = _dimension(override)
        except ValueError as error:
            raise ConfigError(f"{override.input_line}: {error}") from error
    return space


def _dimension(override: Override) -> BaseDistribution:
    """A number for ``interval`` and ``range``, else a categorical choice."""
    swept = override.value()
    words = list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    if isinstance(swept, IntervalSweep):
        is_whole = isinstance(swept.start, int) and isinstance(swept.end, int)
        kind = IntDistribution if is_whole else FloatDistribution
        return kind(swept.start, swept.end, log="log" in swept.tags)
    if isinstance(swept, RangeSweep) and words and all(isinstance(n, int) for n in (swept.start, swept.step)):
        numbers, step = [int(word) for word in words], abs(int(swept.step))  # shuffled or descending, too
        return IntDistribution(min(numbers), max(numbers), step=step, log="log" in swept.tags)
    return CategoricalDistribution(words)


def search(
    folder: Path,
    space: Space,
    launch: Launch,
    *,
    n_trials: int,
    n_jobs: int,
    seed: int,
    seeds: int = 1,
    fail_fast: bool = False,
    dry: bool,
) -> None:
    """Run points, ``n_jobs`` at a time, until ``n_trials`` have ended, in this and earlier calls, and log the
    settings of the best.

    Maximises calibration F1; dev is not used. A point without a value (failed, out of memory) counts as a
    trial, and with ``fail_fast`` is the last; one that has not ended comes first in the next call. ``seeds``:
    runs whose mean is the value of a point. ``dry``: points are sampled, but nothing is written.
    """
    if not space:
        raise ConfigError(
            "hydra/sweeper=qa_optuna: nothing to search; give settings such as optim.lr=interval(a,b)"
        )
    if n_trials < 1 or n_jobs < 1:
        raise ConfigError("hydra.sweeper.n_trials and hydra.sweeper.n_jobs must be at least 1")
    existed = (folder / STUDY).is_file()
    study = _study(folder, seed, seeds, dry=dry)
    _require_same_space(folder, study, space)
    try:
        pending: set[int] = set()
        while batch := _next_trials(study, space, n_trials, n_jobs, pending):
            points = [[f"{name}={value}" for name, value in trial.params.items()] for trial in batch]
            # The sampler may draw a point twice.
            distinct = [point for n, point in enumerate(points) if point not in points[:n]]
            try:
                results = launch(distinct)
            except ConfigError:  # an invalid point: it would otherwise run first for ever
                for trial in batch:
                    study.tell(trial.number, state=TrialState.FAIL)
                raise
            if any(isinstance(value, float) and math.isnan(value) for value in results):
                raise ConfigError(
                    "hydra/sweeper=qa_optuna: maximises the calibration score, but there is no calibration"
                    " split; set data.calibration, data.hold_out_articles or data.hold_out_share"
                )
            values = dict(zip(map(tuple, distinct), results, strict=True))
            for trial, point in zip(batch, points, strict=True):
                value = values[tuple(point)]
                if value == PENDING:  # stays a running trial of the study
                    pending.add(trial.number)
                    continue
                study.tell(
                    trial.number, value, state=TrialState.FAIL if value is None else TrialState.COMPLETE
                )
            if fail_fast and None in results:
                break
    except BaseException:
        if not existed and not dry and not (folder / MANIFEST).is_file():  # no point was accepted
            (folder / STUDY).unlink(missing_ok=True)
        raise
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if complete and not dry:
        best = max(complete, key=lambda trial: trial.value)
        settings = " ".join(f"{name}={value}" for name, value in best.params.items())
        log.info("best of %d points: %.2f on calibration with %s", len(complete), best.value, settings)


def _study(folder: Path, seed: int, seeds: int, *, dry: bool) -> optuna.Study:
    """The study in ``folder``, or for a ``dry`` run a copy of it in memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage: Any = optuna.storages.InMemoryStorage()
    existed = (folder / STUDY).is_file()
    try:
        if not dry or existed:
            folder.mkdir(parents=True, exist_ok=True)
            journal = JournalStorage(JournalFileBackend(str(folder / STUDY)))
            if not dry:
                storage = journal
            elif NAME in optuna.get_all_study_names(journal):
                optuna.copy_study(from_study_name=NAME, from_storage=journal, to_storage=storage)
        study = optuna.create_study(
            storage=storage, study_name=NAME, direction="maximize", load_if_exists=True
        )
    except Exception as error:  # a damaged line raises errors of many classes
        if not existed:
            raise
        raise RunError(
            f"{folder / STUDY}: cannot be read ({one_line(error, BRIEF)}); restore it, or give this search"
            " its own sweep.folder=DIR"
        ) from error
    recorded = study.user_attrs.get(SEEDS, 1 if study.trials else seeds)
    if recorded != seeds:
        raise ConfigError(
            f"{folder}: its values are means over sweep.seeds={recorded}, not {seeds}; give this search its"
            " own sweep.folder=DIR"
        )
    study.set_user_attr(SEEDS, seeds)
    # The number of trials is part of the seed, so that a resumed search does not repeat its first points.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    return study


def _require_same_space(folder: Path, study: optuna.Study, space: Space) -> None:
    """Raise ConfigError if the study searches another space, before a trial of this one is in its journal."""
    for trial in study.trials:
        # A killed process leaves a trial with some of its settings, which _next_trials leaves out.
        fewer = trial.state == TrialState.RUNNING and trial.params.keys() < space.keys()
        if trial.params.keys() != space.keys() and not fewer:
            raise ConfigError(
                f"{folder}: searches {', '.join(trial.params)}; give this search its own sweep.folder=DIR"
            )
        try:
            for name, distribution in trial.distributions.items():
                check_distribution_compatibility(distribution, space[name])
        except ValueError as error:
            raise ConfigError(
                f"the choices of a search are fixed once it has started ({error}); give this one its own"
                " sweep.folder=DIR"
            ) from error


def _next_trials(
    study: optuna.Study, space: Space, trials: int, at_a_time: int, pending: Collection[int]
) -> list[Any]:
    """Trials to run next, interrupted ones first, without those that this call has tried (``pending``)."""
    ended = len(pending) + sum(trial.state.is_finished() for trial in study.trials)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    waiting = [trial for trial in running if trial.number not in pending]
    interrupted = [trial for trial in waiting if trial.params.keys() == space.keys()]
    count = max(0, min(at_a_time, trials - ended))
    return interrupted[:count] or [study.ask(dict(space)) for _ in range(count)]

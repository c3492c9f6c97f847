"""Hydra's default sweeper and launcher of ``train -m``: each point runs in its own processes."""

# Without postponed annotations: Hydra executes a plugin before it is in sys.modules, where dataclasses would
# look for the names in them.

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from qa_arch.errors import ConfigError


class GridSweeper(BasicSweeper):
    """Hydra's sweeper without its check that points compose: our launchers compose all before one starts."""

    def __init__(self, params: dict[str, str] | None) -> None:
        super().__init__(max_batch_size=None, params=params)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None: ...


class IsolatedLauncher(Launcher):
    """Composes the points and passes them to the task, a ``qa_arch.sweep.runner.Sweep``."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        from qa_arch.sweep.schedule import read_settings

        self.loader, self.sweep, self.config = hydra_context.config_loader, task_function, config
        self.sweep.settings = read_settings(OmegaConf.to_container(config.sweep, resolve=True))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        seeds = self.sweep.settings.seeds
        if seeds > 1 and "seed" in self.sweep.grid.swept:
            raise ConfigError("sweep.seeds: seed is swept as well; leave out one of the two")
        values = self.sweep.launch(
            [run for overrides in job_overrides for run in self._runs(overrides, seeds)]
        )
        return [
            PointResult(overrides, _mean(values[n * seeds : (n + 1) * seeds]))
            for n, overrides in enumerate(job_overrides)
        ]

    def _runs(self, overrides: Sequence[str], seeds: int) -> list[tuple[Sequence[str], Any]]:
        """Overrides and config of a point, or with several seeds of each of its runs."""
        config = self._compose(overrides)
        if seeds == 1:
            return [(overrides, config)]
        seeded = [[*overrides, f"seed={config['seed'] + n}"] for n in range(seeds)]
        return [(run, self._compose(run)) for run in seeded]

    def _compose(self, overrides: Sequence[str]) -> Any:
        from qa_arch.config.compose import changed

        config = self.loader.load_sweep_config(self.config, list(overrides))
        for change in changed(config.hydra, self.config.hydra):
            raise ConfigError(f"{change}: is set by a YAML file of some points; it holds for a whole sweep")
        settings = OmegaConf.masked_copy(config, [key for key in config if key not in ("hydra", "sweep")])
        return OmegaConf.to_container(settings, resolve=True, throw_on_missing=True)


class _JobsLauncher(IsolatedLauncher):
    """Runs each point as a cluster job; takes the ``parameters`` of Hydra's submitit plugin."""

    cluster: Any

    def __init__(self, **parameters: Any) -> None:
        settings = OmegaConf.create(parameters)
        settings.pop("submitit_folder", None)  # by default a temporary folder, deleted before the jobs run
        self.parameters = OmegaConf.to_container(settings, resolve=True)

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        from qa_arch.sweep.submitted import engine

        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        settings = self.sweep.settings
        self.sweep.engine = engine(self.cluster, self.parameters, settings, dry=self.sweep.dry)
        self.sweep.local = self.cluster == "local"


class LocalJobsLauncher(_JobsLauncher):
    cluster = "local"


class SlurmJobsLauncher(_JobsLauncher):
    cluster = "slurm"


class PointResult(JobReturn):
    """A value, or an exception that the sweeper raises without Hydra's extra line of output."""

    def __init__(self, overrides: Sequence[str], value: float | Exception) -> None:
        status = JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED
        super().__init__(overrides=list(overrides), status=status, _return_value=value)

    @property
    def return_value(self) -> Any:
        if isinstance(self._return_value, Exception):
            raise self._return_value
        return self._return_value


def _mean(values: Sequence[float | Exception]) -> float | Exception:
    """Mean of a point's runs, or the error of the first run without a value."""
    errors = [value for value in values if isinstance(value, Exception)]
    return errors[0] if errors else fmean(values)


@dataclass
class IsolatedSettings:
    _target_: str = f"{IsolatedLauncher.__module__}.{IsolatedLauncher.__name__}"


@dataclass
class GridSettings:
    _target_: str = f"{GridSweeper.__module__}.{GridSweeper.__name__}"
    params: dict[str, str] | None = None


for group, name, settings in (("launcher", "isolated", IsolatedSettings), ("sweeper", "grid", GridSettings)):
    ConfigStore.instance().store(group=f"hydra/{group}", name=name, node=settings, provider="qa_arch")

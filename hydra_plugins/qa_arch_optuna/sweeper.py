"""``hydra/sweeper=qa_optuna``: Optuna searches the space of the swept settings for the best point."""

# Without postponed annotations: Hydra executes a plugin before it is in sys.modules, where dataclasses would
# look for the names in them.

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from qa_arch.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class OptunaSweeper(Sweeper):
    """Translates a Hydra sweep into a search space of ``qa_arch.sweep.search``, and its points into jobs."""

    def __init__(self, n_trials: int, n_jobs: int, seed: int, params: object) -> None:
        """``params`` are among the arguments of ``sweep``."""
        self.trials, self.at_a_time, self.seed = n_trials, n_jobs, seed

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.task, self.config = task_function, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        try:
            from qa_arch.sweep.search import search
        except ImportError as error:
            raise UnavailableError(
                f"hydra/sweeper=qa_optuna: {error}; pip install 'qa-arch[optuna]'"
            ) from error

        parsed = OverridesParser.create().parse_overrides(arguments)
        fixed = [str(override.input_line) for override in parsed if not override.is_sweep_override()]
        space = {}
        for override in filter(Override.is_sweep_override, parsed):
            try:
                space[override.get_key_element()] = _dimension(override)
            except ValueError as error:
                raise ConfigError(f"{override.input_line}: {error}") from error
        self.launched = 0

        def launch(points: list[list[str]]) -> list[Any]:
            results = self.launcher.launch([[*fixed, *point] for point in points], self.launched)
            self.launched += len(points)
            return results  # type: ignore[no-any-return]

        return search(
            self.task.set_folder(self.config.runs_dir, self.config.name),
            space,
            launch,
            trials=self.trials,
            at_a_time=self.at_a_time,
            seed=self.seed,
            seeds=self.config.sweep.seeds,
            dry=self.task.dry,
        )


def _dimension(override: Override) -> "BaseDistribution":
    """Search dimension of an override: a number for ``interval`` and ``range``, else a categorical choice."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    swept = override.value()
    words = list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    if isinstance(swept, IntervalSweep):
        is_whole = isinstance(swept.start, int) and isinstance(swept.end, int)
        kind = IntDistribution if is_whole else FloatDistribution
        return kind(swept.start, swept.end, log="log" in swept.tags)
    if isinstance(swept, RangeSweep) and words and all(isinstance(n, int) for n in (swept.start, swept.step)):
        return IntDistribution(int(words[0]), int(words[-1]), step=int(swept.step), log="log" in swept.tags)
    return CategoricalDistribution(words)


@dataclass
class OptunaSettings:
    _target_: str = f"{OptunaSweeper.__module__}.{OptunaSweeper.__name__}"
    n_trials: int = 20
    n_jobs: int = 1
    seed: int = 13
    params: dict[str, str] | None = None


ConfigStore.instance().store(group="hydra/sweeper", name="qa_optuna", node=OptunaSettings, provider="qa_arch")

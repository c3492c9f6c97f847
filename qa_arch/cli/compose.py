"""Config composition with Hydra; the only module that imports it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from qa_arch.config import extras
from qa_arch.config.check import short, suggest, suggest_setting
from qa_arch.config.files import read_yaml
from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import refuse_ignored_encoder
from qa_arch.errors import ConfigError, UnavailableError, one_line
from qa_arch.records import RECORD, read_trained

LAUNCHER = "hydra/launcher=isolated"
"""Our launcher in ``hydra_plugins``, which runs each point in its own processes."""
SWEEPER = "hydra.sweeper._target_=hydra_plugins.qa_arch_isolated.launcher.GridSweeper"
SUBMITTED = {
    "hydra/launcher=submitit_local": "hydra_plugins.qa_arch_isolated.launcher.LocalJobsLauncher",
    "hydra/launcher=submitit_slurm": "hydra_plugins.qa_arch_isolated.launcher.SlurmJobsLauncher",
}
"""Launchers of Hydra's submitit plugin -> our replacements with the same settings: the plugin would run a
point inside the job's own process."""
SEARCHPATH = (r"\+*hydra\.searchpath", "name the folder of your own configs with --config-dir DIR")
ONE_LOGGER = (r"logger=(\[|.*,)", "a run has one logger; name one, such as logger=csv")
NO_EFFECT = "has no effect; a sweep (train -m) takes hydra/launcher and hydra/sweeper"
NOT_FOR_RUNS = (
    (r"\+*sweep\.", "is a setting of sweeps; use it with train -m"),
    (r"hydra\.(run|sweep)\.", "name the run folder with --folder DIR, or its parent with runs_dir=DIR"),
    SEARCHPATH,
    ONE_LOGGER,
    (r"\+*hydra[./]", NO_EFFECT),
)
"""(pattern, remedy) of overrides that a run rejects, even if Hydra would accept them."""
NOT_FOR_SWEEPS = (
    (r"hydra\.(run|sweep)\.", "name the sweep's folder with sweep.folder=DIR"),
    (r"hydra/launcher=basic$", f"would train every point in this process; {LAUNCHER} does not"),
    (r"hydra/sweeper=optuna$", "the search of qa-arch is hydra/sweeper=qa_optuna"),
    (r"\+*hydra\.sweeper\.max_batch_size=", "all points are checked first; sweep.n_jobs=N runs N at a time"),
    (r"\+*hydra\.sweeper\.params\b", "name each swept setting as an argument, such as seed=1,2"),
    SEARCHPATH,
    ONE_LOGGER,
    (r"\+*hydra[./](?!launcher|sweeper)", NO_EFFECT),
)
"""(pattern, remedy) of overrides that a sweep rejects."""
QUOTES = (
    "a value that contains = , spaces or letters outside ASCII needs quotes: \"KEY='a=b'\"; write $HOME for ~"
)


def compose(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose ``conf/train.yaml`` with ``overrides`` into a plain, resolved dictionary: the config of a run.

    ``config_dir`` is a folder with additional choices for the config groups.
    """
    refuse(overrides, NOT_FOR_RUNS)
    with _hydra(overrides, config_dir) as search:
        composed = hydra_compose("train", overrides=[*search, *overrides])
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    if "head" in plain:
        raise ConfigError("head: its YAML must begin with the line '# @package model.head'")
    refuse_ignored_encoder(overrides, plain["encoder"])
    return {str(key): value for key, value in plain.items() if key != "sweep"}


def refuse(overrides: Sequence[str], refused: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError for the first override that matches one of the (pattern, remedy) in ``refused``."""
    for override in overrides:
        for pattern, remedy in refused:
            if re.match(pattern, override):
                raise ConfigError(f"{override}: {remedy}")


@contextmanager
def _hydra(overrides: Sequence[str], config_dir: str | None) -> Iterator[list[str]]:
    """Initialise Hydra and yield overrides to put first; its errors become one-line ConfigErrors."""
    folders = config_folders(config_dir)
    known = groups(folders)
    for override in overrides:
        group, equals, choice = override.partition("=")
        # Hydra 1.3 raises ValueError or TypeError for GROUP=null, GROUP=a,null, GROUP=true and GROUP=0.
        words = {"null", "true", "false"}.intersection(re.split(r"[\s,()]+", choice.lower()))
        unnamed = bool(words) or not any(map(str.isalpha, choice))
        if override == "~experiment" or (equals and group in known and unnamed):
            word = f"{min(words)} " if words and "," in choice else ""
            raise ConfigError(
                f"{override}: {word}names no choice; leave it out (no experiment is the default)"
            )
    try:
        Plugins.instance()  # a broken plugin, used or not, stops every Hydra program
    except Exception as error:
        message = one_line(error, 200)
        raise UnavailableError(
            f"an installed Hydra plugin cannot be imported ({type(error).__name__}: {message});"
            " qa-arch doctor names it; uninstall it"
        ) from error
    try:
        with initialize_config_dir(str(folders[0]), version_base="1.3", job_name="qa_arch"):
            yield _search_path(folders)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(_explain(error, overrides, folders)) from None


def _search_path(folders: Sequence[Path]) -> list[str]:
    """Override that adds all folders after the first to Hydra's search path."""
    paths = ", ".join(f'"file://{folder}"' for folder in folders[1:])
    return [f"hydra.searchpath=[{paths}]"]


def split_grid(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that all points of a grid share, and the names of the swept settings."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(_explain(error, overrides, config_folders())) from error
    settings = [override for override in parsed if not override.is_hydra_override()]
    fixed = [
        f"{override.get_key_element()}={override.get_value_element_as_str()}"
        for override in settings
        if not override.is_sweep_override()
    ]
    return fixed, [override.get_key_element() for override in settings if override.is_sweep_override()]


def multirun(overrides: Sequence[str], task: Any, output: Path, config_dir: str | None) -> None:
    """Run Hydra's sweeper over the points of ``overrides``, with its own files in ``output``.

    The default launcher is ``isolated``. Errors of points propagate.
    """
    with _hydra(overrides, config_dir) as search:
        arguments = [*_default_plugins(overrides), *search, *overrides, f"hydra.sweep.dir={output}"]
        GlobalHydra.instance().hydra.multirun("train", task, arguments, with_log_configuration=False)


def _default_plugins(overrides: Sequence[str]) -> Iterator[str]:
    """Overrides that select our sweeper and launcher, unless ``overrides`` select others."""
    if not any(override.startswith("hydra/sweeper=") for override in overrides):
        for override in overrides:
            if "interval(" in override.partition("=")[2]:
                raise ConfigError(f"{override}: intervals are for a search; add hydra/sweeper=qa_optuna")
        yield SWEEPER
    for chosen, target in SUBMITTED.items():
        if chosen in overrides:
            extras.require("slurm", chosen)
            yield f"hydra.launcher._target_={target}"
    if not any(override.startswith("hydra/launcher=") for override in overrides):
        yield LAUNCHER


def merge(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Apply ``overrides`` of single settings to the config in ``path``; ``validate`` reports unknown keys.

    ``path`` is a config, or a record that contains one.
    """
    from qa_arch.results.publish import local, map_texts

    try:
        recorded = path.name == RECORD
        if not recorded:
            read_yaml(path)  # has limits
        base = OmegaConf.create(local(read_trained(path).config)) if recorded else OmegaConf.load(path)
        if not isinstance(base, DictConfig):
            raise ConfigError(f"{path}: contains no settings")
        map_texts(OmegaConf.to_container(base), _require_plain, f"{path}: config")
        changes = OmegaConf.from_dotlist(list(overrides))
        for key in map(str, changes):
            if isinstance(base.get(key), DictConfig) and not isinstance(changes[key], DictConfig):
                raise ConfigError(
                    f"{key}={changes[key]}: --config-from takes single settings ({key}.KEY=VALUE)"
                )
        plain = OmegaConf.to_container(OmegaConf.merge(base, changes), resolve=True)
    except (OSError, UnicodeDecodeError, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{path}: {one_line(error)}") from error
    assert isinstance(plain, dict)
    refuse_ignored_encoder(overrides, plain.get("encoder"))
    return {str(key): value for key, value in plain.items()}


def _require_plain(text: str, where: str) -> str:
    """Raise ConfigError for an interpolation, which could read the environment for a downloaded config."""
    if "${" in text:
        raise ConfigError(f"{where}: {short(text)} contains ${{, which is not resolved here; write the value")
    return text


def parse_sections(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``SECTION.KEY=VALUE`` words into sections of settings, with values read as YAML."""
    for override in overrides:
        if not re.match(r"\w+\.\w+=.", override):
            raise ConfigError(f"'{override}' is not SECTION.KEY=VALUE, such as features.max_length=512")
    try:
        plain = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)), resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(one_line(error)) from error
    assert isinstance(plain, dict)
    return {str(section): values for section, values in plain.items()}


def to_yaml(plain: dict[str, Any]) -> str:
    """Format a config as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(plain))


def _explain(error: Exception, overrides: Sequence[str], folders: Sequence[Path]) -> str:
    """Hydra's message on one line, with the most similar known name."""
    text = str(error)
    if match := re.search(r"Could not find '([^']+)'", text):
        split = match[1].rpartition if match[1].startswith("hydra/") else match[1].partition
        group, _, choice = split("/")
        return f"{group}={choice} does not exist{suggest(choice, groups(folders).get(group, ()))}"
    if match := re.search(r"Could not override '([^']+)'", text):
        chosen = [word for word in overrides if word.partition("=")[0] in groups(folders)]
        return f"unknown setting '{match[1]}'{suggest_setting(match[1], _setting_names(chosen, folders))}"
    if match := re.search(r"full_key: (\S+)", text) if "Missing mandatory value" in text else None:
        return f"setting '{match[1]}' has no value; give {match[1]}=..."
    if match := re.search(r"Error parsing override '([^']*)'", text):
        return f"'{match[1]}' is not KEY=VALUE; {QUOTES}"
    if "override_grammar" in text:
        problem = text.splitlines()[0].removeprefix("LexerNoViableAltException: ")
        return f"{problem}; {QUOTES}"
    return " ".join(text.split())


def _setting_names(chosen: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Dotted names of all settings with the choices ``chosen``, or by default if these do not compose."""
    with initialize_config_dir(str(folders[0]), version_base="1.3", job_name="qa_arch"):
        try:
            composed = hydra_compose("train", overrides=[*_search_path(folders), *chosen])
        except (HydraException, OmegaConfBaseException):
            composed = hydra_compose("train")
    return [*_dotted_keys(OmegaConf.to_container(composed))]


def _dotted_keys(value: Any, prefix: str = "") -> Iterator[str]:
    """Keys of nested mappings joined by dots: sections as well as their settings."""
    for key, item in value.items():
        yield f"{prefix}{key}"
        if isinstance(item, dict):
            yield from _dotted_keys(item, f"{prefix}{key}.")

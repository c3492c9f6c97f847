"""Config composition with Hydra; the only module that imports it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from qa_arch.config import extras
from qa_arch.config.check import refuse_repeated, short, suggest, suggest_setting
from qa_arch.config.files import read_yaml
from qa_arch.config.find import config_folders, groups
from qa_arch.config.machine import MACHINE, lost_logger, machine_overrides, with_machine
from qa_arch.config.schema import refuse_ignored_encoder, refuse_mixed_sources
from qa_arch.errors import ConfigError, UnavailableError, one_line

log = logging.getLogger(__name__)
OURS, SUBMITIT = "hydra_plugins.qa_arch_isolated.launcher", "hydra_plugins.hydra_submitit_launcher"
PLUGINS: dict[str, dict[str, str | None]] = {
    "launcher": {
        f"{OURS}.IsolatedLauncher": None,
        f"{SUBMITIT}.submitit_launcher.LocalLauncher": f"{OURS}.LocalJobsLauncher",
        f"{SUBMITIT}.submitit_launcher.SlurmLauncher": f"{OURS}.SlurmJobsLauncher",
    },
    "sweeper": {f"{OURS}.GridSweeper": None, "hydra_plugins.qa_arch_optuna.sweeper.OptunaSweeper": None},
}
"""What may launch and choose the points of a sweep -> our replacement with the same settings: the submitit
plugin would run a point inside the job's own process."""
AT_HAND = {
    "launcher": "each point runs in its own processes, with hydra/launcher=isolated (the default),"
    " submitit_local or submitit_slurm",
    "sweeper": "the sweepers are hydra/sweeper=grid (the default) and hydra/sweeper=qa_optuna",
}
SEARCHPATH = (r"\+*hydra\.searchpath", "name the folder of your own configs with --config-dir DIR")
SOURCES = (r"\+*data=\{", "write data=files data.train=FILE data.dev=FILE, each setting by itself")
ONE_LOGGER = (r"logger=(\[|.*,)", "a run has one logger; name one, such as logger=csv")
NO_EFFECT = "has no effect; a sweep (train -m) takes hydra/launcher and hydra/sweeper"
MULTIRUN = (r"\+*hydra\.mode=MULTIRUN", "add -m, which trains every point of a grid")
NOT_FOR_RUNS = (
    (r"\+*sweep\.", "is a setting of sweeps; use it with train -m"),
    (r"\+*hydra\.(run|sweep)\.", "name the run folder with --folder DIR, or its parent with runs_dir=DIR"),
    SEARCHPATH,
    SOURCES,
    ONE_LOGGER,
    MULTIRUN,
    (r"\+*hydra[./](?!mode)", NO_EFFECT),
)
"""(pattern, remedy) of overrides, and of what YAML files set, that a run rejects."""
NOT_FOR_SWEEPS = (
    (r"\+*hydra\.(run|sweep)\.", "name the sweep's folder with sweep.folder=DIR"),
    (r"\+*hydra\.sweeper\.max_batch_size=", "all points are checked first; sweep.n_jobs=N runs N at a time"),
    SEARCHPATH,
    SOURCES,
    ONE_LOGGER,
    (r"\+*hydra\.mode=(?!MULTIRUN)", "leave out -m"),
    (r"\+*hydra[./](?!launcher|sweeper|mode)", NO_EFFECT),
)
"""The same for sweeps."""
NOT_CHOSEN = re.compile(r"hydra\.(overrides|runtime|searchpath|job\.(config_name|override_dirname))\b")
"""What Hydra itself sets for each composition."""
QUOTES = (
    "a value that contains = , [ { spaces or letters outside ASCII needs quotes: \"KEY='a=b'\";"
    " write $HOME for ~"
)


def compose(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose ``conf/train.yaml`` with ``overrides`` into a plain, resolved dictionary: the config of a run.

    ``config_dir`` is a folder with additional choices for the config groups.
    """
    refuse(overrides, NOT_FOR_RUNS)
    with _hydra(overrides, config_dir) as search:
        composed = hydra_compose("train", overrides=[*search, *overrides], return_hydra_config=True)
        _refuse_chosen(composed.hydra, NOT_FOR_RUNS, config_folders(config_dir))
        own = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
        plain = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    if "head" in plain:
        raise ConfigError("head: its YAML must begin with the line '# @package model.head'")
    refuse_ignored_encoder(overrides, plain["encoder"])
    refuse_mixed_sources(overrides, plain["data"])
    return {str(key): value for key, value in plain.items() if key != "sweep"}


def refuse(overrides: Sequence[str], refused: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError for the first override that matches one of the (pattern, remedy) in ``refused``."""
    for override in overrides:
        for pattern, remedy in refused:
            if re.match(pattern, override):
                raise ConfigError(f"{override}: {remedy}")


def _refuse_chosen(hydra: Any, refused: Sequence[tuple[str, str]], folders: Sequence[Path]) -> None:
    """``refuse`` what YAML files set of Hydra's own settings, naming the file."""
    for change in changed(hydra, _hydra_defaults().hydra):
        try:
            refuse([change], refused)
        except ConfigError as error:
            name = re.split(r"[./]", change.partition("=")[0])[-1]
            chosen = hydra.runtime.choices.items()
            files = (
                folder / f"{group.partition('@')[0]}/{it}.yaml" for group, it in chosen for folder in folders
            )
            texts = {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}
            place = next((file for file, text in texts.items() if "hydra" in text and name in text), "a YAML")
            raise ConfigError(f"{place}: {error}") from None


@cache
def _hydra_defaults() -> Any:
    """What ``_refuse_chosen`` compares with: Hydra's settings where nobody has set any."""
    return hydra_compose("launch", return_hydra_config=True)


def changed(hydra: Any, default: Any) -> Iterator[str]:
    """The choices and settings of Hydra's node ``hydra`` that differ from ``default``, as overrides."""
    plain, other = (OmegaConf.to_container(node, enum_to_str=True) for node in (hydra, default))
    assert isinstance(plain, dict)
    assert isinstance(other, dict)
    for group, choice in plain["runtime"]["choices"].items():
        if group.startswith("hydra/") and choice != other["runtime"]["choices"].get(group):
            yield f"{group}={choice}"
    before = dict(_dotted(other, "hydra."))
    for key, value in _dotted(plain, "hydra."):
        if not (isinstance(value, dict) or NOT_CHOSEN.match(key) or value == before.get(key)):
            yield f"{key}={value}"


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


def sweep_arguments(overrides: Sequence[str], config_dir: str | None) -> list[str]:
    """``overrides`` of a sweep, checked, and as overrides what its YAML files choose: the settings that
    ``hydra.sweeper.params`` sweeps, and our replacement of a launcher."""
    refuse(overrides, NOT_FOR_SWEEPS)
    with _hydra(overrides, config_dir) as search:
        composed = GlobalHydra.instance().hydra.compose_config(
            "train", [*search, *overrides], run_mode=RunMode.MULTIRUN, with_log_configuration=False
        )
        hydra = composed.hydra
        _refuse_chosen(hydra, NOT_FOR_SWEEPS, config_folders(config_dir))
        typed = {override.partition("=")[0] for override in overrides}
        swept = (hydra.sweeper.params or {}).items()
        arguments = [*(f"{key}={values}" for key, values in swept if key not in typed), *overrides]
        for plugin, known in PLUGINS.items():
            group, target = f"hydra/{plugin}", hydra[plugin]._target_
            choice = f"{group}={hydra.runtime.choices[group]}"
            if target not in known:
                raise ConfigError(f"{choice}: {target} is not supported; {AT_HAND[plugin]}")
            if replacement := known[target]:
                extras.require("slurm", choice)
                arguments.append(f"hydra.{plugin}._target_={replacement}")
        is_grid = hydra.sweeper._target_ == f"{OURS}.GridSweeper"
    for argument in arguments if is_grid else ():
        if "interval(" in argument.partition("=")[2]:
            raise ConfigError(f"{argument}: intervals are for a search; add hydra/sweeper=qa_optuna")
    return arguments


def multirun(arguments: Sequence[str], task: Any, output: Path, config_dir: str | None) -> None:
    """Run Hydra's sweeper over the points of ``sweep_arguments``, with its own files in ``output``.

    Errors of points propagate.
    """
    with _hydra(arguments, config_dir) as search:
        words = [*search, *arguments, f"hydra.sweep.dir={output}"]
        GlobalHydra.instance().hydra.multirun("train", task, words, with_log_configuration=False)


def merge(
    path: Path,
    overrides: Sequence[str],
    config_dir: str | None = None,
    *,
    recorded: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    resumes: bool = False,
) -> dict[str, Any]:
    """Apply ``overrides`` of single settings to the config in ``path``; ``validate`` reports unknown keys.

    If ``path`` is a record, ``recorded`` is its config. It may be of anyone. Therefore its
    ``machine_settings`` are replaced by ``machine``, by default those composed here from ``overrides``.
    Raises ConfigError if that costs a run that ``resumes`` its logger; other runs log it.
    """
    try:
        if recorded is None:
            read_yaml(path)  # has limits
        base = OmegaConf.load(path) if recorded is None else OmegaConf.create(dict(recorded))
        if not isinstance(base, DictConfig):
            raise ConfigError(f"{path}: contains no settings")
        _refuse_interpolations(OmegaConf.to_container(base), f"{path}: config")
        typed = machine_overrides(overrides)
        changes = OmegaConf.from_dotlist([word for word in overrides if word not in typed])
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
    before = {str(key): value for key, value in plain.items()}
    if machine is not None:
        return with_machine(before, machine, MACHINE)
    merged = with_machine(before, _compose_once(tuple(typed), config_dir), typed)
    if lost := lost_logger(before, merged, typed):
        if resumes:
            raise ConfigError(f"{path}: {lost}")
        log.info("%s: %s", path, lost)
    return merged


@cache
def _compose_once(overrides: tuple[str, ...], config_dir: str | None) -> dict[str, Any]:
    return compose(overrides, config_dir)


def _refuse_interpolations(value: Any, where: str) -> None:
    """Raise ConfigError for an interpolation, which could read the environment for a downloaded config."""
    if isinstance(value, str) and "${" in value:
        raise ConfigError(
            f"{where}: {short(value)} contains ${{, which is not resolved here; write the value"
        )
    for key, item in value.items() if isinstance(value, dict) else ():
        _refuse_interpolations(item, f"{where}.{key}")
    for item in value if isinstance(value, list) else ():
        _refuse_interpolations(item, where)


def parse_sections(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``SECTION.KEY=VALUE`` words into sections of settings, with values read as YAML."""
    for override in overrides:
        if not re.match(r"\w+\.\w+=.", override):
            raise ConfigError(f"'{override}' is not SECTION.KEY=VALUE, such as features.max_length=512")
    refuse_repeated(overrides)
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
        if choice.startswith("submitit_"):
            extras.require("slurm", f"{group}={choice}")
        if plugin := AT_HAND.get(group.removeprefix("hydra/")):
            return f"{group}={choice} does not exist; {plugin}"
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
    return [key for key, _ in _dotted(OmegaConf.to_container(composed))]


def _dotted(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of nested mappings joined by dots, with their values: sections as well as their settings."""
    for key, item in value.items():
        yield f"{prefix}{key}", item
        if isinstance(item, dict):
            yield from _dotted(item, f"{prefix}{key}.")

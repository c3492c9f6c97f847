"""Config composition with Hydra; the only module that imports it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep as IntervalSweep
from hydra.core.override_parser.types import Override
from hydra.core.override_parser.types import RangeSweep as RangeSweep
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import VersionBase, getbase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from qa_arch.config.check import from_mapping, key_of, refuse_repeated, short, suggest, suggest_setting
from qa_arch.config.find import CONFIG, config_folders, groups
from qa_arch.config.machine import (
    MACHINE,
    lost_logger,
    machine_overrides,
    machine_settings,
    with_machine,
    within,
)
from qa_arch.config.schema import Trainer, refuse_ignored_encoder, refuse_mixed_sources, validate
from qa_arch.config.target import require_packages
from qa_arch.errors import ConfigError, UnavailableError, named, one_line
from qa_arch.files import read_yaml
from qa_arch.manifest import model_changes

log = logging.getLogger(__name__)
SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
PLUGINS = {
    "launcher": {
        "qa_arch.launchers.Here": "isolated",
        f"{SUBMITIT}.LocalLauncher": "local",
        f"{SUBMITIT}.SlurmLauncher": "slurm",
    },
    "sweeper": {"qa_arch.sweep.Sweep": "grid", "qa_arch.search.search": "search"},
}
"""What may launch and choose the points of a sweep, as a class in Hydra -> our kind. Hydra itself makes none:
its submitit plugin would run a point inside the job's own process."""
AT_HAND = {
    "launcher": "each point runs in its own processes, with hydra/launcher=isolated (the default),"
    " submitit_local or submitit_slurm",
    "sweeper": "the sweepers are hydra/sweeper=grid (the default) and hydra/sweeper=qa_optuna",
}
NEVER = (
    (r"\+*hydra\.searchpath", "name the folder of your own configs with --config-dir DIR"),
    (r"\+*data=\{", "write data=files data.train=FILE data.dev=FILE, each setting by itself"),
    (r"logger=(?!\[.*\]$).*,", "name several loggers in brackets, as in logger=[wandb,csv]"),
    (r"(model|experiment|debug)=\[", "takes one name, without brackets; train -m model=A,B takes several"),
    (r"[+~]*special\b", "follows from experiment, debug and model, so it cannot be chosen"),
)
"""(pattern, remedy) of overrides that neither runs nor sweeps take."""
NO_EFFECT = "has no effect; a sweep (train -m) takes hydra/launcher and hydra/sweeper"
MULTIRUN = (r"\+*hydra\.mode=MULTIRUN", "add -m, which trains every point of a grid")
NOT_FOR_RUNS = (
    (r"\+*sweep\.", "is a setting of sweeps; use it with train -m"),
    (r"\+*hydra\.(run|sweep)\.", "name the run folder with --folder DIR, or its parent with runs_dir=DIR"),
    *NEVER,
    MULTIRUN,
    (r"\+*hydra[./](?!mode)", NO_EFFECT),
)
"""(pattern, remedy) of overrides, and of what YAML files set, that a run rejects."""
NOT_FOR_SWEEPS = (
    (r"\+*hydra\.(run|sweep)\.", "name the sweep's folder with sweep.folder=DIR"),
    (r"\+*hydra\.sweeper\.max_batch_size=", "all points are checked first; sweep.n_jobs=N runs N at a time"),
    *NEVER,
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


@dataclass
class Isolated:
    """``hydra/launcher=isolated``."""

    _target_: str = "qa_arch.launchers.Here"


@dataclass
class Grid:
    """``hydra/sweeper=grid``."""

    _target_: str = "qa_arch.sweep.Sweep"
    params: dict[str, str] | None = None


@dataclass
class Search(Grid):
    """``hydra/sweeper=qa_optuna``."""

    _target_: str = "qa_arch.search.search"
    n_trials: int = 20
    n_jobs: int = 1
    seed: int = 13


CHOICES = {"launcher/isolated": Isolated, "sweeper/grid": Grid, "sweeper/qa_optuna": Search}
for _choice, _settings in CHOICES.items():
    _group, _, _name = f"hydra/{_choice}".rpartition("/")
    ConfigStore.instance().store(group=_group, name=_name, node=_settings, provider="qa_arch")
MODEL_CHANGES = model_changes()
"""Config group of an extra -> the class of its choices. None is chosen by default."""
_no_change = {"defaults": [{name: None} for name in MODEL_CHANGES]}
ConfigStore.instance().store(name="model_changes", node=_no_change, provider="qa_arch")


def _stem(source: str | Sequence[str]) -> str:
    """``${stem:SOURCE}``: the name of its first file, or of that file's folder if it is one of several
    (``mine/train.json``, ``mine/*.json``)."""
    path = Path(source if isinstance(source, str) else source[0])
    is_part = "*" in path.name or re.match(r"train\b", path.name)
    named = path.parent if is_part and path.parent.name else path
    return re.sub(r"\W+", "_", named.name.split(".")[0]).strip("_") or "finetune"


def _folder(variable: str, default: str | None) -> str | None:
    """``${folder:VARIABLE,DEFAULT}``: ``oc.env``, but an empty variable is no name."""
    return os.environ.get(variable) or default


OmegaConf.register_new_resolver("stem", _stem, replace=True)
OmegaConf.register_new_resolver("folder", _folder, replace=True)


def compose(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose ``conf/train.yaml`` with ``overrides`` into a plain, resolved dictionary: the config of a run.

    ``config_dir`` is a folder with additional choices for the config groups.
    """
    refuse(overrides, NOT_FOR_RUNS)
    with _hydra(overrides, config_dir) as search:
        words = [*search, *_named_loggers(overrides)]
        composed = hydra_compose("train", overrides=words, return_hydra_config=True)
        _refuse_chosen(composed.hydra, NOT_FOR_RUNS, config_folders(config_dir))
        return _plain(composed, overrides)


def _plain(composed: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The config of a run in what Hydra composed."""
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key not in ("hydra", "sweep")])
    plain = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    if "logger" in plain and "logger" not in {c.partition("@")[0] for c in composed.hydra.runtime.choices}:
        raise ConfigError(
            "logger: a YAML file chooses a list; write a file of logger/ with"
            " defaults: [wandb@wandb, csv@csv], and choose that"
        )
    if "head" in plain:
        raise ConfigError("head: its YAML must begin with the line '# @package model.head'")
    if plain.get("init_from"):
        return _started(plain, overrides)
    refuse_ignored_encoder(overrides, plain.get("encoder"))
    refuse_mixed_sources(overrides, plain.get("data", {}))
    return {str(key): value for key, value in plain.items()}


def _started(plain: dict[Any, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The config of the run that ``init_from`` names, with what ``overrides`` choose in ``plain``.

    The run may be of anyone, so logger and folders are those of ``plain``.
    """
    folder = Path(plain["init_from"])
    path = folder / CONFIG
    if not path.is_file():
        raise ConfigError(f"init_from: {folder} has no {CONFIG}; name the folder of a run that was trained")
    before = read_yaml(path)
    with named(f"init_from: {path}"):  # it may be damaged
        validate(before)
    _refuse_interpolations(before, f"{path}: config")
    typed: dict[str, Any] = {}
    for word in overrides:
        key = key_of(word).replace("/", ".")
        if within(key, ("sweep",)):
            continue
        typed[key] = plain
        for part in key.split("."):
            # A model that differs in name and encoder alone would pass for that of the run.
            if key == "model" or not (isinstance(typed[key], dict) and part in typed[key]):
                raise ConfigError(
                    f"{word}: is for new models; with init_from, settings are those of {folder} but for"
                    " sections and single settings that are given (trainer=cpu optim.lr=1e-5)"
                )
            typed[key] = typed[key][part]
    own = {key: value for key, value in before.items() if key not in MODEL_CHANGES}
    config = with_machine(own, machine_settings(plain), overrides)
    changes = [
        from_mapping(kind, plain[name], name) for name, kind in MODEL_CHANGES.items() if plain.get(name)
    ]
    chosen = {key: value for change in changes for key, value in change.settings.items()}
    # The encoder is the parent's: a teacher of soft targets gives no layers, any other has done its part.
    teaching = plain["distillation"]
    if not before.get("distillation", {}).get("soft_targets"):
        chosen["distillation"] = teaching
    chosen["distillation.layers"] = "none" if teaching["soft_targets"] else teaching["layers"]
    chosen["model.name"] = "-".join([before["model"].get("name", "model"), *(c.label for c in changes)])
    chosen |= typed
    for key in sorted(chosen):  # a section before its settings
        *sections, last = key.split(".")
        target = config
        for section in sections:
            inner = target[section] = dict(target.get(section) or {})  # what was read stays as it is
            target = inner
        target[last] = chosen[key]
    return config


def _named_loggers(overrides: Sequence[str]) -> Iterator[str]:
    """``overrides`` with ``logger=[A,B]`` in Hydra's words: each choice in a section of its own name."""
    for override in overrides:
        several = re.fullmatch(r"logger=\[(.*\w.*)\]", override)
        if several is None:
            yield override
            continue
        yield "~logger"
        for name in several[1].replace(" ", "").split(","):
            yield f"+logger@logger.{name.rpartition('/')[2]}={name}"


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
        if not group.strip("+~"):
            raise ConfigError(f"'{override}' is not KEY=VALUE; {QUOTES}")
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
        with _initialised(folders[0]):
            yield _search_path(folders)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(_explain(error, overrides, folders)) from None


@contextmanager
def _initialised(folder: Path) -> Iterator[None]:
    """Initialise Hydra, whose state is global, within the block; a program that is itself one of Hydra's gets
    its own state back."""
    version, own = getbase(), GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3", job_name="qa_arch"):
            yield
    finally:
        GlobalHydra.instance().hydra, VersionBase.instance().version_base = own, version


def _search_path(folders: Sequence[Path]) -> list[str]:
    """Override that adds all folders after the first to Hydra's search path."""
    paths = ", ".join(f'"file://{folder}"' for folder in folders[1:])
    return [f"hydra.searchpath=[{paths}]"]


@dataclass(frozen=True)
class Multirun:
    """``train -m`` as Hydra reads it, within the block of ``multirun``."""

    fixed: list[str]
    """Overrides that all points share."""
    swept: list[Override]
    composed: DictConfig
    """Without the swept settings."""
    launcher: str
    sweeper: str
    """One of ``PLUGINS``, as is the launcher."""

    @property
    def keys(self) -> list[str]:
        """Names of the swept settings."""
        return [override.get_key_element() for override in self.swept]

    @property
    def settings(self) -> Any:
        """The section ``sweep``."""
        return OmegaConf.to_container(self.composed.sweep, resolve=True)

    def grid(self) -> list[list[str]]:
        """Overrides of every combination, without the fixed ones."""
        for override in self.swept:
            if not override.is_discrete_sweep():
                raise ConfigError(
                    f"{override.input_line}: intervals are for a search; add hydra/sweeper=qa_optuna"
                )
        values = [override.sweep_string_iterator() for override in self.swept]
        points = product(*values)
        return [[f"{key}={value}" for key, value in zip(self.keys, point, strict=True)] for point in points]

    def compose(self, own: Sequence[str]) -> dict[str, Any]:
        """Config of the point with its ``own`` overrides; Hydra's settings are those of the whole sweep."""
        overrides = [*self.fixed, *own]
        composed = GlobalHydra.instance().config_loader().load_sweep_config(self.composed, overrides)
        for change in changed(composed.hydra, self.composed.hydra):
            raise ConfigError(f"{change}: is set by a YAML file of some points; it holds for a whole sweep")
        return _plain(composed, overrides)

    def plugin(self, name: str) -> dict[str, Any]:
        """Settings of ``launcher`` or ``sweeper``."""
        node = self.composed.hydra[name]
        # By default a temporary folder, deleted before the jobs run.
        values = {key: node[key] for key in node if key not in ("_target_", "params", "submitit_folder")}
        return {
            str(key): OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in values.items()
        }


@contextmanager
def multirun(overrides: Sequence[str], config_dir: str | None = None) -> Iterator[Multirun]:
    """Check the overrides of a sweep, and yield what they and its YAML files choose; typed settings replace
    those of ``hydra.sweeper.params``."""
    refuse(overrides, NOT_FOR_SWEEPS)
    with _hydra(overrides, config_dir) as search:
        hydra, words = GlobalHydra.instance().hydra, [*search, *_named_loggers(overrides)]
        composed = hydra.compose_config("train", words, RunMode.MULTIRUN, with_log_configuration=False)
        _refuse_chosen(composed.hydra, NOT_FOR_SWEEPS, config_folders(config_dir))
        typed, kinds = set(map(key_of, overrides)), {}
        for plugin, known in PLUGINS.items():
            group, target = f"hydra/{plugin}", composed.hydra[plugin]._target_
            choice = f"{group}={composed.hydra.runtime.choices[group]}"
            if target not in known:
                raise ConfigError(f"{choice}: {target} is not supported; {AT_HAND[plugin]}")
            kinds[plugin] = known[target]
            if target.startswith(SUBMITIT):
                require_packages("slurm", choice)
        params = (composed.hydra.sweeper.params or {}).items()
        for key, _ in params:
            if (section := str(key).partition(".")[0]) in ("hydra", "sweep"):
                raise ConfigError(
                    f"hydra.sweeper.params: {key} is no setting of a run; give it in the section {section},"
                    " or on the command line"
                )
        # What is typed wins over `hydra.sweeper.params` of a YAML.
        given = [*(f"{key}={values}" for key, values in params if key not in typed), *words[len(search) :]]
        parsed = OverridesParser.create(hydra.config_loader).parse_overrides(given)
        settings = [override for override in parsed if not override.is_hydra_override()]
        swept = [override for override in settings if override.is_sweep_override()]
        fixed = [
            f"{override.get_key_element()}={override.get_value_element_as_str()}"
            for override in settings
            if override not in swept
        ]
        yield Multirun(fixed, swept, composed, **kinds)


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
        # What belongs to this machine is composed apart, below.
        changes = _parse([word for word in overrides if word not in typed])
        for key in map(str, changes):
            # Merging would replace a section by a word: choices of groups need composition.
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
    if machine is not None:  # of a sweep, which has composed them for its points
        return with_machine(before, machine, MACHINE)
    merged = with_machine(before, _compose_once(tuple(typed), config_dir), typed)
    if lost := lost_logger(before, merged, typed):
        if resumes:
            raise ConfigError(f"{path}: {lost}")
        log.info("%s: %s", path, lost)
    return merged


@cache  # for the points of a sweep that is resumed
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
    """Parse ``SECTION.KEY=VALUE`` words into sections of settings. Raises ConfigError for any other."""
    for override in overrides:
        if not re.match(r"\w+\.\w+=.", override):
            raise ConfigError(f"'{override}' is not SECTION.KEY=VALUE, such as features.max_length=512")
    refuse_repeated(overrides)
    try:
        plain = OmegaConf.to_container(_parse(overrides), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    assert isinstance(plain, dict)
    return {str(section): values for section, values in plain.items()}


def _parse(overrides: Sequence[str]) -> DictConfig:
    """Nested settings, with values read as those that are composed: YAML's 010 is 8.

    Raises ConfigError for what is no KEY=VALUE, or has several values.
    """
    settings = OmegaConf.create()
    try:
        for override in OverridesParser.create().parse_overrides([*overrides]):
            if override.is_delete() or override.is_sweep_override():
                raise ConfigError(f"'{override.input_line}' is not KEY=VALUE with one value; {QUOTES}")
            OmegaConf.update(settings, override.key_or_group, override.value())
    except HydraException as error:
        raise ConfigError(_explain(error, overrides, ())) from None
    return settings


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
            require_packages("slurm", f"{group}={choice}")
        if plugin := AT_HAND.get(group.removeprefix("hydra/")):
            return f"{group}={choice} does not exist; {plugin}"
        return f"{group}={choice} does not exist{suggest(choice, groups(folders).get(group, ()))}"
    if match := re.search(r"Could not override '([^']+)'", text):
        section, _, key = match[1].partition(".")
        if section == "trainer" and key in Trainer.refused:
            return f"{match[1]}: {Trainer.refused[key]}"
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
    with _initialised(folders[0]):
        try:
            words = [*_search_path(folders), *_named_loggers(chosen)]
            composed = hydra_compose("train", overrides=words)
        except (HydraException, OmegaConfBaseException):
            composed = hydra_compose("train")
    return [key for key, _ in _dotted(OmegaConf.to_container(composed))]


def _dotted(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of nested mappings joined by dots, with their values: sections as well as their settings."""
    for key, item in value.items():
        yield f"{prefix}{key}", item
        if isinstance(item, dict):
            yield from _dotted(item, f"{prefix}{key}.")

"""Settings of a machine, which a config or record from elsewhere cannot choose: its folders and its logger.

A logger may send the user's credentials to any address, and a folder may lie anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from qa_arch.config.find import choice, conf_folder, groups
from qa_arch.errors import ConfigError

MACHINE = ("logger", "runs_dir", "features.cache_dir")


def within(key: str, sections: Collection[str]) -> bool:
    """Whether the dotted ``key``, as Hydra takes it, is one of ``sections`` or a setting or choice in one."""
    key = key.lstrip("+~")
    return any(key == section or re.match(rf"{re.escape(section)}[./@]", key) for section in sections)


def machine_overrides(overrides: Sequence[str], settings: Sequence[str] = MACHINE) -> list[str]:
    """Those of ``overrides`` that choose one of ``settings``, as they were typed."""
    return [word for word in overrides if within(word.partition("=")[0], settings)]


def machine_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a machine in a complete config, as ``with_machine`` takes them."""
    cache_dir = config["features"]["cache_dir"]
    return {"logger": config["logger"], "runs_dir": config["runs_dir"], "features": {"cache_dir": cache_dir}}


def with_machine(
    config: Mapping[str, Any], machine: Mapping[str, Any], overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """``config`` from elsewhere with the settings of this ``machine``.

    It stays without a logger or cache if it has none, unless ``overrides`` choose one.
    """
    changed = {**config, "runs_dir": machine["runs_dir"]}
    if has_logger(config) or machine_overrides(overrides, ["logger"]):
        changed["logger"] = machine["logger"]
    features = config.get("features")
    if isinstance(features, Mapping) and (
        features.get("cache_dir") or machine_overrides(overrides, ["features.cache_dir"])
    ):
        changed["features"] = {**features, "cache_dir": machine["features"]["cache_dir"]}
    return changed


def logger_sections(section: Any) -> dict[str, Any]:
    """Setting -> section of each logger that the section ``logger`` names: one, or several by name."""
    if isinstance(section, Mapping) and section and all(isinstance(own, Mapping) for own in section.values()):
        return {f"logger.{name}": own for name, own in section.items()}
    return {"logger": section}


def refuse_single_run(section: Any) -> None:
    """Raise ConfigError for a setting of a logger by which several runs would be logged as one."""
    for where, own in logger_sections(section).items():
        for key in ("id", "run_id", "experiment_key"):  # of wandb, MLflow and Comet
            if value := own.get(key):
                raise ConfigError(f"{where}.{key}: {value} names a single run; leave it out for several")


def has_logger(config: Mapping[str, Any]) -> bool:
    return any(target is not None for target in _targets(config))


def lost_logger(before: Mapping[str, Any], now: Mapping[str, Any], overrides: Sequence[str]) -> str | None:
    """What to say if the config ``before`` has a logger that the config ``now``, made from it, has not, and
    ``overrides`` choose none; else None."""
    same = before.get("logger") == now["logger"]
    if not has_logger(before) or same or machine_overrides(overrides, ["logger"]):
        return None
    named = {choice(f"logger/{name}")["_target_"]: name for name in groups([conf_folder()])["logger"]}
    chosen = [[named.get(target, target) for target in _targets(config)] for config in (before, now)]
    old, new = (names[0] if len(names) == 1 else f"[{','.join(map(str, names))}]" for names in chosen)
    example = f", such as logger={old}," if {*chosen[0]} <= {*named.values()} else ""
    return (
        f"its logger settings ({old}) are not taken from a file, and this command has {new}; repeat those it"
        f" was started with{example} or choose with logger={new}"
    )


def _targets(config: Mapping[str, Any]) -> list[Any]:
    """Class of each logger; a config that is not valid counts as having one."""
    sections = logger_sections(config.get("logger")).values()
    return [own.get("_target_") if isinstance(own, Mapping) else "" for own in sections]

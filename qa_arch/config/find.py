"""Locations of the config groups: ``conf/`` of the checkout or wheel, those of extras, and the user's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qa_arch.errors import ConfigError
from qa_arch.files import read_yaml, user_path
from qa_arch.manifest import extras

CONFIG = "config.yaml"
"""File in a run folder: the config as composed."""
SUITES = "suite"
"""Folder beside the config groups with lists of test sets (``qa-arch suite``)."""


def conf_folder() -> Path:
    """Folder with ``train.yaml`` and the config groups."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "conf", package / "conf"):  # of a checkout, of a wheel
        if (folder / "train.yaml").is_file():
            return folder
    raise ConfigError(
        f"no conf/train.yaml beside {package}: the installation is incomplete, reinstall qa-arch"
    )


def choice(name: str) -> dict[str, Any]:
    """Read ``conf/NAME.yaml``, a choice of a config group that contains only plain values."""
    return read_yaml(conf_folder() / f"{name}.yaml")


def config_folders(own: str | Path | None = None) -> tuple[Path, ...]:
    """``conf_folder()``, those of extras, and ``own`` (``--config-dir``) with additional choices.

    Raises ConfigError if ``own`` is not a folder, has no choice of any group, or has one whose name is taken:
    Hydra would use ours instead.
    """
    folders = _own_folders()
    if own is None:
        return folders
    folder = user_path(own).resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {own}: no such folder")
    known, own_choices = groups(folders), groups([folder])
    if not any(own_choices.values()):
        raise ConfigError(
            f"--config-dir {own}: contains no choice of any group, such as model/NAME.yaml (groups:"
            f" {', '.join(known)})"
        )
    for group, names in own_choices.items():
        if shared := set(names) & set(known[group]):
            raise ConfigError(
                f"--config-dir {own}: {group}/{min(shared)}.yaml has the name of one of qa_arch's own,"
                " which would take precedence; rename it"
            )
        for name in names:
            read_yaml(folder / group / f"{name}.yaml")  # Hydra's reader has no limits
    return *folders, folder


def use_config_dir(config_dir: str | None, trusted: Sequence[str]) -> str | None:
    """Return the absolute path of the folder; with trusted packages, make them importable from it, in this
    process and its children (see ``process.start``)."""
    if config_dir is None:
        return None
    folder = str(user_path(config_dir).resolve())
    if trusted and folder not in sys.path:
        sys.path.insert(0, folder)
    return folder


def groups(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Choices of each config group in ``folders``; the groups are those of ``conf/`` and extras."""
    subfolders = (path for conf in _own_folders() for path in conf.iterdir() if path.is_dir())
    choices: dict[str, list[str]] = {}
    for group in sorted({path.name for path in subfolders} - {SUITES}):
        parents = [folder / group for folder in folders]
        paths = {path.relative_to(parent) for parent in parents for path in parent.rglob("*.yaml")}
        choices[group] = sorted(path.with_suffix("").as_posix() for path in paths)
    return choices


def _own_folders() -> tuple[Path, ...]:
    return conf_folder(), *(extra.conf for extra in extras() if extra.conf)

"""Where the config groups are: ``conf/`` of the checkout or the wheel, and a folder of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qa_arch.errors import ConfigError
from qa_arch.manifest import extras

SUITES = "suite"
"""Folder beside the config groups with lists of test sets (``qa-arch suite``)."""


def conf_folder() -> Path:
    """Folder with ``train.yaml`` and the config groups."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise ConfigError(
        f"no conf/train.yaml beside {package}: the installation is incomplete, install it again"
    )


def choice(name: str) -> dict[str, Any]:
    """``conf/NAME.yaml``, a choice of a config group that is made of plain values."""
    import yaml  # type: ignore[import-untyped]  # slow for what reads none

    return yaml.safe_load((conf_folder() / f"{name}.yaml").read_text(encoding="utf-8"))


def config_folders(own: str | Path | None = None) -> tuple[Path, ...]:
    """``conf_folder()``, those of extras, and ``own`` (``--config-dir``), a folder with choices for the same
    groups.

    Raises ConfigError where ``own`` is no folder, has no choice of any group, or has one of a name that
    ``conf/`` has already, which Hydra would take in its place.
    """
    folders = _own_folders()
    if own is None:
        return folders
    folder = Path(own).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {own}: there is no such folder")
    known = groups(folders)
    choices = _choices(folder, known)
    if not any(choices.values()):
        raise ConfigError(
            f"--config-dir {own}: holds no choice of any group, such as model/NAME.yaml (groups:"
            f" {', '.join(known)})"
        )
    for group, names in choices.items():
        if shared := set(names) & set(known[group]):
            raise ConfigError(
                f"--config-dir {own}: {group}/{min(shared)}.yaml has the name of one of qa_arch's own,"
                " which would take precedence; rename it"
            )
    return *folders, folder


def groups(folders: Sequence[Path]) -> dict[str, list[str]]:
    """The choices of each config group, from the files; ``conf/`` and extras say which groups there are."""
    folders_there = (path for conf in _own_folders() for path in conf.iterdir() if path.is_dir())
    names = sorted(path.name for path in folders_there if path.name != SUITES)
    choices: dict[str, list[str]] = {name: [] for name in names}
    for folder in folders:
        for group, more in _choices(folder, names).items():
            choices[group] = sorted({*choices[group], *more})
    return choices


def _own_folders() -> tuple[Path, ...]:
    return conf_folder(), *(extra.conf for extra in extras() if extra.conf)


def _choices(folder: Path, names: Iterable[str]) -> dict[str, list[str]]:
    return {
        name: sorted(
            path.relative_to(folder / name).with_suffix("").as_posix()
            for path in (folder / name).rglob("*.yaml")
        )
        for name in names
    }

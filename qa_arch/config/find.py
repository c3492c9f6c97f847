"""Locations of the config groups: ``conf/`` of the checkout or wheel, those of extras, and the user's own."""

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
        f"no conf/train.yaml beside {package}: the installation is incomplete, reinstall qa-arch"
    )


def choice(name: str) -> dict[str, Any]:
    """Read ``conf/NAME.yaml``, a choice of a config group that contains only plain values."""
    import yaml  # type: ignore[import-untyped]  # slow to import

    return yaml.safe_load((conf_folder() / f"{name}.yaml").read_text(encoding="utf-8"))


def config_folders(own: str | Path | None = None) -> tuple[Path, ...]:
    """``conf_folder()``, those of extras, and ``own`` (``--config-dir``) with additional choices.

    Raises ConfigError if ``own`` is not a folder, has no choice of any group, or has one whose name is taken:
    Hydra would use ours instead.
    """
    folders = _own_folders()
    if own is None:
        return folders
    folder = Path(own).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {own}: no such folder")
    known = groups(folders)
    choices = _choices(folder, known)
    if not any(choices.values()):
        raise ConfigError(
            f"--config-dir {own}: contains no choice of any group, such as model/NAME.yaml (groups:"
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
    """Choices of each config group in ``folders``; the groups are those of ``conf/`` and extras."""
    subfolders = (path for conf in _own_folders() for path in conf.iterdir() if path.is_dir())
    group_names = sorted(path.name for path in subfolders if path.name != SUITES)
    choices: dict[str, list[str]] = {group: [] for group in group_names}
    for folder in folders:
        for group, names in _choices(folder, group_names).items():
            choices[group] = sorted({*choices[group], *names})
    return choices


def _own_folders() -> tuple[Path, ...]:
    return conf_folder(), *(extra.conf for extra in extras() if extra.conf)


def _choices(folder: Path, groups: Iterable[str]) -> dict[str, list[str]]:
    return {
        group: sorted(
            path.relative_to(folder / group).with_suffix("").as_posix()
            for path in (folder / group).rglob("*.yaml")
        )
        for group in groups
    }

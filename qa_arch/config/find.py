"""Location of the configuration folder: the checkout's ``conf/``, else the copy inside the wheel."""

from __future__ import annotations

from pathlib import Path

from qa_arch.errors import ConfigError


def conf_folder() -> Path:
    """Folder with ``train.yaml`` and the config groups."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise ConfigError(
        f"no conf/train.yaml beside {package}: the installation is incomplete, install it again"
    )

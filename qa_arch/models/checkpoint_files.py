"""The files of a downloaded checkpoint: a local folder, or a model of the hub. No torch here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qa_arch.config.identity import files_hash
from qa_arch.errors import RunError, UnavailableError
from qa_arch.results.record import RECORD

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
NEEDED = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Configuration, weights and the tokenizer's files in any of their forms; no pickle, no code."""


@dataclass(frozen=True)
class CheckpointFiles:
    """A folder that ``save_pretrained`` could have written, and which version of it this is."""

    source: str
    """The hub id or the folder, as the user names it."""
    folder: Path
    revision: str
    """The hub's commit, or ``sha256:`` and the hash over the files of a local folder."""

    @property
    def name(self) -> str:
        """What tables call it: the last part of its id or path."""
        return record_folder(self.source).name


def names_checkpoint(source: str | Path) -> bool:
    """Whether ``source`` names a checkpoint: a folder with ``config.json`` that is no run, or a hub id."""
    path = Path(source)
    if path.is_dir():
        return (path / CONFIG).is_file() and not (path / RECORD).is_file()
    return _is_hub_id(str(source))


def record_folder(source: str) -> Path:
    """Where the record of a checkpoint lies below ``runs/checkpoints``: its hub id, or its folder's name."""
    return Path(source) if _is_hub_id(source) else Path(Path(source).resolve().name)


def open_checkpoint(source: str | Path, revision: str | None = None) -> CheckpointFiles:
    """The files of ``source``; those of a hub id come from the hub, or from its local cache without network.

    ``revision`` is the one that is wanted: the hub has all, a folder only its own. Raises UnavailableError
    where the hub cannot give it or it has no weights as safetensors, RunError for a folder that changed.
    """
    path = Path(source)
    if path.is_dir():
        files = CheckpointFiles(str(source), path, digest(path))
    elif _is_hub_id(str(source)):
        path = _download(str(source), revision)
        files = CheckpointFiles(str(source), path, path.name)
    else:
        raise RunError(f"{source}: no such folder, and no hub id (OWNER/NAME)")
    if revision not in (None, files.revision):
        raise RunError(
            f"{source}: is not the checkpoint that was scored (its files have changed since); score it anew:"
            f" qa-arch evaluate --run {source} --record DIR --data FILE"
        )
    if not any((path / name).is_file() for name in WEIGHTS):
        raise UnavailableError(
            f"{source}: holds no {WEIGHTS[0]}; weights in other forms, such as pickles (pytorch_model.bin),"
            " are not opened, as they can run code: save them with save_pretrained of transformers 5"
        )
    return files


def _is_hub_id(source: str) -> bool:
    """``owner/name``, where no folder ``owner`` makes it a path that does not exist."""
    owner = re.fullmatch(r"(\w[\w.-]*)/\w[\w.-]*", source)
    return owner is not None and not Path(owner[1]).is_dir()


def _download(source: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            source,
            revision=revision,
            allow_patterns=list(NEEDED),
            ignore_patterns="*/*",  # files in subfolders are other formats of the same weights
        )
        return Path(folder)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnavailableError(
            f"{source}: neither a folder here nor to be had from the hub ({reason}); check the spelling and"
            " the network, or give a local folder with its config.json and model.safetensors"
        ) from error


def digest(folder: Path, patterns: Sequence[str] = NEEDED) -> str:
    """The hash over names and contents of the files of ``folder``, by default those of a checkpoint."""
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return f"sha256:{files_hash(folder, paths)}"

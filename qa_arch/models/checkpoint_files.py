"""A downloaded checkpoint: its files, in a local folder or on the hub, and its settings. No torch here.

How it was trained is not known, so its record has no such sections; ``run_config`` fills them with the
defaults of ``conf/``, which nothing that reads with a finished model looks at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.check import read
from qa_arch.config.files import read_json
from qa_arch.config.find import choice
from qa_arch.config.identity import files_hash
from qa_arch.config.schema import Config, Decode, Features, validate
from qa_arch.errors import ConfigError, RunError, UnavailableError
from qa_arch.nn.encoder_configs import CONFIG, INDEX, check_files
from qa_arch.records import CHECKPOINTS, RECORD, Confidence, Threshold

WEIGHTS = ("model.safetensors", INDEX)
NEEDED = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Configuration, weights and the tokenizer's files in any of their forms; no pickle, no code."""

CHECKPOINT = "qa_arch.models.span_checkpoint.SpanCheckpoint"
"""``model._target_`` of a checkpoint that was not trained here."""
SETTABLE = ("features", "decode")
"""The sections that its user may change; all others say what it is."""
_UNKNOWN_DATA: Mapping[str, Any] = {
    "name": "unknown",
    "train": [],
    "dev": None,
    "calibration": None,
    "hold_out_articles": 0,
    "hold_out_share": 0.0,
    "split_seed": 0,
    "train_questions": 0,
    "on_error": "raise",
    "open_dev": True,
}
"""The data of a checkpoint, of which nothing is known."""
Settings = Mapping[str, Mapping[str, Any]]
"""Section -> setting -> value."""
SERVED_AS = "qa_arch.json"
"""Beside the weights of an exported model: how it was scored, which is how it is read again."""


@dataclass(frozen=True)
class ServedAs:
    """The contents of ``SERVED_AS``."""

    features: Features
    decode: Decode
    threshold: Threshold
    confidence: Confidence | None = None

    @classmethod
    def of(cls, folder: Path) -> ServedAs | None:
        """The file of a checkpoint's folder; None where there is none. ConfigError for one that is faulty."""
        if not (folder / SERVED_AS).is_file():
            return None
        try:
            return read(cls, read_json(folder / SERVED_AS, "export the model again"))
        except ConfigError as error:
            raise ConfigError(f"{folder / SERVED_AS}: {error}") from None


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
        """Its name in tables: the last part of its id or path."""
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
    check_files(path)
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
            f"{source}: neither a local folder nor available from the hub ({reason}); check the spelling and"
            " the network, or give a local folder with its config.json and model.safetensors"
        ) from error


def digest(folder: Path, patterns: Sequence[str] = NEEDED) -> str:
    """The hash over names and contents of the files of ``folder``, by default those of a checkpoint."""
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return f"sha256:{files_hash(folder, paths)}"


# Settings ------------------------------------------------------------------------------------------


def is_checkpoint(config: Mapping[str, Any]) -> bool:
    """Whether a record's config is that of a downloaded checkpoint."""
    return config.get("model", {}).get("_target_") == CHECKPOINT


def checkpoint_settings(
    source: str,
    *,
    name: str,
    revision: str,
    precision: str,
    max_tokens: int | None,
    served_as: ServedAs | None = None,
    changes: Settings | None = None,
) -> dict[str, Any]:
    """The config of the checkpoint ``source``, read in ``precision``.

    Its windows and answers are those of ``served_as``, else SQuAD's conventions (384 tokens that overlap by
    128, questions of 64, answers of 30), with ``changes`` in their place.

    Where the model reads at most ``max_tokens``, windows that nobody asked for shrink in proportion. Raises
    ConfigError for a change of another section, and for windows that are longer than the model reads.
    """
    changes = changes or {}
    for section in changes:
        if section not in SETTABLE:
            raise ConfigError(
                f"{section}: says what the checkpoint is, and cannot be set; {' and '.join(SETTABLE)} can"
            )
    features, decode = _within(choice("features/windows"), max_tokens), choice("decode/band")
    if served_as is not None:
        features |= asdict(served_as.features) | {"cache_dir": features["cache_dir"]}
        decode = asdict(served_as.decode)
    features |= changes.get("features", {})
    settings = {
        "name": CHECKPOINTS,
        "seed": 0,
        "data": dict(_UNKNOWN_DATA),
        "features": features,
        "encoder": {"name": source, "init": "pretrained"},
        "model": {
            "_target_": CHECKPOINT,
            "task": "span",
            "name": name,
            "revision": revision,
            "precision": precision,
        },
        "decode": decode | dict(changes.get("decode", {})),
        "references": choice("references/spans"),
    }
    longest = run_config(settings).features.max_length
    if max_tokens is not None and longest > max_tokens:
        raise ConfigError(
            f"features.max_length: {longest} is more than the {max_tokens} tokens that {source} can read"
        )
    return settings


def run_config(recorded: Mapping[str, Any]) -> Config:
    """The typed config of a record, ``validate``; that of a checkpoint is completed first."""
    if not is_checkpoint(recorded):
        return validate(recorded)
    defaults = {
        "runs_dir": "runs",
        "glove": choice("glove/none"),
        "optim": choice("optim/adamw"),
        "trainer": choice("trainer/auto"),
        "logger": choice("logger/none"),
    }
    encoder = recorded.get("encoder")
    if isinstance(encoder, Mapping):
        defaults["encoder"] = choice("encoder/_base") | dict(encoder)
    return validate({**recorded, **defaults})


def _within(windows: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    """The settings of windows, in proportion to ``max_tokens`` where that is less."""
    longest = windows["max_length"]
    if max_tokens is None or max_tokens >= longest:
        return windows
    shrunk = {key: windows[key] * max_tokens // longest for key in ("max_length", "stride", "max_question")}
    return windows | shrunk

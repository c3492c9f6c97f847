"""Files of what a run may start from, without torch: downloaded checkpoints, in a local folder or on the
hub, and their settings; teachers; runs that are trained on.

The training of a checkpoint is unknown, so its record lacks those sections of the config; ``run_config``
fills them with the defaults of ``conf/``, which do not affect a finished model.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qa_arch.config.check import from_mapping
from qa_arch.config.find import CONFIG as RUN_CONFIG
from qa_arch.config.find import choice
from qa_arch.config.schema import Config, Decode, Features, changes_of, refuse_recipe, validate
from qa_arch.config.target import require_trusted
from qa_arch.errors import ConfigError, RunError, UnavailableError, first_line, named
from qa_arch.features.windows import check_window
from qa_arch.files import files_hash, read_json
from qa_arch.hub import interruption, missing, retried, split_revision
from qa_arch.nn.encoder_configs import ADAPTER, CONFIG, INDEX, WEIGHTS, check_files
from qa_arch.records import (
    CHECKPOINTS,
    MODEL,
    RECORD,
    Confidence,
    RunRecord,
    SetName,
    SplitFacts,
    Threshold,
    read_finished,
)

FILE_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Configuration, weights and tokenizer files in any format; no pickle, no code."""

CHECKPOINT = "qa_arch.models.span_checkpoint.SpanCheckpoint"
"""``model._target_`` of a checkpoint trained elsewhere."""
LEGACY_IDS = {
    name: f"{owner}/{name}"
    for owner, name in (
        ("distilbert", "distilbert-base-cased-distilled-squad"),
        ("distilbert", "distilbert-base-uncased-distilled-squad"),
        ("google-bert", "bert-large-cased-whole-word-masking-finetuned-squad"),
        ("google-bert", "bert-large-uncased-whole-word-masking-finetuned-squad"),
    )
}
"""Question-answering checkpoints whose id once had no owner, and could be that of a run's folder."""
SETTABLE = ("features", "decode")
"""Sections that the user may change; all others describe the checkpoint itself."""
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
"""Data section of a checkpoint, whose training data is unknown."""
OF_MODEL = ("model", "encoder", "features", "glove")
"""Sections that a trained model fixes, but for its name and what computes it faster or freezes it."""
FREE = ("model.name", "model.kernel", "encoder.freeze", "features.cache_dir")
Settings = Mapping[str, Mapping[str, Any]]
"""Section -> setting -> value."""
SETTINGS_FILE = "qa_arch.json"
"""File next to the weights of an exported model: the settings that it was scored with."""


@dataclass(frozen=True)
class ExportedSettings:
    """Contents of ``SETTINGS_FILE``."""

    features: Features
    decode: Decode
    threshold: Threshold
    confidence: Confidence | None = None
    data: Mapping[SetName, SplitFacts] = field(default_factory=dict)
    """What it was trained and calibrated on, with hashed titles, as exports are published."""
    held_out: SplitFacts | None = None
    """As in the record, with hashed titles."""

    @classmethod
    def load(cls, folder: Path) -> ExportedSettings | None:
        """Read the file in a checkpoint's folder, None if missing. Raises ConfigError if it is invalid."""
        path, remedy = folder / SETTINGS_FILE, "export the model again, or remove the file"
        if not path.is_file():
            return None
        try:
            return from_mapping(cls, read_json(path, remedy))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}; {remedy}") from error

    def fits(self, config: Config) -> bool:
        """Whether threshold and confidence hold with ``config``: other windows or another decoding give null
        odds on another scale."""
        features = replace(config.features, cache_dir=self.features.cache_dir)  # changes no score
        return (features, config.decode) == (self.features, self.decode)


@dataclass(frozen=True)
class CheckpointFiles:
    """A folder as written by ``save_pretrained``, and its version."""

    source: str
    """Hub id or folder, as named by the user."""
    folder: Path
    revision: str
    """Commit on the hub, or ``sha256:`` and the hash over the files of a local folder."""

    @property
    def name(self) -> str:
        """Name in tables: the last part of its id or path."""
        return record_folder(self.source).name


def names_checkpoint(source: str | Path) -> bool:
    """Whether ``source`` is a checkpoint: a folder with ``config.json`` that is not a run, or a hub id."""
    path = Path(source)
    if path.is_dir():
        named = any((path / name).is_file() for name in (CONFIG, ADAPTER))
        return named and not (path / RECORD).is_file()
    return str(source) in LEGACY_IDS or _is_hub_id(str(source))


def record_folder(source: str) -> Path:
    """Path of a checkpoint's record below ``runs/checkpoints``: its hub id, or its folder's name."""
    source = LEGACY_IDS.get(source, source)
    return Path(source) if _is_hub_id(source) else Path(Path(source).resolve().name)


def open_checkpoint(source: str | Path, revision: str | None = None) -> CheckpointFiles:
    """The files of ``source``, in version ``revision``; a hub id is downloaded, or read from the local cache.

    Raises UnavailableError if it cannot be downloaded or has no safetensors weights, RunError for a folder
    of another version.
    """
    path = Path(source)
    if not path.is_dir():
        source = LEGACY_IDS.get(str(source), source)
    if path.is_dir():
        files = CheckpointFiles(str(source), path, digest(path))
        if revision not in (None, files.revision):
            raise RunError(
                f"{source}: is not the checkpoint that was scored (its files have changed since); adopt it"
                f" again: qa-arch adopt {shlex.quote(str(source))} --folder DIR"
            )
    elif _is_hub_id(str(source)):
        name, own = split_revision(str(source))
        path = _download(name, revision or own)
        files = CheckpointFiles(str(source), path, path.name)  # a snapshot is named after its commit
    else:
        raise RunError(f"{source}: no such folder, and not a hub id (OWNER/NAME)")
    check_files(path)
    if (path / RECORD).is_file():
        raise RunError(
            f"{source}: is a run, not a checkpoint; qa-arch export RUN --to hf --out FOLDER makes one of a"
            " trained run, and qa_arch.load reads any run"
        )
    if not any((path / name).is_file() for name in (WEIGHTS, INDEX)):
        raise UnavailableError(
            f"{source}: holds no {WEIGHTS}; weights in other formats, such as pickles (pytorch_model.bin),"
            " are not loaded, as they can run code: save them with save_pretrained of transformers 5"
        )
    return files


def _is_hub_id(source: str) -> bool:
    """Whether ``source`` is ``owner/name``, perhaps with ``@revision``, and no folder ``owner`` makes it look
    like a missing path."""
    owner = re.fullmatch(r"(\w[\w.-]*)/\w[\w.-]*", split_revision(source)[0])
    return owner is not None and not Path(owner[1]).is_dir()


def _download(source: str, revision: str | None) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        # Files in subfolders are other formats of the same weights.
        patterns: Any = {"allow_patterns": list(FILE_PATTERNS), "ignore_patterns": "*/*"}
        return Path(retried(lambda: snapshot_download(source, revision=revision, **patterns)))
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: hf_xet
        cause = interruption(error)
        refused = isinstance(error, errors.HfHubHTTPError) and not cause
        if refused and (answer := missing("models", source, revision)):
            raise UnavailableError(answer) from error
        reason = cause or first_line(error)
        raise UnavailableError(
            f"{source}: neither a local folder nor available from the hub ({reason}); check the"
            " spelling and the network, or give a local folder with its config.json and model.safetensors"
        ) from error


def digest(folder: Path, patterns: Sequence[str] = FILE_PATTERNS) -> str:
    """Hash over names and contents of the files of ``folder``, by default those of a checkpoint."""
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
    exported: ExportedSettings | None = None,
    changes: Settings | None = None,
) -> dict[str, Any]:
    """Config of the checkpoint ``source``, read in ``precision``.

    Windows and answers follow ``exported``, or else SQuAD's conventions (384 tokens that overlap by 128,
    questions of 64, answers of 30), in proportion for a model that reads at most ``max_tokens``. ``changes``
    override both. Raises ConfigError for a change of another section, and for windows that are too long.
    """
    changes = changes or {}
    for section in changes:
        if section not in SETTABLE:
            raise ConfigError(
                f"{section}: describes the checkpoint and cannot be set; {' and '.join(SETTABLE)} can"
            )
    features, decode = choice("features/windows"), choice("decode/band")
    longest = features["max_length"]
    if max_tokens is not None and max_tokens < longest:
        lengths = ("max_length", "stride", "max_question")
        features |= {key: features[key] * max_tokens // longest for key in lengths}
    if exported is not None:
        features |= asdict(exported.features) | {"cache_dir": features["cache_dir"]}  # of this machine
        decode = asdict(exported.decode)
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
    check_window(run_config(settings).features.max_length, max_tokens, source)
    return settings


def run_config(recorded: Mapping[str, Any]) -> Config:
    """Validated config of a record; that of a checkpoint is completed with defaults first."""
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


SETTING = "distillation.teacher"


def require_teacher(config: Config, trusted: Sequence[str]) -> None:
    """Raise RunError or ConfigError, before anything is loaded, for a teacher that is missing, unfinished,
    without weights, of another task or of a class that is not trusted, and for several of which only one is
    read. Only the spelling of a hub id is checked here."""
    teachers = config.distillation.teachers
    if len(teachers) > 1 and not config.distillation.soft_targets:
        raise ConfigError(
            f"{SETTING}: layers are those of {teachers[0]} alone, and without distillation.soft_targets"
            " nothing is learned from the others; name one teacher"
        )
    for teacher in teachers:
        with named(SETTING):
            record = teacher_record(teacher)
            model = validate(record.config).model if record else {"task": "span"}
            task = model["task"]
            if record:
                require_trusted(model, trusted, "model")
        if task != config.model["task"]:
            raise ConfigError(
                f"{SETTING}: {teacher} is of task {task}, the student of task {config.model['task']}; name a"
                " run of the same task"
            )


def require_start(config: Config) -> None:
    """Raise RunError or ConfigError, before anything is loaded, for a run ``init_from`` that cannot be
    trained on, settings that would need another model than its own, and changes of no model."""
    if config.init_from is None:
        for section in changes_of(config):
            raise ConfigError(f"{section}: changes a trained model; give its run with init_from=RUN")
        return
    with named("init_from"):
        record = teacher_record(config.init_from)
        if record is None:
            raise RunError(f"{config.init_from}: is a checkpoint; start from it with encoder.name")
        refuse_recipe(config.init_from, record.config["model"])
    before, now = (_of_model(asdict(config)) for config in (validate(record.config), config))
    for setting in sorted(before.keys() | now.keys()):
        if (value := before.get(setting)) != now.get(setting):
            raise ConfigError(
                f"{setting}: is {value} in the model of {config.init_from} ({RECORD}), and init_from keeps"
                f" that; leave it out, or restore {Path(config.init_from) / RUN_CONFIG} if that was edited"
            )


def _of_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted setting -> value of what a trained model fixes."""
    flat = {f"{name}.{key}": value for name in OF_MODEL for key, value in config[name].items()}
    return {key: value for key, value in flat.items() if key not in FREE}


def teacher_record(teacher: str) -> RunRecord | None:
    """Record of a run that can be a teacher; None for a checkpoint. Raises RunError for any other folder."""
    if names_checkpoint(teacher):
        return None
    record = read_finished(teacher)
    if is_checkpoint(record.config):
        source = record.config["encoder"]["name"]
        raise RunError(f"{teacher}: is the record of the checkpoint {source}; name the checkpoint itself")
    if not (Path(teacher) / MODEL).is_dir():
        raise RunError(
            f"{teacher}: has no folder {MODEL} with weights (published records, ensembles and exports have"
            " none); name a run that was trained here"
        )
    return record


def joint_hash(hashes: Sequence[str]) -> str:
    """One hash of all; a single hash is returned as it is."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def teacher_identity(teacher: str) -> str:
    """Hash over config and files of a run, or over the files of a local checkpoint.

    A hub id is returned as it is, and not downloaded.
    """
    record = teacher_record(teacher)
    if record is None:
        return digest(Path(teacher)) if Path(teacher).is_dir() else teacher
    files = digest(Path(teacher) / MODEL, ["**/*"])
    return hashlib.sha256(f"{record.run_hash} {files}".encode()).hexdigest()

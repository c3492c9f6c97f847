"""The files of a teacher: a run or a span checkpoint. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from qa_arch.config.schema import Config, validate
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.models.checkpoint_files import digest, is_checkpoint, names_checkpoint
from qa_arch.records import MODEL, RunRecord, read_finished

SETTING = "distillation.teacher"


def require_teacher(config: Config) -> None:
    """Raise RunError or ConfigError, before anything is loaded, for a teacher that is missing, unfinished,
    without weights or of another task. Only the spelling of a hub id is checked here."""
    for teacher in config.distillation.teachers:
        try:
            record = teacher_record(teacher)
            task = validate(record.config).model["task"] if record else "span"
        except QaArchError as error:
            raise type(error)(f"{SETTING}: {error}") from error
        if task != config.model["task"]:
            raise ConfigError(
                f"{SETTING}: {teacher} is of task {task}, the student of task {config.model['task']}; name a"
                " run of the same task"
            )


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

"""What a run read: fingerprints of sets, word vectors, encoder and teacher, compared before it goes on.

A run is identified by the content of its files, not by where they lay.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_arch.config.schema import Config, recipe_of
from qa_arch.data.splits import load_splits
from qa_arch.errors import DataError, RunError
from qa_arch.features.vectors import WordVectors, read_vectors
from qa_arch.models.checkpoint_files import joint_hash, teacher_identity, teacher_record
from qa_arch.provenance import ENCODER, GLOVE, PARENT, TEACHER, encoder_run, inputs_of
from qa_arch.records import CALIBRATION, DEV, MODEL, TRAIN, VECTORS, RunRecord, read_record

SETTINGS = {
    TRAIN: "data.train",
    CALIBRATION: "data.calibration",
    DEV: "data.dev",
    GLOVE: "glove.path",
    ENCODER: "encoder.name",
    TEACHER: "distillation.teacher",
    PARENT: "init_from",
}
"""Input -> the setting that names it."""


def load_sets(config: Config) -> Mapping[str, Any]:
    """Train, calibration and dev of a run, as configured or held out."""
    recipe = recipe_of(config.model)
    if recipe is None:
        return load_splits(config.data)
    return import_module(recipe.data).load_splits(config)


def recorded(folder: Path, record: RunRecord) -> dict[str, str | None]:
    """Input -> hash of what the run in ``folder`` read; None if unknown. Empty if it has read nothing yet."""
    if TRAIN not in record.data:
        return {}
    known: dict[str, str | None] = {
        split: facts.fingerprint for split, facts in record.data.items() if split in SETTINGS
    }
    saved = _saved_vectors(folder)
    if saved is not None or record.setting("glove", "use"):  # random vectors of words are kept, too
        known[GLOVE] = None if saved is None else saved.fingerprint
    if record.encoder is not None:
        known[ENCODER] = record.encoder.run_hash
    if record.teacher is not None:
        known[TEACHER] = record.teacher.fingerprint
    if record.parent is not None:
        known[PARENT] = record.parent.run_hash
    return known


def require_unchanged(
    folder: Path, config: Config, before: Mapping[str, str | None], now: Mapping[str, str]
) -> None:
    """Raise RunError for the first input, named by its file, that is not what the run in ``folder`` read."""
    for name, setting in SETTINGS.items() if before else ():
        closed = name == DEV and not config.data.open_dev  # scored later, and checked there
        # An unknown hash passes; an input that only one of the two has read does not.
        if closed or before.get(name, "") is None or before.get(name) == now.get(name):
            continue
        source: Any = config
        for key in setting.split("."):
            source = getattr(source, key)
        if name == GLOVE:
            source = config.glove.source
        hashes = " and ".join(str(hashes.get(name) or "none")[:8] for hashes in (before, now))
        raise RunError(
            f"{folder}: {setting}: {source} is not what the run has read (hashes {hashes}); restore it, or"
            " train from the beginning with --if-exists replace"
        )


def require_same_inputs(folder: Path, config: Config, record: RunRecord) -> None:
    """``require_unchanged`` of a finished run, whose inputs are read again; DataError for unreadable ones."""
    before, sets, started = recorded(folder, record), load_sets(config), config.init_from
    vectors = _saved_vectors(folder) if before.get(GLOVE) and not started else None
    file = config.glove
    if vectors is not None and (file.path or Path(str(file.source)).is_file()):  # published ones may be gone
        words = vectors.words
        vectors = read_vectors(str(file.source), file.dim, file.backend, words=words, keep=file.keep)
    prints = {split: str(questions.fingerprint) for split, questions in sets.items()}
    glove = None if vectors is None else vectors.fingerprint
    now = inputs_of(prints, glove, None if started else encoder_run(config.encoder.name))
    if started:  # which has encoder and vectors
        now |= {name: str(before[name]) for name in (GLOVE, ENCODER) if before.get(name)}
        now[PARENT] = read_record(started).run_hash
    teachers = config.distillation.teachers
    if teachers and all(map(teacher_record, teachers)):
        now[TEACHER] = joint_hash([teacher_identity(teacher) for teacher in teachers])
    elif before.get(TEACHER):  # a checkpoint, whose version its config may fix
        now[TEACHER] = str(before[TEACHER])
    require_unchanged(folder, config, before, now)


def _saved_vectors(folder: Path) -> WordVectors | None:
    """The vectors that the run keeps; None if there are none, or none that can be read."""
    try:
        return WordVectors.load(folder / MODEL / VECTORS)
    except DataError:
        return None

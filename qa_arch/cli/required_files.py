"""What a config reads, looked for before torch is imported and before anything is read."""

from __future__ import annotations

from pathlib import Path

from qa_arch.config.schema import CORPUS_TASKS, QUESTIONS_WITH, Config
from qa_arch.data import sources
from qa_arch.errors import ConfigError, DataError
from qa_arch.features.packaged_vectors import packaged_files
from qa_arch.pretraining import corpus_splits
from qa_arch.results.record import read_record


def require_files(config: Config) -> None:
    """Raise for the first that is missing: data sets, word vectors, a local encoder, a run of classes.

    DataError for data and vectors, and for data that does not suit the model's task, UnavailableError for
    vectors of a package that is not installed, ConfigError for the encoder, RunError for the run.
    """
    data, task = config.data, config.model["task"]
    if want := QUESTIONS_WITH.get(task):
        sources.require(data.train, want, "data.train")  # before its files, which another model would read
    require_present = corpus_splits.require_present if task in CORPUS_TASKS else sources.require_present
    for setting, source in (
        ("data.train", data.train),
        ("data.calibration", data.calibration),
        ("data.dev", data.dev if data.open_dev else None),
    ):
        if source is not None:
            require_present(source, setting)
    path = config.glove.path if config.glove.use else None
    if path and packaged_files(path) is None and not Path(path).exists():
        raise DataError(f"glove.path: {path} does not exist; check the path, or do without: glove=none")
    name = config.encoder.name if config.encoder.init == "pretrained" else None
    if name and name.startswith(("/", "./", "../", "~")) and not Path(name).is_dir():
        raise ConfigError(f"encoder.name: {name} is no folder; name one with a config.json and weights")
    if config.selection.types:
        read_record(config.selection.types)

"""The files of a run's record: ``run.json`` and ``questions.parquet``, the truth that every table reads.

Neither holds text of the data set: predictions lie beside them and are not committed. A record is
written when the run starts (``running``), after each epoch and at its end, each time whole.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.check import read
from qa_arch.config.files import is_unfinished, write_json, write_with
from qa_arch.errors import ConfigError, RunError
from qa_arch.types.records import SCHEMA, Epoch, Point, RunRecord, SplitFacts

RECORD = "run.json"
QUESTIONS = "questions.parquet"
RECORDS = "records"
"""The folder of an experiment's committed runs."""
MODEL = "model"
"""The folder of a run's weights, its encoder and its tokenizer; what is published has none."""
PRETRAINED = "encoder"
"""The folder within ``MODEL`` of a pre-training run's encoder and tokenizer, as transformers opens them."""
RARE = ("teacher",)
"""Fields that a record has only where they say something."""
ONNX = "onnx"
"""The folder of a run's graph for ONNX Runtime, if ``qa-arch export`` laid one; the record is the run's."""
Runs = Sequence[tuple[Path, RunRecord]]
"""Run folders with their records."""
Globs = str | Sequence[str]
"""One or several folders or globs below ``records/``."""


def write_record(folder: str | Path, record: RunRecord) -> Path:
    """``run.json`` in the folder, written whole or not at all."""
    top = {f.name: _plain(getattr(record, f.name)) for f in fields(record)}
    rare = {name for name in RARE if top[name] is None}
    return write_json(Path(folder) / RECORD, {name: value for name, value in top.items() if name not in rare})


def read_record(folder: str | Path) -> RunRecord:
    """The record in a run folder (or a path to the file itself), of this schema or of the one before.

    RunError names the file, the field and the remedy where it cannot be used.
    """
    path = Path(folder)
    path = path / RECORD if path.is_dir() else path
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such record; is this a run folder?") from None
    except (ValueError, OSError) as error:
        raise RunError(
            f"{path}: not a readable record ({error}); run it again or delete the folder"
        ) from error
    return parse_record(raw, path)


def read_finished(folder: str | Path) -> RunRecord:
    """The record of a run that can answer; RunError where the run is not finished."""
    record = read_record(folder)
    if record.status != "ok":
        raise RunError(
            f"{folder}: the run's status is '{record.status}', only a finished one can answer;"
            " go on with it: qa-arch train --config-from RUN --folder RUN --if-exists resume"
        )
    return record


def parse_record(raw: Any, path: str | Path = RECORD) -> RunRecord:
    """JSON as a record, checked at every depth; ``path`` is named where it is none."""
    if not isinstance(raw, Mapping) or "schema" not in raw:
        raise RunError(f"{path}: not a run record (it has no 'schema')")
    if raw["schema"] not in (1, SCHEMA) or isinstance(raw["schema"], bool):
        raise RunError(
            f"{path}: record of schema {raw['schema']!r}, this version reads {SCHEMA} and 1;"
            " use the qa_arch version that wrote it"
        )
    try:
        return read(RunRecord, _upgraded(raw) if raw["schema"] == 1 else raw)
    except ConfigError as error:
        raise RunError(f"{path}: {error}; score the run again or copy it anew") from None


def find_runs(
    patterns: Sequence[str | Path], *, unreadable: list[str] | None = None
) -> list[tuple[Path, RunRecord]]:
    """Every run at or below paths and globs (``runs/bert-s*``), in the order of paths, each once.

    RunError where a pattern matches nothing, where no run is found, and for a record that cannot be read;
    with ``unreadable`` the last is added to that list and goes on, as long as one record can be read.
    """
    paths: list[Path] = []
    for pattern in map(str, patterns):
        matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))  # noqa: PTH207
        if not matches:
            raise RunError(f"{pattern}: no such run, folder or pattern that matches one")
        for match in map(Path, matches):
            paths += _records_below(match, f"**/{RECORD}") if match.is_dir() else [match]
    runs = []
    for path in dict.fromkeys(paths):
        try:
            runs.append((path.parent, read_record(path)))
        except RunError as error:
            if unreadable is None:
                raise
            unreadable.append(str(error))
    if not runs:
        nothing = f"{', '.join(map(str, patterns))}: holds no {RECORD}; train a model first (qa-arch train)"
        raise RunError("; ".join(unreadable or [nothing]))
    return runs


def recorded(folder: Path, records: Globs) -> Runs:
    """The committed runs of the experiment in ``folder``, in path order, by their place in it."""
    globs = [records] if isinstance(records, str) else records
    patterns = [f"{glob.rstrip('/')}/**/{RECORD}" for glob in globs]
    paths = {path for pattern in patterns for path in _records_below(folder / RECORDS, pattern)}
    return [(path.parent.relative_to(folder), read_record(path)) for path in sorted(paths)]


def _records_below(top: Path, pattern: str) -> list[Path]:
    """The records of runs, in the order of paths. Not those that a model holds, as of the classifier whose
    classes it reads, and not what is being copied."""

    def is_part(folder: Path) -> bool:
        return is_unfinished(folder) or (folder.name == MODEL and (top / folder.parent / RECORD).is_file())

    paths = sorted(top.glob(pattern))
    return [path for path in paths if not any(map(is_part, path.relative_to(top).parents))]


def write_questions(folder: str | Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """One row a question (id, kind, scores, offsets, null odds, windows), compressed, no text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    return write_with(Path(folder) / QUESTIONS, lambda path: pq.write_table(table, path, compression="zstd"))


def read_questions(folder: str | Path) -> dict[str, list[Any]]:
    """The columns that ``write_questions`` wrote; RunError where the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(folder) / QUESTIONS
    if not path.is_file():
        raise RunError(f"{path}: missing; the run did not finish scoring")
    try:
        return pq.read_table(path).to_pydict()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{path}: not readable ({reason}); score the run again (qa-arch evaluate --run) or copy it anew"
        ) from error


def _plain(value: Any) -> Any:
    """A record as JSON has it: below the top, fields that hold their default are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(getattr(value, f.name))
            for f in fields(value)
            if getattr(value, f.name) != (f.default if f.default_factory is MISSING else f.default_factory())
        }
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _upgraded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A record of schema 1, where points, epochs and splits were flat mappings and the threshold a margin."""
    new = {**raw, "schema": SCHEMA}
    margin = new.pop("margin", {})
    if not isinstance(margin, Mapping):
        raise ConfigError("margin: expected a mapping")
    new |= {"threshold": margin} if margin else {}
    if isinstance(raw.get("batch"), Mapping):
        new["batch"] = {"global_size" if key == "global" else key: size for key, size in raw["batch"].items()}
    if isinstance(raw.get("data"), Mapping):
        new["data"] = {split: _nested(SplitFacts, facts) for split, facts in raw["data"].items()}
    if isinstance(raw.get("epochs"), list):
        new["epochs"] = [_nested(Epoch, epoch) for epoch in raw["epochs"]]
    for key in ("scores", "references"):
        if isinstance(raw.get(key), Mapping):
            new[key] = {split: _nested_points(points) for split, points in raw[key].items()}
    return new


def _nested(kind: Any, flat: Any) -> Any:
    return kind.nest(flat) if isinstance(flat, Mapping) else flat


def _nested_points(points: Any) -> Any:
    if not isinstance(points, Mapping):
        return points
    return {name: _nested(Point, point) for name, point in points.items()}

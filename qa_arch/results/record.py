"""The record of a run: ``run.json`` and ``questions.parquet``, the truth that every table reads.

Neither holds text of the data set: predictions lie beside them and are not committed. A record is
written when the run starts (``running``), after each epoch and at its end, each time whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from qa_arch.config.files import write_json, write_with
from qa_arch.errors import RunError

SCHEMA_VERSION = 1
RECORD = "run.json"
QUESTIONS = "questions.parquet"
MODEL = "model"
"""The folder of a run's weights, its encoder and its tokenizer; what is published has none."""
Status = Literal["running", "ok", "oom", "failed", "killed"]
_SHAPES = {"dict": dict, "list": list}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything needed to tell what a run was and what came out."""

    schema: int = SCHEMA_VERSION
    status: Status
    name: str
    """The experiment."""
    model: str
    seed: int
    config: dict[str, Any]
    config_hash: str
    commit: str | None = None
    dirty: bool | None = None
    """Whether the checkout had changes that ``commit`` does not hold; None outside a checkout."""
    created: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """By split: name, fingerprint, protocol, questions, unanswerable, titles, windows, ..."""
    versions: dict[str, str] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, int | None] = field(default_factory=dict)
    """micro, accumulate, devices and their product, global (windows in one optimizer step). Under a token
    budget ``tokens`` is that of a micro batch, and micro and global, which vary, are None."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """total, trainable, word_vectors (fixed, apart) and blocks."""
    seconds: dict[str, float] = field(default_factory=dict)
    examples_per_second: float | None = None
    peak_memory_mb: float | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    margin: dict[str, Any] = field(default_factory=dict)
    """The null margin: ``value`` and the split it was ``fitted_on``."""
    references: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By split, then by heuristic: what needs no learning scores on the same questions."""
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By split, then by margin (``margin_0``, ``calibrated``, ``oracle``, ``never_null``)."""
    error: str | None = None
    members: list[str] = field(default_factory=list)
    """The runs, each with its config hash, that an ensemble or another decoding is made of."""
    strategy: str | None = None
    """``single``, ``ddp``, ``ddp_spawn``, ``fsdp``, ``deepspeed``: how the devices trained together."""
    precision: str | None = None
    """What the products were computed in, where the config leaves it to the machine as well."""
    optimizer_bits: int | None = None

    def write(self, folder: str | Path) -> Path:
        return write_json(Path(folder) / RECORD, asdict(self))


def read_record(folder: str | Path) -> RunRecord:
    """The record in a run folder (or a path to the file itself); RunError where it cannot be used."""
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
    if not isinstance(raw, Mapping) or "schema" not in raw:
        raise RunError(f"{path}: not a run record (it has no 'schema')")
    if raw["schema"] != SCHEMA_VERSION:
        raise RunError(
            f"{path}: record of schema {raw['schema']!r}, this version reads {SCHEMA_VERSION};"
            " use the qa_arch version that wrote it"
        )
    known = {f.name for f in fields(RunRecord)}
    needed = {"status", "name", "model", "seed", "config", "config_hash"}
    if wrong := sorted(set(raw) - known) or sorted(needed - set(raw)):
        raise RunError(f"{path}: unknown or missing fields: {', '.join(wrong)}")
    if raw["status"] not in get_args(Status):
        raise RunError(f"{path}: status {raw['status']!r} is none of {', '.join(get_args(Status))}")
    for f in fields(RunRecord):
        shape = _SHAPES.get(str(f.type).partition("[")[0])
        if shape is not None and not isinstance(raw.get(f.name, shape()), shape):
            raise RunError(f"{path}: {f.name} is no {shape.__name__}; score the run again or copy it anew")
    return RunRecord(**raw)


def find_records(roots: Sequence[str | Path]) -> list[tuple[Path, RunRecord]]:
    """Every record at or below the given folders, in path order."""
    paths: list[Path] = []
    for root in map(Path, roots):
        if root.is_file():
            paths.append(root)
        elif root.is_dir():
            paths += sorted(root.rglob(RECORD))
        else:
            raise RunError(f"{root}: no such run or folder")
    return [(path.parent, read_record(path)) for path in dict.fromkeys(paths)]


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
        said = str(error).splitlines()[0]
        raise RunError(
            f"{path}: not readable ({said}); score the run again (qa-arch evaluate --run) or copy it anew"
        ) from error

"""Reader of offline wandb runs, from the log that ``wandb sync`` uploads.

The file has a header of seven bytes and then LevelDB's log format: blocks of 32 KiB with chunks, each with
a checksum (4 bytes), a length (2) and a type (1): a full record, or its first, middle or last chunk.
"""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, FILE_HEADER, CHUNK_HEADER = 32_768, 7, 7
FULL, FIRST, LAST = 1, 2, 4


@dataclass
class Offline:
    """One offline run: what it was given (name, tags), what it logged, its artifacts (type -> file names)."""

    given: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, list[str]] = field(default_factory=dict)
    exit_code: int | None = None
    """None if the run did not finish."""


def offline_runs(folder: Path, timeout: float = 60.0) -> list[Offline]:
    """wandb runs below a run folder, by name. Waits for their ends, which are written after ``finish``."""
    deadline = time.monotonic() + timeout
    while True:
        runs = [_read(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
        if time.monotonic() > deadline or all(run.exit_code is not None for run in runs):
            return runs
        time.sleep(0.2)


def _records(data: bytes) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    start, content = FILE_HEADER, b""
    while start + CHUNK_HEADER <= len(data):
        left = BLOCK - start % BLOCK
        if left < CHUNK_HEADER:
            start += left
            continue
        _, length, kind = struct.unpack("<IHB", data[start : start + CHUNK_HEADER])
        if kind == 0:
            return
        start += CHUNK_HEADER
        chunk = data[start : start + length]
        start += length
        content = chunk if kind in (FULL, FIRST) else content + chunk
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            yield record


def _read(path: Path) -> Offline:
    run = Offline()
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            names = ("display_name", "run_group", "project", "entity", "job_type", "notes", "run_id")
            run.given = {name: getattr(record.run, name) for name in names} | {"tags": [*record.run.tags]}
            run.config |= _items(record.run.config.update)
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "artifact":
            files = [entry.path for entry in record.artifact.manifest.contents]
            run.artifacts.setdefault(record.artifact.type, []).extend(files)
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

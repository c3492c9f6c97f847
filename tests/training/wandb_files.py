"""What an offline run of wandb holds: its records, read from the log that ``wandb sync`` sends.

The file is LevelDB's log format behind seven bytes of its own: blocks of 32 KiB, each piece with a
checksum (4 bytes), a length (2) and whether it is whole or the first, a middle or the last one (1).
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, OWN, HEAD = 32_768, 7, 7
WHOLE, FIRST, LAST = 1, 2, 4


@dataclass
class Offline:
    """One offline run."""

    name: str = ""
    group: str = ""
    project: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, list[str]] = field(default_factory=dict)
    """Type -> names of the files."""
    exit_code: int | None = None
    """None: the run was not finished."""


def offline_runs(folder: Path, patience: float = 60.0) -> list[Offline]:
    """The runs below a run folder, in the order of their names.

    wandb's service writes the end of a log a little after ``finish`` returned: it is waited for.
    """
    last = time.monotonic() + patience
    while True:
        runs = [_read(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]
        if time.monotonic() > last or all(run.exit_code is not None for run in runs):
            return runs
        time.sleep(0.2)


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = OWN
    while at + HEAD <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        if kind == 0:
            return
        yield kind, data[at + HEAD : at + HEAD + length]
        at += HEAD + length


def _records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    whole = b""
    for kind, piece in _pieces(path.read_bytes()):
        whole = piece if kind in (WHOLE, FIRST) else whole + piece
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record


def _read(path: Path) -> Offline:
    run = Offline()
    for record in _records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.name, run.group, run.project = (
                record.run.display_name,
                record.run.run_group,
                record.run.project,
            )
            run.tags = list(record.run.tags)
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

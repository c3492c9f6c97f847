"""What a file of answers was made from: data, models and settings, as plain JSON that can be compared."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qa_arch import __version__
from qa_arch.config.identity import files_hash
from qa_arch.data.examples import clip
from qa_arch.errors import DataError
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint
from qa_arch.models.onnx_model import GRAPH
from qa_arch.models.store import TOKENIZER, VECTORS
from qa_arch.results.record import MODEL, ONNX, read_record
from qa_arch.serving.json_lines import PART_BYTES, PART_LINES
from qa_arch.types.records import Seconds

HEAD = 1 << 20
"""Bytes of the data file whose hash identifies it, together with its size and time of change."""


def origin_of(data: str, models: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that the bytes of the answers depend on, but for the device; an infinite number is a text.

    Raises DataError for data that cannot be read, RunError for a model that is no run.
    """
    plain = {
        name: str(value) if value in (math.inf, -math.inf) else value for name, value in settings.items()
    }
    return {
        "data": _data(Path(data)),
        "models": [_model(model, engine=str(settings.get("engine"))) for model in models],
        "settings": {**plain, "part_lines": PART_LINES, "part_bytes": PART_BYTES, "qa_arch": __version__},
    }


def _data(path: Path) -> dict[str, Any]:
    """Name, size, time of change and the hash of the first MiB: as cheap for a large file as for a small."""
    try:
        with path.open("rb") as file:
            facts, head = os.fstat(file.fileno()), file.read(HEAD)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check path and permissions") from None
    digest = hashlib.sha256(head).hexdigest()
    return {"name": path.name, "size": facts.st_size, "modified": facts.st_mtime_ns, "head_sha256": digest}


def _model(source: str, *, engine: str) -> dict[str, Any]:
    """Name and hash of a run: weights, tokenizer and vectors, the graph beside it if ``engine`` may read it,
    config, and what was fitted after training; of a downloaded checkpoint its revision.

    Raises RunError where it is neither.
    """
    if names_checkpoint(source):
        return {"name": source, "revision": open_checkpoint(source).revision}
    run, record = Path(source), read_record(source)
    # Without what evaluating the run changes, and no answer depends on.
    settings = replace(record, scores={}, references={}, data={}, seconds=Seconds())
    digest = hashlib.sha256(repr(settings).encode())
    digest.update(files_hash(run, _model_files(run, engine)).encode())
    return {"name": run.resolve().name, "sha256": digest.hexdigest()}


def _model_files(run: Path, engine: str) -> list[Path]:
    """Weights, tokenizer and vectors of a run; of an exported graph these lie beside its record."""
    graph = run / GRAPH
    folders = [run / MODEL] if engine == "torch" else [run / MODEL, run / ONNX]
    if graph.is_file():
        folders = [run / TOKENIZER, run / VECTORS]
    inside = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [*inside, *([graph] if graph.is_file() else [])]


def first_change(old: Any, new: Any, name: str = "") -> str | None:
    """The first thing in which two origins differ, in words: ``another data.size (12, now 13)``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*new, *old])
        changes = (first_change(old.get(key), new.get(key), f"{name}.{key}".lstrip(".")) for key in keys)
        return next(filter(None, changes), None)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return next(filter(None, (first_change(a, b, name) for a, b in zip(old, new, strict=True))), None)
    return None if old == new else f"another {name} ({clip(str(old))}, now {clip(str(new))})"

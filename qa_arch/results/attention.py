"""``attention.npz`` beside a record: what a match-LSTM looked at, for a few chosen questions; no text."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qa_arch.config.files import write_with
from qa_arch.errors import RunError

ATTENTION = "attention.npz"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """One question's window: the one that holds its answer, or else its first."""

    id: str
    fingerprint: str
    """Of the question set."""
    weights: npt.NDArray[np.float16]
    """(2, C, Q + 1): direction (forward, backward), unit of the passage, unit of the question; the last
    is the word "nothing". Sums to 1 over the question."""
    context: npt.NDArray[np.int32]
    """(C, 2) characters of each unit in the passage, end exclusive."""
    question: npt.NDArray[np.int32]
    """(Q, 2) the same in the question."""


def write_attention(folder: Path, maps: Sequence[AttentionMap]) -> Path:
    """Write ``maps`` and keep those of other questions that the file already has."""
    by_id = {item.id: item for item in read_attention(folder)} | {item.id: item for item in maps}
    about = {"format": FORMAT, "questions": [[item.id, item.fingerprint] for item in by_id.values()]}
    arrays: dict[str, npt.NDArray] = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for number, item in enumerate(by_id.values()):
        arrays |= {f"{name}_{number}": getattr(item, name) for name in ("weights", "context", "question")}

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    return write_with(folder / ATTENTION, write)


def read_attention(folder: Path) -> list[AttentionMap]:
    """The kept maps, none where there is no file; RunError where it cannot be used."""
    path = folder / ATTENTION
    if not path.is_file():
        return []
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            if about["format"] != FORMAT:
                raise RunError(f"{path}: format {about['format']!r}, this version reads {FORMAT}; delete it")
            return [
                AttentionMap(
                    id_, print_, *(arrays[f"{key}_{n}"] for key in ("weights", "context", "question"))
                )
                for n, (id_, print_) in enumerate(about["questions"])
            ]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{path}: cannot be read ({error}); delete it and call qa-arch predict --keep-attention again"
        ) from error

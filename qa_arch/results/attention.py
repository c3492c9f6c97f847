"""``attention.npz`` beside a record: what a model looked at, for a few chosen questions; no text."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qa_arch.config.files import parse_json, replacing
from qa_arch.errors import RunError

ATTENTION = "attention.npz"
FORMAT = 2
"""Files of format 1 have the match-LSTM's attention alone and are read as well."""
DIRECTIONS = ("match-LSTM, forward", "match-LSTM, backward")


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """One question's window: the one that holds its answer, or else its first."""

    id: str
    fingerprint: str
    """Of the question set."""
    weights: npt.NDArray[np.floating]
    """(M, C, Q + 1), float16 in the file: map, unit of the passage that looks, unit of the question; the last
    is all else: the match-LSTM's word "nothing", or whatever else an encoder looks at. Each
    unit's sum to 1."""
    context: npt.NDArray[np.int32]
    """(C, 2) characters of each unit in the passage, end exclusive."""
    question: npt.NDArray[np.int32]
    """(Q, 2) the same in the question."""
    labels: tuple[str, ...] = DIRECTIONS
    """(M,) what each map is: a direction of the match-LSTM, or a layer and head of the encoder."""
    encoder: bool = False
    """Whether the encoder looks, and not the match-LSTM."""

    @property
    def key(self) -> tuple[str, bool]:
        """What a file has once."""
        return self.id, self.encoder


def write_attention(folder: Path, maps: Sequence[AttentionMap]) -> Path:
    """Write ``maps`` and keep those that the file already has of other questions, or of the other source."""
    by_key = {item.key: item for item in (*read_attention(folder), *maps)}
    about = {
        "format": FORMAT,
        "questions": [[item.id, item.fingerprint, item.labels, item.encoder] for item in by_key.values()],
    }
    arrays: dict[str, npt.NDArray] = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for number, item in enumerate(by_key.values()):
        arrays |= {
            f"weights_{number}": item.weights.astype(np.float16),
            f"context_{number}": item.context,
            f"question_{number}": item.question,
        }
    with replacing(folder / ATTENTION) as path, path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return folder / ATTENTION


def read_attention(folder: Path) -> list[AttentionMap]:
    """The kept maps, none where there is no file; RunError where it cannot be used."""
    path = folder / ATTENTION
    if not path.is_file():
        return []
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = parse_json(arrays["about"].tobytes())
            if about["format"] not in (1, FORMAT):
                raise RunError(
                    f"{path}: format {about['format']!r}, this version reads up to {FORMAT}; delete it"
                )
            return [_read(arrays, number, *entry) for number, entry in enumerate(about["questions"])]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{path}: cannot be read ({error}); delete it and call qa-arch predict --keep-attention again"
        ) from error


def _read(
    arrays: Mapping[str, npt.NDArray],
    number: int,
    id_: str,
    fingerprint: str,
    labels: Sequence[str] = DIRECTIONS,
    encoder: bool = False,
) -> AttentionMap:
    weights, context, question = (arrays[f"{name}_{number}"] for name in ("weights", "context", "question"))
    return AttentionMap(id_, fingerprint, weights, context, question, tuple(labels), encoder)

"""Reading the official prediction, n-best and no-answer-probability files."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.errors import DataError
from qa_arch.files import loads, read_unpacked

_DIGITS = 24
"""Digits of a number shown in a message: it may have thousands."""


@dataclass(frozen=True, slots=True)
class PredictionFile:
    """The contents of an official file: one value per question id."""

    path: Path
    values: dict[str, Any]
    duplicates: tuple[str, ...]
    """Ids that occur more than once; the last value counts, as in the official script."""


def read_predictions(path: str | Path) -> PredictionFile:
    """Question id -> answer text ("" = no answer).

    Raises DataError naming the file and the id of an invalid value.
    """
    file = _read(path, 'an object {"question id": "answer text"}; qa-arch adopt reads other formats')
    return _checked(file, lambda value: type(value) is str, "prediction", 'a string ("" = no answer)')


def read_null_scores(path: str | Path) -> PredictionFile:
    """Question id -> no-answer probability or null odds. Raises DataError as above, also for NaN."""

    def is_number(value: Any) -> bool:
        if type(value) is int:
            return abs(value) <= sys.float_info.max
        return type(value) is float and value == value

    file = _read(path, 'an object {"question id": number}')
    return _checked(file, is_number, "no-answer score", "a number")


def read_types(path: str | Path) -> dict[str, str]:
    """Question id -> class (``MAIN:sub``), as ``qa-arch types`` writes it. Raises DataError as above."""
    file = _read(path, 'an object {"question id": "class"}')
    if not file.values:
        raise DataError(f"{path}: holds no classes; write it with qa-arch types")
    return _checked(file, lambda value: type(value) is str, "class", "a string such as NUM:date").values


def read_nbest(path: str | Path) -> dict[str, dict[str, float]]:
    """Question id -> candidate text -> probability, of an official n-best file. Raises DataError as above."""
    candidates: dict[str, dict[str, float]] = {}
    for id_, entries in _read(path, 'an object {"question id": [candidates]}').values.items():
        if not isinstance(entries, list) or not all(map(_is_candidate, entries)):
            raise DataError(
                f'{path}: {shown_id(id_)}: a candidate has no "text" and "probability" (0 to 1); give the'
                " nbest_predictions.json that belongs to the predictions"
            )
        # Among equal texts the first and most probable candidate counts.
        candidates[id_] = {entry["text"]: float(entry["probability"]) for entry in reversed(entries)}
    return candidates


def _is_candidate(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        return False
    probability = entry.get("probability")
    if isinstance(probability, bool) or not isinstance(probability, float | int):
        return False
    return 0 <= probability <= 1


def _checked(file: PredictionFile, valid: Callable[[Any], bool], what: str, wanted: str) -> PredictionFile:
    for id_, value in file.values.items():
        if not valid(value):
            raise DataError(f"{file.path}: {shown_id(id_)}: the {what} is {_kind(value)}; give {wanted}")
    return file


def _read(path: str | Path, expected: str) -> PredictionFile:
    duplicates: list[str] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicates.extend(key for key, count in counts.items() if count > 1)
        return values

    try:
        content = loads(read_unpacked(path).decode("utf-8-sig"), object_pairs_hook=build)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}); expected {expected}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds {_kind(content)}; expected {expected}")
    return PredictionFile(Path(path), content, tuple(duplicates))


def shown_id(id_: str) -> str:
    """The id itself, or its ``repr`` if it is blank or not printable."""
    return id_ if id_.isprintable() and id_.strip() else repr(id_)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    if type(value) in (int, float):
        text = str(value)
        return f"the number {text if len(text) <= _DIGITS else f'{text[:_DIGITS]}…'}"
    return names[type(value)]

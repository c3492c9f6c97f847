"""Reader of question pairs for paraphrase detection: tab-separated files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qa_arch.errors import DataError


@dataclass(frozen=True, slots=True)
class Pair:
    """Two questions and whether they are paraphrases."""

    first: str
    second: str
    paraphrase: bool | None
    """None for an unlabelled file."""


def read_pairs(path: str | Path) -> tuple[Pair, ...]:
    """Read pairs: ``first<TAB>second`` per line, or ``first<TAB>second<TAB>0|1`` on all lines.

    Raises DataError naming file and line.
    """
    pairs: list[Pair] = []
    # Only a line feed ends a pair: str.splitlines would also cut at U+2028 or U+0085 inside a question.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("\t")]
        place = f"{path}: line {number}"
        if len(fields) not in (2, 3) or not all(fields[:2]):
            raise DataError(f"{place}: expected two questions, and optionally a label, between tabs")
        if len(fields) == 3 and fields[2] not in ("0", "1"):
            raise DataError(f"{place}: the label is {fields[2]!r}; write 1 for a paraphrase, else 0")
        label = fields[2] == "1" if len(fields) == 3 else None
        if pairs and (label is None) != (pairs[0].paraphrase is None):
            raise DataError(f"{place}: some lines have a label and some have none; label all or none")
        pairs.append(Pair(fields[0], fields[1], label))
    if not pairs:
        raise DataError(f"{path}: holds no pair of questions")
    return tuple(pairs)


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 (byte {error.start}); save it as UTF-8") from error

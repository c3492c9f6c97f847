"""Documents of UTF-8 text files, read in constant memory: a blank line ends a document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qa_arch.data.input_files import packed_format, wide_encoding
from qa_arch.errors import DataError

LONGEST = 1 << 20
"""Bytes of a document; a longer one is cut, after a line or in a longer line at white space."""


def documents(path: Path) -> Iterator[str]:
    """Documents of ``path``: its lines up to a blank line, joined by line breaks.

    A document of more than ``LONGEST`` bytes is cut into several. Raises DataError that names the byte for a
    file that is not UTF-8 text.
    """
    lines: list[str] = []
    size = 0
    for line, whole in _lines(path):
        if text := line.rstrip():
            lines.append(text)
            size += len(line.encode())
        if lines and (not text or not whole or size >= LONGEST):
            yield "\n".join(lines)
            lines, size = [], 0
    if lines:
        yield "\n".join(lines)


def _lines(path: Path) -> Iterator[tuple[str, bool]]:
    """(line or part of a line, whether the line ends there); a part has at most ``LONGEST`` bytes."""
    position, rest = 0, b""
    try:
        with path.open("rb") as file:
            _refuse_packed(path, file.read(8))
            file.seek(0)
            while chunk := file.readline(LONGEST - len(rest)):
                data = rest + chunk
                whole = len(data) < LONGEST or data.endswith(b"\n")
                cut = len(data) if whole else _cut(data)
                yield _decode(path, data[:cut], position), whole
                position, rest = position + cut, data[cut:]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if rest:
        yield _decode(path, rest, position), True


def _cut(data: bytes) -> int:
    """Where the part of a line ends: after the last space or tab, else before the last character."""
    space = max(data.rfind(b" "), data.rfind(b"\t")) + 1
    if space:
        return space
    end = len(data) - 1
    while end > len(data) - 4 and data[end] & 0xC0 == 0x80:  # continuation bytes of UTF-8
        end -= 1
    return end


def _decode(path: Path, data: bytes, position: int) -> str:
    if b"\0" in data:
        at = position + data.index(b"\0")
        raise DataError(f"{path}: byte {at} is zero: this is a binary file, not text; name a UTF-8 text file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {position + error.start} (0x{data[error.start]:02x}) is not UTF-8; name a text"
            " file, or save it as UTF-8 (from Latin-1: iconv -f ISO-8859-1 -t UTF-8)"
        ) from None
    return text.removeprefix("\ufeff") if position == 0 else text


def _refuse_packed(path: Path, head: bytes) -> None:
    if name := packed_format(head):
        raise DataError(f"{path}: is a {name} file, not text; unpack or convert it first")
    if name := wide_encoding(head):
        raise DataError(f"{path}: is {name}, not UTF-8; convert it (iconv -f {name} -t UTF-8)")

"""Columns of integers in one safetensors file: appended piece by piece, read back memory-mapped.

The ``safetensors`` package writes whole tensors. Here the header is written last, when the lengths are known:
the first column goes straight into the file, the others behind it by way of temporary files.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

_HEADER = 4096
"""Bytes of the header, filled up with spaces as the format allows."""
_ALIGNMENT = 8
_CODES = {"uint16": "U16", "int32": "I32", "int64": "I64"}
_TYPES = {code: type_ for type_, code in _CODES.items()}


class ColumnWriter:
    """Columns of a file that is being written; see ``writing``."""

    def __init__(self, files: Mapping[str, BinaryIO], types: Mapping[str, str]) -> None:
        self.files, self.types = files, types
        self.lengths, self.checksums = dict.fromkeys(types, 0), dict.fromkeys(types, 0)

    def append(self, column: str, values: ArrayLike) -> None:
        """Add ``values`` at the end of ``column``."""
        array = np.asarray(values, self.types[column])
        self.files[column].write(array.tobytes())
        self.lengths[column] += array.size
        self.checksums[column] = zlib.crc32(array.tobytes(), self.checksums[column])

    def align(self) -> None:
        """Fill every column up with zeros to a multiple of 8 bytes, so that the next one is aligned."""
        for column, type_ in self.types.items():
            width = np.dtype(type_).itemsize
            self.append(column, [0] * (-self.lengths[column] % (_ALIGNMENT // width)))

    def header(self) -> dict[str, Any]:
        """The header of the format, with a checksum of each column."""
        sums = {f"crc32 of {column}": str(checksum) for column, checksum in self.checksums.items()}
        header: dict[str, Any] = {"__metadata__": sums}
        begin = 0
        for column, type_ in self.types.items():
            length = self.lengths[column]
            end = begin + length * np.dtype(type_).itemsize
            header[column] = {"dtype": _CODES[type_], "shape": [length], "data_offsets": [begin, end]}
            begin = end
        return header


@contextmanager
def writing(path: Path, types: Mapping[str, str]) -> Iterator[ColumnWriter]:
    """Write ``path`` with columns name -> ``uint16``, ``int32`` or ``int64``, in constant memory.

    A column whose bytes are no multiple of 8 ends in zeros.
    """
    first, *others = types
    with ExitStack() as stack:
        target = stack.enter_context(path.open("wb"))
        target.write(b" " * _HEADER)
        spools = {name: stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for name in others}
        writer = ColumnWriter({first: target, **spools}, types)
        yield writer
        writer.align()
        for spool in spools.values():
            spool.seek(0)
            shutil.copyfileobj(spool, target)
        target.seek(0)
        target.write((_HEADER - 8).to_bytes(8, "little") + json.dumps(writer.header()).encode())


def mapped(path: Path) -> dict[str, NDArray[Any]]:
    """Columns of ``path`` as views of the mapped file. Raises ValueError, KeyError or OSError for a damaged
    one."""
    with path.open("rb") as file:
        header = json.loads(file.read(_HEADER)[8:])
    sums = header.pop("__metadata__")
    columns = {column: _mapped(path, **entry) for column, entry in header.items()}
    for column, values in columns.items():
        if sums[f"crc32 of {column}"] != str(zlib.crc32(values.data)):
            raise ValueError(f"the checksum of {column} does not match its content")
    return columns


def _mapped(path: Path, dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    return np.memmap(path, _TYPES[dtype], "r", _HEADER + data_offsets[0], tuple(shape))

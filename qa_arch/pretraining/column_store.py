"""Columns of integers in one safetensors file: appended piece by piece, read back memory-mapped.

``safetensors`` itself writes whole tensors. Here the header is left blank until the lengths are known: the
first column goes straight into the file, the others through temporary files behind it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_HEADER = 4096
"""Bytes of the header, padded with spaces as the format allows."""
_CODES = {"uint16": "U16", "int32": "I32", "int64": "I64"}
_ALIGNMENT = 8


class ColumnWriter:
    """Appends to columns, in any order; see ``writing``."""

    def __init__(self, files: Mapping[str, Any], types: Mapping[str, str]) -> None:
        self._files, self._types = files, types
        self.checksums = dict.fromkeys(types, 0)

    def append(self, column: str, values: ArrayLike) -> None:
        """Add ``values`` at the end of ``column``."""
        data = np.ascontiguousarray(values, self._types[column]).tobytes()
        self._files[column].write(data)
        self.checksums[column] = zlib.crc32(data, self.checksums[column])


@contextmanager
def writing(path: Path, types: Mapping[str, str]) -> Iterator[ColumnWriter]:
    """Write ``path`` with columns name -> ``uint16``, ``int32`` or ``int64``, in constant memory.

    A column whose bytes are no multiple of 8 is filled up with zeros, so that the next is aligned.
    """
    first, *others = types
    with ExitStack() as stack:
        target = stack.enter_context(path.open("wb"))
        target.write(b" " * _HEADER)
        files = {first: target}
        for name in others:
            files[name] = stack.enter_context(tempfile.TemporaryFile(dir=path.parent))
        writer = ColumnWriter(files, types)
        yield writer
        header: dict[str, Any] = {"__metadata__": {f"crc32.{n}": str(c) for n, c in writer.checksums.items()}}
        begin = 0
        for name, type_ in types.items():
            if name != first:
                files[name].seek(0)
                shutil.copyfileobj(files[name], target)
            target.write(bytes(-target.tell() % _ALIGNMENT))
            end = target.tell() - _HEADER
            shape = [(end - begin) // np.dtype(type_).itemsize]
            header[name] = {"dtype": _CODES[type_], "shape": shape, "data_offsets": [begin, end]}
            begin = end
        target.seek(0)
        target.write((_HEADER - 8).to_bytes(8, "little") + json.dumps(header).encode())


def mapped(path: Path) -> dict[str, NDArray]:
    """Columns of ``path`` as views of the mapped file. Raises ValueError or OSError if it is damaged."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size != _HEADER - 8:
            raise ValueError("it has no header")
        header = json.loads(file.read(size))
    checksums = header.pop("__metadata__")
    columns = {}
    for name, entry in header.items():
        (length,) = entry["shape"]
        type_ = next(type_ for type_, code in _CODES.items() if code == entry["dtype"])
        values = np.memmap(path, type_, "r", _HEADER + entry["data_offsets"][0], length) if length else np.zeros(0, type_)
        columns[name] = values
    return columns

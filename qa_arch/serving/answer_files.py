"""Where answers go, a part at a time: standard output, or a file that survives a kill at any moment.

Answers are appended to ``OUT.partial``, each part synced to disk, and the whole file is renamed to ``OUT``.
``OUT.origin.json`` says what they were made from: an unfinished file is continued with the same data,
models and settings only. Lines are answered in the same parts however often the work is interrupted, so
that the bytes are those of an uninterrupted call.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from qa_arch.config.files import write_json
from qa_arch.errors import QaArchError, RunError
from qa_arch.serving.json_lines import STANDARD, AnsweredPart, Part
from qa_arch.serving.origin import first_change
from qa_arch.system import lock

IfExists = Literal["resume", "replace", "fail"]
ORIGIN = ".origin.json"


class StandardOutput:
    """Answers on standard output, flushed part by part."""

    lines = 0

    def resume(self, parts: Iterator[Part]) -> Iterator[Part]:
        """All parts: what was written before is out of reach."""
        return parts

    def append(self, part: AnsweredPart) -> None:
        sys.stdout.buffer.write(part.content)
        sys.stdout.buffer.flush()
        self.lines += part.lines

    def finish(self) -> None:
        """There is nothing left to do."""


class AnswerFile:
    """``OUT.partial``, which grows part by part and is renamed to ``OUT`` at the end."""

    def __init__(self, path: Path, origin: Mapping[str, Any] | None) -> None:
        self.path, self.partial, self.sidecar = path, _sibling(path, ".partial"), _sibling(path, ORIGIN)
        self.origin = origin
        self.lines = 0
        self._file: BinaryIO | None = None

    def existing(self) -> Path | None:
        """The unfinished file, else the finished, else None."""
        return next((path for path in (self.partial, self.path) if path.exists()), None)

    def remove(self) -> None:
        """Remove all files; their origin last, so that none is ever taken for what it is not."""
        for path in (self.path, self.partial, self.sidecar):
            path.unlink(missing_ok=True)

    def require_same_origin(self, existing: Path) -> None:
        """Raise RunError unless the answers in ``existing`` are known to be a part of those wanted."""
        remedy = "--if-exists replace starts again; or name another --out"
        if self.origin is None:
            raise RunError(f"{existing}: already exists, and data from a pipe cannot be resumed; {remedy}")
        try:
            old = json.loads(self.sidecar.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RunError(
                f"{existing}: already exists, and no {self.sidecar.name} says what it was made from; {remedy}"
            ) from None
        if change := first_change(old, self.origin):
            raise RunError(f"{existing}: was made with {change}; {remedy}")

    def resume(self, parts: Iterator[Part]) -> Iterator[Part]:
        """``parts`` without those whose lines are all in the file, which is cut behind the last of these."""
        if not self.partial.exists():  # first the origin: answers of unknown origin could not be resumed
            write_json(self.sidecar, self.origin)
        self.partial.touch()
        self._file = file = self.partial.open("r+b")
        end, rest = 0, chain[Part]()
        for part in parts:
            written = list(islice(file, len(part.lines)))
            if len(written) < len(part.lines) or not written[-1].endswith(b"\n"):
                rest = chain([part], parts)
                break
            end += sum(map(len, written))
            self.lines += len(part.lines)
        file.seek(end)
        file.truncate()
        return rest

    def append(self, part: AnsweredPart) -> None:
        assert self._file is not None
        try:
            self._file.write(part.content)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise QaArchError(
                f"{self.partial}: cannot be written ({error.strerror}); the parts before are safe: make room"
                " and give the same command again"
            ) from error
        self.lines += part.lines

    def finish(self) -> None:
        self.close()
        self.partial.replace(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@contextmanager
def open_output(
    out: str, origin: Mapping[str, Any] | None, if_exists: IfExists
) -> Iterator[AnswerFile | StandardOutput | None]:
    """Where answers go: a file that no other process writes to meanwhile; None where it is finished.

    ``origin`` is None for data that cannot be read again. Raises RunError where a file is in the way.
    """
    if out == STANDARD:
        yield StandardOutput()
        return
    path = Path(out)
    target = AnswerFile(path, origin)
    with lock.hold(path.parent, path.name, name=f".{path.name}.lock"):
        if if_exists == "replace":
            target.remove()
        existing = target.existing()
        if existing is not None:
            if if_exists == "fail":
                raise RunError(
                    f"{existing}: already exists; --if-exists resume continues it, --if-exists replace starts"
                    " again"
                )
            target.require_same_origin(existing)
        try:
            yield None if existing == path else target
        finally:
            target.close()


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)

"""``hub:NAME[@REVISION][:COLUMN[:CONFIG]]`` as a stream of documents, through ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.data.input_files import content_hash
from qa_arch.errors import DataError, UnavailableError

SPLIT = "train"


@dataclass(frozen=True)
class HubTexts:
    """A column of a data set whose rows are documents; nothing is downloaded before these are read."""

    source: str
    """As it was spelled, for messages."""
    column: str
    builder: Any

    @property
    def identity(self) -> str:
        """Files of the data set: on the hub their names at a commit, in a local folder their content."""
        files = (self.builder.config.data_files or {}).get(SPLIT, [self.builder.hash])
        hashes = [content_hash(Path(file)) if Path(file).is_file() else str(file) for file in files]
        return "\0".join([self.column, *hashes])

    def documents(self) -> Iterator[str]:
        """The texts of the column in order, blank ones left out.

        Raises DataError for a column that is not there, UnavailableError where the stream breaks off.
        """
        for number, row in enumerate(_streamed(self.builder, self.source)):
            text = row.get(self.column)
            if not isinstance(text, str):
                columns = ", ".join(row)
                raise DataError(
                    f"hub:{self.source}: row {number} has no text in column '{self.column}';"
                    f" name one with text as hub:NAME:COLUMN (columns: {columns})"
                )
            if text.strip():
                yield text


def open_dataset(source: str) -> HubTexts:
    """The data set of ``NAME[@REVISION][:COLUMN[:CONFIG]]``; the column defaults to ``text``.

    NAME may be a local folder that ``datasets`` loads. Raises DataError for a wrong spelling or a data set
    without a split train, UnavailableError where the hub cannot be reached.
    """
    place, *settings = source.split(":")
    name, _, revision = place.partition("@")
    if not name or len(settings) > 2:
        raise DataError(f"hub:{source}: write hub:NAME, hub:NAME:COLUMN or hub:NAME:COLUMN:CONFIG")
    column, config = (*settings, "", "")[:2]
    builder = _builder(source, name, config or None, revision or None)
    splits = builder.config.data_files
    if splits is not None and SPLIT not in splits:  # None: offline, a data set from the cache
        raise DataError(f"hub:{source}: has no split '{SPLIT}' (it has {', '.join(map(str, splits))})")
    return HubTexts(source, column or "text", builder)


def _builder(source: str, name: str, config: str | None, revision: str | None) -> Any:
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise UnavailableError(f"hub:{source}: datasets is missing ({error}); pip install datasets") from None
    try:
        return load_dataset_builder(name, config, revision=revision)
    except Exception as error:  # the clients of the hub raise errors of many libraries
        raise _unavailable(source, error) from error


def _streamed(builder: Any, source: str) -> Iterator[dict[str, Any]]:
    try:
        yield from builder.as_streaming_dataset(split=SPLIT)
    except Exception as error:
        raise _unavailable(source, error) from error


def _unavailable(source: str, error: Exception) -> UnavailableError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return UnavailableError(
        f"hub:{source}: cannot be read ({type(error).__name__}: {reason}); check the name and the network, or"
        " give text files by path instead"
    )

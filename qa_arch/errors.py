"""Errors that a user can fix: one line that says what is wrong and what to do.

The command line prints them without a traceback, unless ``--debug`` is given, and exits with ``exit_code``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exceeded quota and a file that is too large."""


class QaArchError(Exception):
    """Base class of errors whose message is written for the user."""

    exit_code = 1


class ConfigError(QaArchError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 2


class DataError(QaArchError):
    """A data file cannot be used; the message names file, record, field and remedy."""

    exit_code = 4


class FaultyRecordError(DataError):
    """A record of a data file is faulty; ``on_error="skip"`` would leave it out.

    Only the caller knows how its user sets that, so the command line appends the option (``cli.main``).
    """


class RunError(QaArchError):
    """A run folder is missing or incomplete, comes from another version, or already exists."""

    exit_code = 5


class UnavailableError(QaArchError):
    """An external resource is unavailable: an encoder, a package, a device, the hub."""

    exit_code = 6


@contextmanager
def named(title: str) -> Iterator[None]:
    """Let the errors in the block begin with ``title``, if there is one."""
    try:
        yield
    except QaArchError as error:
        if not title:
            raise
        raise type(error)(f"{title}: {error}") from error


BRIEF = 160
"""Limit for messages of transformers, whose first line can be a paragraph."""


def install(extra: str) -> str:
    """How to install an extra of pyproject.toml: from the checkout, or from the wheel that was installed."""
    is_checkout = (Path(__file__).parents[1] / "pyproject.toml").is_file()
    return (
        f"in the checkout: pip install -e '.[{extra}]'" if is_checkout else f"pip install 'FILE.whl[{extra}]'"
    )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the machine or a device ran out of memory."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    phrases = ("out of memory", "can't allocate memory", "cannot allocate memory", "failed to map segment")
    is_native = isinstance(error, RuntimeError | ImportError)  # of torch, or of the loader of a library
    return is_native and any(words in str(error).lower() for words in phrases)


def first_line(error: BaseException, limit: int | None = None) -> str:
    """First line of an exception of another library, cut to ``limit`` characters; its type if it is empty."""
    line = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
    return line if limit is None or len(line) <= limit else f"{line[:limit]}..."


def one_line(error: BaseException, limit: int | None = None) -> str:
    """At most ``limit`` characters of the message on one line, or its type if it has none."""
    return " ".join(str(error).split())[:limit] or type(error).__name__

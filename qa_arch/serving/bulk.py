"""A file of questions answered into a file of answers: any size in constant memory, resumable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from qa_arch.data.formats import OnError
from qa_arch.errors import DataError
from qa_arch.serving.answer_files import IfExists, open_output
from qa_arch.serving.json_lines import AnsweredPart, Part, is_stream, open_input
from qa_arch.serving.origin import origin_of
from qa_arch.types.text import Problem

Answering = Callable[[Iterator[Part]], Iterable[AnsweredPart]]
"""Answers parts in their order, reading few of them ahead."""
Watch = Callable[[int, int | None, int], None]
"""Progress callback: bytes of the input that are done, all bytes if known, lines answered by this call."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    lines: int
    """Lines of the output."""
    before: int
    """Those of them that an earlier call had answered."""
    problems: int
    """Lines that this call could not answer."""


def answer_file(
    data: str,
    out: str,
    start: Callable[[], AbstractContextManager[Answering]],
    *,
    models: Sequence[str],
    settings: Mapping[str, Any],
    on_error: OnError = "raise",
    if_exists: IfExists = "resume",
    watch: Watch | None = None,
) -> Summary | None:
    """Answer the questions of ``data`` into ``out`` (``-``: standard streams); None if that is done already.

    ``start`` loads ``models``, after all else is checked; ``settings`` are all others on which answers
    depend. ``resume`` continues an unfinished file, or starts it. Raises DataError for the first faulty
    line (with ``skip`` only for data that cannot be read at all), RunError where ``out`` is in the way.
    """
    origin = None if is_stream(data) else origin_of(data, models, settings)
    with ExitStack() as stack:
        enter = stack.enter_context
        target = enter(open_output(out, origin, if_exists))
        if target is None:
            return None
        parts, size = enter(open_input(data))
        answering = enter(start())
        parts = target.resume(parts)
        before, problems = target.lines, 0
        for part in answering(parts):
            for problem in part.problems:
                _report(problem, on_error)
            problems += len(part.problems)
            target.append(part)
            if watch is not None:
                watch(part.position, size, target.lines - before)
        target.finish()
        return Summary(target.lines, before, problems)


def _report(problem: Problem, on_error: OnError) -> None:
    if on_error == "raise":
        raise DataError(
            f"{problem}; --on-error skip continues without such lines, --if-exists replace starts again"
            " with a corrected file"
        )
    log.warning("left out: %s", problem)

"""Errors that a user's own code raises, told with its file, its line and the shapes of what stands there."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

LONGEST = 300
"""Most characters of an error's own message that are shown."""


def explain(error: BaseException, trusted: Sequence[str]) -> str | None:
    """Where in the packages ``trusted`` an error arose, and what it says; None where none of them called what
    failed.

    The packages are the user's (``--trust``), without qa_arch and baselines. Tensors that the failing
    expression names are shown with their shapes, ``batch.ids`` as well.
    """
    place = _last_frame(error, trusted)
    if place is None:
        return None
    step, frame = place
    expression = _expression(step, frame)
    shapes = "; ".join(f"{name} is {shape}" for name, shape in _shapes(expression, frame))
    message = " ".join(str(error).split())[:LONGEST]
    named = f"{_short(frame.f_code.co_filename)}:{step.tb_lineno}: {frame.f_code.co_qualname}"
    source = f": {expression}" if expression else ""
    return f"{named}{source}: {type(error).__name__}: {message}{f' ({shapes})' if shapes else ''}"


def _last_frame(error: BaseException, trusted: Sequence[str]) -> tuple[TracebackType, FrameType] | None:
    last, step = None, error.__traceback__
    while step is not None:
        name = step.tb_frame.f_globals.get("__name__", "")
        if any(f"{name}.".startswith(f"{prefix.rstrip('.')}.") for prefix in trusted):
            last = (step, step.tb_frame)
        step = step.tb_next
    return last


def _expression(step: TracebackType, frame: FrameType) -> str:
    """The source of the call or operation that failed, on one line."""
    first, last, begin, end = list(frame.f_code.co_positions())[step.tb_lasti // 2]
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = [linecache.getline(frame.f_code.co_filename, number) for number in range(first, last + 1)]
    if not lines[0]:
        return ""
    # Positions count bytes of UTF-8.
    lines[-1] = lines[-1].encode()[:end].decode()
    lines[0] = lines[0].encode()[begin:].decode()
    return " ".join(textwrap.dedent("".join(lines)).split())


def _shapes(expression: str, frame: FrameType) -> Iterator[tuple[str, str]]:
    """Name and shape of the local tensors, and the tensors of local records, that an expression names."""
    try:
        nodes = list(ast.walk(ast.parse(expression)))
    except SyntaxError:
        return
    names = dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name))
    attributes = [
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    for name in names:
        value = frame.f_locals.get(name)
        if shape := _shape(value):
            yield name, shape
        elif is_dataclass(value):
            known = {field.name for field in fields(value)}
            for owner, attribute in dict.fromkeys(attributes):
                if owner == name and attribute in known and (shape := _shape(getattr(value, attribute))):
                    yield f"{owner}.{attribute}", shape


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return str(tuple(shape)) if isinstance(shape, tuple) else ""


def _short(file: str) -> Path:
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path

"""Patterns of Python code: find code by its syntax and replace it.

A pattern is Python source with placeholders. ``_a`` (an underscore, a letter and optionally a digit) matches
any expression or name, the same one everywhere; ``___`` (optionally followed by letters) matches any run of
arguments, elements or statements. ``f(___, key=_a)`` allows other arguments and any order of keywords;
``{**___, "key": _a}`` does the same for entries of a dict. Layout and comments do not matter.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

Bindings = Mapping[str, Any]
"""Placeholder -> the code it matched: a list for ``___``, keywords or entries for ``___=``."""

_ANY, _RUN = re.compile(r"_[a-z]\d?"), re.compile(r"___[a-z]*")
_IGNORED = {"ctx", "kind", "type_comment"}


class Pattern:
    """``old`` and its replacement: both expressions or both statements; an empty ``new`` deletes."""

    def __init__(self, old: str, new: str) -> None:
        self.old: list[Any] = ast.parse(old).body
        self.new: list[Any] = ast.parse(new).body
        self.is_expression = _is_expression(self.old) and _is_expression(self.new)
        if unbound := _placeholders(self.new) - _placeholders(self.old):
            raise ValueError(f"{new}: {', '.join(sorted(unbound))} is not in {old}")

    def places(self, scope: ast.AST) -> list[tuple[list[Any], Bindings]]:
        """Matches in ``scope`` in source order: the nodes to replace and their bindings."""
        pattern = [self.old[0].value] if self.is_expression else self.old
        matches = [(nodes, next(_match(pattern, nodes, {}), None)) for nodes in self._candidates(scope)]
        places = [(nodes, bound) for nodes, bound in matches if bound is not None]
        return sorted(places, key=lambda place: (place[0][0].lineno, place[0][0].col_offset))

    def _candidates(self, scope: ast.AST) -> Iterator[list[Any]]:
        """Each single expression, or each run of as many statements as the pattern has."""
        if self.is_expression:
            yield from ([node] for node in ast.walk(scope) if isinstance(node, ast.expr))
            return
        size = len(self.old)
        fields = [value for node in ast.walk(scope) for _, value in ast.iter_fields(node)]
        for body in ([scope], *fields):
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield from (body[start : start + size] for start in range(len(body) - size + 1))

    def replaced(self, source: str, nodes: Sequence[Any], bound: Bindings) -> str:
        """``source`` with the match replaced and everything else unchanged."""
        if self.is_expression:
            text = f"({ast.unparse(_build(self.new[0].value, bound))})"
        else:
            statements = _build(self.new, bound) or [ast.Pass()]
            text = ast.unparse(ast.fix_missing_locations(ast.Module(statements, [])))
            text = textwrap.indent(text, " " * nodes[0].col_offset).lstrip(" ")
        lines = source.encode().splitlines(keepends=True)  # columns count bytes
        first, last = nodes[0], nodes[-1]
        before = lines[first.lineno - 1][: first.col_offset]
        after = lines[last.end_lineno - 1][last.end_col_offset :]
        if lines[first.lineno - 1][first.col_offset :].startswith(b"elif"):
            text = f"el{text}"
        lines[first.lineno - 1 : last.end_lineno] = [before, text.encode(), after]
        return b"".join(lines).decode()


def _is_expression(body: Sequence[ast.stmt]) -> bool:
    return len(body) == 1 and isinstance(body[0], ast.Expr)


def _placeholders(body: Sequence[ast.stmt]) -> set[str]:
    names = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return {name for name in names if _placeholder(name) or _placeholder(name, _RUN)}


def _placeholder(pattern: object, form: re.Pattern[str] = _ANY) -> str | None:
    """Name of a placeholder used as expression, argument, statement or ``**``; None for other nodes."""
    if isinstance(pattern, (ast.Expr, ast.keyword)) and getattr(pattern, "arg", None) is None:
        pattern = pattern.value
    name = pattern.id if isinstance(pattern, ast.Name) else pattern
    return name if isinstance(name, str) and form.fullmatch(name) else None


def _same(a: object, b: object) -> bool:
    """Equal except for layout and context; a variable equals its bare name."""
    return _plain(a) == _plain(b)


def _plain(value: object) -> object:
    if isinstance(value, ast.Name):
        return value.id
    return re.sub(r"(, )?ctx=\w+\(\)", "", ast.dump(value)) if isinstance(value, ast.AST) else value


def _match(pattern: Any, node: Any, bound: Bindings) -> Iterator[Bindings]:
    """Every way to bind the placeholders that extends ``bound``."""
    if isinstance(pattern, list) and isinstance(node, list):
        yield from _match_list(pattern, node, bound)
    elif (name := _placeholder(pattern)) and isinstance(node, (ast.expr, str)):
        if name not in bound or _same(bound[name], node):
            yield {name: node, **bound}
    elif type(pattern) is not type(node):
        return
    elif isinstance(pattern, (ast.Call, ast.Dict)) and (rest := _rest(pattern)):
        positional = _match(pattern.args, node.args, bound) if isinstance(pattern, ast.Call) else [bound]
        callee = [(pattern.func, node.func)] if isinstance(pattern, ast.Call) else []
        for binding in _match_fields(callee, positional):
            patterns = [entry for entry in _entries(pattern) if _placeholder(entry[1], _RUN) is None]
            yield from _match_entries(patterns, [(entry, False) for entry in _entries(node)], rest, binding)
    elif isinstance(pattern, ast.Constant):
        if type(pattern.value) is type(node.value) and pattern.value == node.value:
            yield bound
    elif isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in _IGNORED]
        pairs = [(getattr(pattern, field, None), getattr(node, field, None)) for field in fields]
        yield from _match_fields(pairs, [bound])
    elif pattern == node:
        yield bound


def _match_fields(pairs: Sequence[tuple[Any, Any]], bindings: Any) -> Iterator[Bindings]:
    """Match all ``pairs`` of pattern and node, starting from any of ``bindings``."""
    for bound in bindings:
        if not pairs:
            yield bound
        else:
            (pattern, node), *others = pairs
            yield from _match_fields(others, _match(pattern, node, bound))


def _match_list(patterns: list[Any], nodes: list[Any], bound: Bindings) -> Iterator[Bindings]:
    if not patterns:
        if not nodes:
            yield bound
        return
    first, *others = patterns
    if name := _placeholder(first, _RUN):
        for size in range(len(nodes) + 1):
            yield from _match_list(others, nodes[size:], {**bound, name: nodes[:size]})
    elif nodes:
        for binding in _match(first, nodes[0], bound):
            yield from _match_list(others, nodes[1:], binding)


def _entries(node: ast.Call | ast.Dict) -> list[tuple[Any, Any]]:
    """(name, value) of the keywords of a call or the entries of a dict; the name is None for ``**``."""
    if isinstance(node, ast.Call):
        return [(keyword.arg, keyword.value) for keyword in node.keywords]
    return list(zip(node.keys, node.values, strict=True))


def _rest(pattern: ast.Call | ast.Dict) -> str | None:
    """The placeholder for all other keywords or entries."""
    values = [value for name, value in _entries(pattern) if name is None]
    values += pattern.args if isinstance(pattern, ast.Call) else []
    return next((name for value in values if (name := _placeholder(value, _RUN))), None)


def _match_entries(
    patterns: list[tuple[Any, Any]], entries: list[tuple[tuple[Any, Any], bool]], rest: str, bound: Bindings
) -> Iterator[Bindings]:
    """Match each pattern with an entry at any position; ``entries`` are (entry, matched) in source order."""
    if not patterns:
        yield {**bound, f"{rest}=": entries}
        return
    for index, (entry, matched) in enumerate(entries):
        if not matched:
            for binding in _match(list(patterns[0]), list(entry), bound):
                marked = [*entries[:index], (entry, True), *entries[index + 1 :]]
                yield from _match_entries(patterns[1:], marked, rest, binding)


def _build(pattern: Any, bound: Bindings) -> Any:
    """``pattern`` with its placeholders filled in."""
    if isinstance(pattern, list):
        runs = [(_placeholder(item, _RUN), item) for item in pattern]
        return [
            node for run, item in runs for node in (deepcopy(bound[run]) if run else [_build(item, bound)])
        ]
    if (name := _placeholder(pattern)) and not isinstance(pattern, ast.keyword):
        value = deepcopy(bound[name])
        if isinstance(pattern, str):
            return value.id if isinstance(value, ast.Name) else value
        value = ast.Name(value) if isinstance(value, str) else value
        return ast.Expr(value) if isinstance(pattern, ast.Expr) else value
    if isinstance(pattern, ast.Constant) or not isinstance(pattern, ast.AST):
        return pattern
    if isinstance(pattern, (ast.Call, ast.Dict)) and (rest := _rest(pattern)):
        entries = _build_entries(pattern, bound[f"{rest}="], bound)
        if isinstance(pattern, ast.Dict):
            return ast.Dict([key for key, _ in entries], [value for _, value in entries])
        keywords = [ast.keyword(name, value) for name, value in entries]
        return ast.Call(_build(pattern.func, bound), _build(pattern.args, bound), keywords)
    return type(pattern)(**{field: _build(getattr(pattern, field, None), bound) for field in pattern._fields})


def _build_entries(
    pattern: ast.Call | ast.Dict, matches: Sequence[tuple[tuple[Any, Any], bool]], bound: Bindings
) -> list[tuple[Any, Any]]:
    """Entries of the source, matched ones with their new value or removed, new ones at the end."""
    new = [entry for entry in _entries(pattern) if _placeholder(entry[1], _RUN) is None]
    built = [(_build(name, bound), _build(value, bound)) for name, value in new]
    entries = []
    for (name, value), matched in matches:
        index = next((i for i, (key, _) in enumerate(built) if _same(key, name)), None) if matched else None
        if index is not None:
            entries.append(built.pop(index))
        elif not matched:
            entries.append((name, value))
    return entries + built

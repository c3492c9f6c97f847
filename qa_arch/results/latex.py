"""A table for LaTeX: every sign as it is given, and commands that can be copied."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIGNS = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "<": r"\textless{}",  # without these three pdflatex's own font shows other signs
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "…": r"\dots{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "−": r"$-$",
    "Δ": r"$\Delta$",
}
_IN_CODE = {
    "_": r"\char95{}",  # \_ is a rule where the font's encoding is the default one, and copied as a space
    "'": r"\textquotesingle{}",
}
_APART = "-{}"
"""A hyphen before another one: two in a row are a dash."""
_CODE = re.compile(r"(`[^`]+`|(?<![\w-])--[a-z][\w-]*)")
"""Code between backticks, and options without them."""


def latex_table(title: str, alignments: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """``rows``, the headings first, no wider than the page; the notes below, a paragraph each."""
    head, *body = (" & ".join(map(_escaped, row)) + r" \\" for row in rows)
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(title)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{alignments}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        *(_below(notes) if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _below(notes: Sequence[str]) -> list[str]:
    """Outside the tabular, whose columns they would stretch."""
    return [
        "",
        r"\smallskip",
        r"\begin{minipage}{\linewidth}",
        r"\footnotesize\raggedright",
        "\n\n".join(map(_note, notes)),
        r"\end{minipage}",
    ]


def _note(text: str) -> str:
    parts = enumerate(_CODE.split(text))  # what matches stands at the odd places
    return "".join(_code(part.strip("`")) if place % 2 else _escaped(part) for place, part in parts)


def _code(text: str) -> str:
    return rf"\texttt{{{_replaced(text, _SIGNS | _IN_CODE)}}}"


def _escaped(text: str) -> str:
    """``text`` as LaTeX shows it: nothing in it is a command."""
    return _replaced(text, _SIGNS)


def _replaced(text: str, signs: dict[str, str]) -> str:
    some = "".join(map(re.escape, signs))
    return re.sub(f"-(?=-)|[{some}]", lambda match: signs.get(match[0], _APART), text)

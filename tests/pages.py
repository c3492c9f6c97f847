"""The commands of a page: the calls of qa-arch in its code blocks."""

from __future__ import annotations

import re
import shlex

BLOCK = re.compile(r"^```\w*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
CALL = re.compile(r"^(?:srun \S+ )?qa-arch (.*)|-m qa_arch\.cli\.main (.*)")


def commands(page: str) -> list[list[str]]:
    """The qa-arch calls of a page's code blocks, as arguments; those that torchrun or srun starts as well."""
    lines = "\n".join(BLOCK.findall(page)).replace("\\\n", " ").splitlines()
    calls = (found[1] or found[2] for line in lines if (found := CALL.search(line)))
    return [shlex.split(call.partition(" > ")[0], comments=True) for call in calls]


def points(call: list[str]) -> list[list[str]]:
    """Of a sweep, runs that between them take every value; a single run as it is.

    A sweep itself looks for its data files before anything else, and these are not everywhere. What says how
    it is run is left out, and so is a range to search in (``interval(...)``).
    """
    if "-m" not in call:
        return [call]
    call = [
        word for word in call if word != "-m" and not word.startswith(("sweep.", "hydra")) and "(" not in word
    ]
    choices = [[word] if "[" in word else _each(word) for word in call]
    longest = max(map(len, choices))
    return [[values[min(nth, len(values) - 1)] for values in choices] for nth in range(longest)]


def _each(word: str) -> list[str]:
    key, _, values = word.partition("=")
    return [f"{key}={value}" for value in values.split(",")] if values else [word]

"""The qa-arch commands in the code blocks of a page, and the extras that experiments need."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRA = {
    "pretraining": "pretraining",
    "paraphrases": "selection",
    "question_types": "selection",
    "table_2_2": "selection",
}
"""Experiment -> extra whose models it trains; its records stay if the extra is deleted."""
BLOCK = re.compile(r"^```\w*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
CALL = re.compile(r"^(?:srun \S+ )?qa-arch (.*)|-m qa_arch\.cli\.main (.*)")


def commands(page: str) -> list[list[str]]:
    """Arguments of the qa-arch calls in a page's code blocks, also those started by torchrun or srun."""
    lines = "\n".join(BLOCK.findall(page)).replace("\\\n", " ").splitlines()
    calls = (match[1] or match[2] for line in lines if (match := CALL.search(line)))
    return [shlex.split(call.partition(" > ")[0], comments=True) for call in calls]


def points(call: list[str]) -> list[list[str]]:
    """Runs that together take every value of a sweep; a single run unchanged.

    A sweep itself first looks for its data files, which may be missing. Settings of how it is run are left
    out, and so are search ranges (``interval(...)``).
    """
    if "-m" not in call:
        return [call]
    call = [
        word for word in call if word != "-m" and not word.startswith(("sweep.", "hydra")) and "(" not in word
    ]
    choices = [[word] if "[" in word else _values(word) for word in call]
    longest = max(map(len, choices))
    return [[values[min(nth, len(values) - 1)] for values in choices] for nth in range(longest)]


def _values(word: str) -> list[str]:
    key, _, values = word.partition("=")
    return [f"{key}={value}" for value in values.split(",")] if values else [word]


def lacks_extra(experiment: str) -> bool:
    """Whether the extra whose models it trains is deleted here."""
    return experiment in EXTRA and not (ROOT / "qa_arch/extras" / EXTRA[experiment]).is_dir()


def skip_without_extra(experiment: str) -> None:
    if lacks_extra(experiment):
        pytest.skip(f"{experiment} trains models of the extra {EXTRA[experiment]}, which is deleted here")

"""Columns of ranked candidates in the tables of runs."""

from __future__ import annotations

from qa_arch.records import SplitFacts
from qa_arch.results.columns import score
from qa_arch.terminal import counted

COLUMNS = (
    score("accuracy", "top-1", says_status=True),
    score("main_accuracy", "top-1, main class"),
    score("mrr", "MRR"),
)


def described(facts: SplitFacts) -> tuple[str, str]:
    size = f"{counted(facts.questions or 0, 'question')}, {facts.candidates or 0:,.1f} candidates each"
    return size, f"{size} on average; ties count against the right candidate"


PROTOCOLS = {"selection": described}

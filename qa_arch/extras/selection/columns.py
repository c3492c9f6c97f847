"""Columns of ranked candidates in the tables of runs, and of the published scores of InsuranceQA."""

from __future__ import annotations

from qa_arch.records import SplitFacts
from qa_arch.results.columns import score
from qa_arch.results.tables import Column
from qa_arch.terminal import counted

COLUMNS = (
    score("accuracy", "top-1", says_status=True),
    score("main_accuracy", "top-1, main class"),
    score("mrr", "MRR"),
    Column("insuranceqa_dev", "published: InsuranceQA validation"),
    Column("insuranceqa_test1", "published: test 1"),
    Column("insuranceqa_test2", "published: test 2"),
)


def described(facts: SplitFacts) -> tuple[str, str]:
    size = f"{counted(facts.questions or 0, 'question')}, {facts.candidates or 0:,.1f} candidates each"
    return size, f"{size} on average; ties count against the right candidate"


PROTOCOLS = {"selection": described}

"""Table 2.1: statistics of InsuranceQA, version 1.

Filled by: qa-arch stats --data insuranceqa:FOLDER:SPLIT --json > experiments/table_2_1/records/SPLIT.json
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.results.experiments import DataSet, sets_table
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    return [
        sets_table(
            folder,
            "Table 2.1: InsuranceQA, version 1",
            [
                _split("train", "train", questions=12887, answers=18540, question_words=92095),
                _split("dev", "dev", questions=1000, answers=1454, question_words=7158),
                _split("test 1", "test1", questions=1800, answers=2616, question_words=12893),
                _split("test 2", "test2", questions=1800, answers=2593, question_words=12905),
            ],
            columns=("questions", "answers", "question_words"),
            notes=["an answer counts once for each question that names it as right"],
        )
    ]


def _split(name: str, file: str, **published: int) -> DataSet:
    return DataSet(name, f"{file}.json", published, source=f"insuranceqa:$QA_ARCH_DATA/insuranceqa:{file}")

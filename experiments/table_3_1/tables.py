"""Table 3.1: statistics of SQuAD 1.1 and 2.0.

Filled by: qa-arch stats --data FILE --json > experiments/table_3_1/records/FILE
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.results.experiments import COUNTS, DataSet, sets_table
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    return [
        sets_table(
            folder,
            "Table 3.1: the data sets",
            [
                _set("SQuAD 1.1 train", "train-v1.1", 87599, 0, 442, 0),
                _set("SQuAD 1.1 dev", "dev-v1.1", 10570, 0, 48, 0),
                _set("SQuAD 1.1 test", None, 9533, 0, 46, 0),
                _set("SQuAD 2.0 train", "train-v2.0", 130319, 43498, 442, 285),
                _set("SQuAD 2.0 dev", "dev-v2.0", 11873, 5945, 35, 35),
                _set("SQuAD 2.0 test", None, 8862, 4332, 28, 28),
            ],
            notes=[
                "negatives are questions without an answer; an article has negatives where one of its"
                " questions is such",
                "the test sets are not public",
            ],
        )
    ]


def _set(name: str, file: str | None, *published: int) -> DataSet:
    return DataSet(name, file and f"{file}.json", dict(zip(COUNTS, published, strict=True)))

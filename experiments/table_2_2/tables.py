"""Table 2.2: the QA-LSTM family (Tan et al. 2015, models A to I).

Filled by: qa-arch train --models qa_lstm/a,qa_lstm/b,... experiment=table_2_2; on InsuranceQA by the commands
that the third table names (see README.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qa_arch.results.experiments import Wanted, records_table
from qa_arch.results.tables import Table, number

TASK = "the published columns are top-1 accuracy of Tan et al. 2015 on InsuranceQA V1, one answer among 500"
PUBLISHED = {
    "a": (54.0, 53.1, 51.2),
    "b": (58.5, 58.2, 54.0),
    "c": (64.3, 63.1, 58.0),
    "d": (65.5, 65.9, 62.3),
    "e": (64.8, 66.8, 62.6),
    "f": (66.2, 64.6, 62.2),
    "g": (66.5, 63.7, 60.3),
    "h": (68.4, 68.1, 62.2),
    "i": (67.2, 65.7, 63.3),
}
"""Model -> accuracy on validation, test 1 and test 2."""
PUBLISHED_COLUMNS = (
    number("insuranceqa_dev", "published: InsuranceQA validation"),
    number("insuranceqa_test1", "published: test 1"),
    number("insuranceqa_test2", "published: test 2"),
)
COLUMNS = ("model", "accuracy", "mrr", "parameters", "seconds")
HERE = "experiment=table_2_2"
THERE = (
    "data=insuranceqa name=table_2_2 glove.path=glove.6B.100d.txt trainer.epochs=20 trainer.batch_size=20"
    " trainer.eval_batch_size=1 optim.lr=1e-3"
)


def tables(folder: Path) -> list[Table]:
    return [
        with_published(
            folder,
            "Table 2.2: the QA-LSTM family, here on sentences of SQuAD 1.1",
            records="qa_lstm_*",
            wanted=[Wanted(f"qa_lstm_{x}", f"qa-arch train model=qa_lstm/{x} {HERE}") for x in PUBLISHED],
            notes=[
                "A head and tail, B average, C max pooling; D, E, F convolutions with 1000, 2000, 4000"
                " filters; G attention with max, H with average pooling; I attention and 4000 filters",
                "ours is another task than that of the published columns: 1,901 training questions, 2 epochs,"
                " one seed, GloVe 6B 50d with 10,000 words; parameters include the vectors",
                TASK,
            ],
        ),
        records_table(
            folder,
            "Model C with a SuBiLSTM in place of the biLSTM, sentences of SQuAD 1.1",
            records="subilstm",
            columns=COLUMNS,
            wanted=[Wanted("qa_lstm_c", f"qa-arch train model=qa_lstm/c model.encoder=subilstm {HERE}")],
            notes=[
                "every suffix and prefix of 10 words is read in both directions (Brahma 2018); the rest as in"
                " the table above"
            ],
        ),
        with_published(
            folder,
            "Table 2.2 on InsuranceQA V1, test 1",
            records="insuranceqa",
            wanted=[Wanted(f"qa_lstm_{x}", f"qa-arch train model=qa_lstm/{x} {THERE}") for x in PUBLISHED],
            notes=["filled by runs on your InsuranceQA: publish them to records/insuranceqa", TASK],
        ),
    ]


def with_published(
    folder: Path, title: str, *, records: str, wanted: Sequence[Wanted], notes: Sequence[str]
) -> Table:
    """Table of runs with the published scores of their models in columns of their own."""
    table = records_table(folder, title, records=records, columns=COLUMNS, wanted=wanted, notes=notes)
    published = {
        f"qa_lstm_{letter}": {
            column.key: score for column, score in zip(PUBLISHED_COLUMNS, scores, strict=True)
        }
        for letter, scores in PUBLISHED.items()
    }
    return replace(
        table,
        columns=[*table.columns[:3], *PUBLISHED_COLUMNS, *table.columns[3:]],
        rows=[{**published.get(row["model"], {}), **row} for row in table.rows],
    )

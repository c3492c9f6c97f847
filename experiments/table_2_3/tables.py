"""Table 2.3: match-LSTM with Answer Pointer (Wang & Jiang 2016) in every published configuration.

Filled by: the commands of the rows below; README.md has them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import PublishedRow, SizePoint, published_vs_ours, runs_table, size_curves
from qa_arch.results.tables import Table

TRAIN = "qa-arch train -m experiment=table_2_3_gpu seed=13,14,15 model=match_lstm"
BOUNDARY = f"{TRAIN}/boundary"
FEWER = f"{BOUNDARY} trainer.epochs=60"
TWELVE = "qa-arch train experiment=table_2_3 model=match_lstm/boundary"
MATCH_LSTM = ("sequence", "boundary", "boundary-300", "boundary_b", "bi_ans_ptr", "half", "quarter")
LOGISTIC = "python experiments/table_2_3/logistic.py --train train-v1.1.part.json --dev dev-v1.1.json --final"
EVALUATE = "qa-arch evaluate --final --run"
RUNS = "runs/table_2_3"


def tables(folder: Path) -> list[Table]:
    return [
        published_vs_ours(
            folder,
            "Table 2.3: match-LSTM with Answer Pointer, SQuAD 1.1 dev",
            [*_non_neural(), *_match_lstm()],
            notes=[
                "published: Wang & Jiang 2016, all of train (87,599), GloVe 840B.300d; the counts are theirs,"
                " over vectors of width 300",
                "ours: 10,045 questions of train (11%), GloVe 6B.50d, until calibration stops, so that the"
                " columns do not compare directly; of several runs the mean",
            ],
        ),
        published_vs_ours(
            folder,
            "Boundary + Search by the number of training questions",
            [
                PublishedRow("a quarter", records="quarter", command=f"{FEWER} data.train_questions=2500"),
                PublishedRow("a half", records="half", command=f"{FEWER} data.train_questions=5000"),
                PublishedRow("all that is there", records="boundary", command=BOUNDARY),
                PublishedRow("all of train", 63.0, 72.7, note="published, 87,599 questions"),
            ],
        ),
        published_vs_ours(
            folder,
            "The same after twelve epochs on a CPU, 10,000 word vectors",
            [
                PublishedRow(size, records=f"twelve_epochs/{name}", command=f"{TWELVE}{questions}")
                for size, name, questions in (
                    ("a quarter", "quarter", " data.train_questions=2500"),
                    ("a half", "half", " data.train_questions=5000"),
                    ("all that is there", "boundary-search", ""),
                )
            ],
        ),
        _one_by_one(folder),
    ]


def _one_by_one(folder: Path) -> Table:
    """The runs that the other tables have the means of, as seeds differ more than rows."""
    return runs_table(
        folder,
        "The runs one by one",
        columns=("model", "parameters", "seed", "train_questions", "exact", "f1", "epochs", "seconds"),
        records=MATCH_LSTM,
        sort=("model", "parameters", "train_questions", "seed"),
    )


def _non_neural() -> list[PublishedRow]:
    note = (
        "ours uses no parse; its candidates and features are described in baselines/candidates.py and"
        " span_features.py"
    )
    guess, logistic = "non_neural/random-guess*", "non_neural/logistic-regression*"
    return [
        PublishedRow("Random guess", 1.1, 4.1, 0, records=guess, command=LOGISTIC),
        PublishedRow("Logistic regression", 40.0, 51.0, records=logistic, command=LOGISTIC, note=note),
        PublishedRow("DCR", 62.5, 71.2, note="published only"),
    ]


def _match_lstm() -> list[PublishedRow]:
    """Model, EM, F1, parameters and width as published; our records, and what makes them."""
    search, ensemble = "Boundary + Search", "Boundary + Search + ensemble"
    greedy = f"{EVALUATE} {RUNS}/boundary-seed13 --decode greedy --record {RUNS}/greedy-seed13"
    members = " ".join(f"{RUNS}/boundary-seed{seed}" for seed in (13, 14, 15))
    rescored = (
        "python experiments/table_2_3/rescored.py --dev dev-v1.1.json --predictions"
        f" match_lstm_boundary_ensemble_v1.1_dev.json --record {RUNS}/rescored"
    )
    together = f"{EVALUATE} {members} --record {RUNS}/ensemble"
    rows: list[tuple[str, float, float, int, int, str, str]] = [
        ("Sequence", 54.4, 68.2, 882452, 150, "sequence", f"{TRAIN}/sequence"),
        ("Boundary", 61.1, 71.2, 882452, 150, "greedy", greedy),
        (search, 63.0, 72.7, 882452, 150, "boundary", BOUNDARY),
        (f"{search}, l = 300", 63.1, 72.7, 3249902, 300, "boundary-300", f"{BOUNDARY} model.hidden=300"),
        (f"{search} + b", 63.4, 73.0, 1085852, 150, "boundary_b", f"{TRAIN}/boundary_b"),
        (f"Bi-Ans-Ptr, {search} + b", 64.1, 73.9, 1425003, 150, "bi_ans_ptr", f"{TRAIN}/bi_ans_ptr"),
        (ensemble, 67.6, 76.8, 882452, 150, "ensemble", together),
        (f"{ensemble}, its published predictions scored here", 67.6, 76.8, 882452, 150, "rescored", rescored),
    ]
    return [PublishedRow(*row) for row in rows]


def figures(folder: Path) -> list[Sequence[Path]]:
    published = [SizePoint("published", questions=87599, exact=63.0, f1=72.7)]
    sizes = ("quarter", "half", "boundary")
    return [
        size_curves(folder, "sizes", "Boundary + Search by training questions", sizes, published=published)
    ]

"""Table 2.3: match-LSTM with Answer Pointer (Wang & Jiang 2016) in every published configuration.

Filled by: the commands of the rows below; README.md has them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.columns import Table
from qa_arch.results.experiments import PublishedRow, SizePoint, published_vs_ours, size_curves

BOUNDARY = "qa-arch train model=match_lstm/boundary experiment=table_2_3"
LONGER = (
    f"{BOUNDARY} trainer=gpu trainer.precision=fp32 trainer.epochs=30 trainer.patience=5"
    " trainer.batch_size=30 glove=6b_50d glove.path=glove-6b-50d seed=14"
)
LOGISTIC = "python experiments/table_2_3/logistic.py --train train-v1.1.part.json --dev dev-v1.1.json --final"
TRAIN = "qa-arch train model=match_lstm"
RECORD = "--record runs/table_2_3"
QUARTERS = "runs/table_2_3/quarter-13 runs/table_2_3/quarter-14 runs/table_2_3/quarter-15"


def tables(folder: Path) -> list[Table]:
    return [
        published_vs_ours(
            folder,
            "Table 2.3: match-LSTM with Answer Pointer, SQuAD 1.1 dev",
            [*_non_neural(), *_match_lstm()],
            notes=[
                "published: Wang & Jiang 2016, all of train (87,599), GloVe 840B.300d; the counts are theirs,"
                " over vectors of width 300",
                "ours: at most 10,045 questions of train (11%), a share of GloVe 6B.50d, so that the columns"
                " do not compare directly",
            ],
        ),
        published_vs_ours(
            folder,
            "Boundary + Search by the number of training questions",
            [
                PublishedRow("a quarter", records="quarter", command=f"{BOUNDARY} data.train_questions=2500"),
                PublishedRow("a half", records="half", command=f"{BOUNDARY} data.train_questions=5000"),
                PublishedRow("all that is there", records="boundary-search", command=BOUNDARY),
                PublishedRow(
                    "all that is there, all word vectors, until calibration stops",
                    records="longer",
                    command=LONGER,
                ),
                PublishedRow("all of train", 63.0, 72.7, note="published, 87,599 questions"),
            ],
        ),
    ]


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
    sequence = f"{TRAIN}/sequence experiment=table_2_3 data.train_questions=2500"
    greedy = (
        f"qa-arch evaluate --run runs/table_2_3/boundary-search --decode greedy {RECORD}/boundary --final"
    )
    wide = f"{BOUNDARY} model.hidden=300 data.train_questions=2500"
    joined = f"qa-arch evaluate --run {QUARTERS} {RECORD}/ensemble --final"
    rescored = (
        "python experiments/table_2_3/rescored.py --dev dev-v1.1.json --predictions"
        f" match_lstm_boundary_ensemble_v1.1_dev.json {RECORD}/rescored"
    )
    bi_ans_ptr, b = (f"{TRAIN}/{name} experiment=table_2_3" for name in ("bi_ans_ptr", "boundary_b"))
    rows: list[tuple[str, float, float, int, int, str, str]] = [
        ("Sequence", 54.4, 68.2, 882452, 150, "sequence", sequence),
        ("Boundary", 61.1, 71.2, 882452, 150, "boundary", greedy),
        (search, 63.0, 72.7, 882452, 150, "boundary-search", BOUNDARY),
        (f"{search}, l = 300", 63.1, 72.7, 3249902, 300, "boundary-search-300", wide),
        (f"{search} + b", 63.4, 73.0, 1085852, 150, "boundary-search-b", b),
        (f"Bi-Ans-Ptr, {search} + b", 64.1, 73.9, 1425003, 150, "bi-ans-ptr", bi_ans_ptr),
        (ensemble, 67.6, 76.8, 882452, 150, "ensemble", joined),
        (f"{ensemble}, its published predictions scored here", 67.6, 76.8, 882452, 150, "rescored", rescored),
    ]
    return [PublishedRow(*row) for row in rows]


def figures(folder: Path) -> list[Sequence[Path]]:
    published = [SizePoint("published", questions=87599, exact=63.0, f1=72.7)]
    sizes = ("quarter", "half", "boundary-search")
    return [
        size_curves(folder, "sizes", "Boundary + Search by training questions", sizes, published=published)
    ]

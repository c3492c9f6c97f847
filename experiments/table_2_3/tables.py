"""Table 2.3: match-LSTM with Answer Pointer (Wang & Jiang 2016) in every published configuration.

Filled by: the commands of the rows below; README.md has them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.columns import Table
from qa_arch.results.experiments import PublishedRow, SizePoint, published_vs_ours, size_curves

BOUNDARY = "qa-arch train model=match_lstm/boundary experiment=table_2_3"
LOGISTIC = "python experiments/table_2_3/logistic.py --train train-v1.1.part.json --dev dev-v1.1.json --final"
ROWS = [
    PublishedRow(
        "Random guess", 1.1, 4.1, parameters=0, records="non_neural/random-guess*", command=LOGISTIC
    ),
    PublishedRow(
        "Logistic regression",
        40.0,
        51.0,
        records="non_neural/logistic-regression*",
        command=LOGISTIC,
        note="ours uses no parse; its candidates and features are described in baselines/candidates.py and"
        " span_features.py",
    ),
    PublishedRow("DCR", 62.5, 71.2, note="published only"),
    PublishedRow(
        "Sequence",
        54.4,
        68.2,
        parameters=882452,
        hidden=150,
        records="sequence",
        command="qa-arch train model=match_lstm/sequence experiment=table_2_3 data.train_questions=2500",
    ),
    PublishedRow(
        "Boundary",
        61.1,
        71.2,
        parameters=882452,
        hidden=150,
        records="boundary",
        command="qa-arch evaluate --run runs/table_2_3/boundary-search --decode greedy"
        " --record runs/table_2_3/boundary --final",
    ),
    PublishedRow(
        "Boundary + Search",
        63.0,
        72.7,
        parameters=882452,
        hidden=150,
        records="boundary-search",
        command=BOUNDARY,
    ),
    PublishedRow(
        "Boundary + Search, l = 300",
        63.1,
        72.7,
        parameters=3249902,
        hidden=300,
        records="boundary-search-300",
        command=f"{BOUNDARY} model.hidden=300 data.train_questions=2500",
    ),
    PublishedRow(
        "Boundary + Search + b",
        63.4,
        73.0,
        parameters=1085852,
        hidden=150,
        records="boundary-search-b",
        command="qa-arch train model=match_lstm/boundary_b experiment=table_2_3",
    ),
    PublishedRow(
        "Bi-Ans-Ptr, Boundary + Search + b",
        64.1,
        73.9,
        parameters=1425003,
        hidden=150,
        records="bi-ans-ptr",
        command="qa-arch train model=match_lstm/bi_ans_ptr experiment=table_2_3",
    ),
    PublishedRow(
        "Boundary + Search + ensemble",
        67.6,
        76.8,
        parameters=882452,
        hidden=150,
        records="ensemble",
        command="qa-arch evaluate --run runs/table_2_3/quarter-13 runs/table_2_3/quarter-14"
        " runs/table_2_3/quarter-15 --record runs/table_2_3/ensemble --final",
    ),
    PublishedRow(
        "Boundary + Search + ensemble, its published predictions scored here",
        67.6,
        76.8,
        parameters=882452,
        hidden=150,
        records="rescored",
        command="python experiments/table_2_3/rescored.py --dev dev-v1.1.json --predictions"
        " match_lstm_boundary_ensemble_v1.1_dev.json --record runs/table_2_3/rescored",
    ),
]


def tables(folder: Path) -> list[Table]:

    return [
        published_vs_ours(
            folder,
            "Table 2.3: match-LSTM with Answer Pointer, SQuAD 1.1 dev",
            ROWS,
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
                PublishedRow("all of train", 63.0, 72.7, note="published, 87,599 questions"),
            ],
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:

    published = [SizePoint("published", questions=87599, exact=63.0, f1=72.7)]
    sizes = ("quarter", "half", "boundary-search")
    return [
        size_curves(folder, "sizes", "Boundary + Search by training questions", sizes, published=published)
    ]

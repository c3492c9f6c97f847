"""The questions and texts that contenders read: small, with windows and answers of every kind.

Each function writes them into a folder and gives the overrides by which a run reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from qa_arch.config.files import write_atomic, write_json

Row = tuple[str, str, str | None]
"""Passage, question, and the answer's text; None: the passage does not answer it."""
TRIAL = ("debug=fast", "trainer.progress=false", "features.cache_dir=null")
QUIET_ENCODER = ("encoder.hidden_dropout=0.0", "encoder.attention_dropout=0.0")

FOUR: list[Row] = [
    ("Mira paints red boats.", "What does Mira paint?", "red boats"),
    ("Mira paints red boats.", "Who drives the tram?", None),
    ("Old Tarn keeps nine bees.", "How many bees does Tarn keep?", "nine"),
    ("Old Tarn keeps nine bees.", "Where does Mira sleep?", None),
]
LONG = " ".join(f"On day {n} the ferry of Lomm carried {n + 20} goats to the isle." for n in range(12))
WIDE: list[Row] = [(LONG, "How many goats crossed on day 9?", "29"), (LONG, "Who built the isle?", None)]

TOWN = "Mira paints red boats. Tarn keeps nine bees. It rains in Lomm."
FERRY = "The ferry of Lomm carried twenty goats to the isle on the third day of May. It sank. Why?"
CHOICES: list[Row] = [
    (TOWN, "Which sentence is it that red boats belongs to?", "red boats"),
    (TOWN, "nine what?", "nine"),
    (TOWN, "Lomm what?", "Lomm"),
    (FERRY, "goats what?", "goats"),
    ("Bees sing. Boats sink.", "Boats what?", "Boats"),
]

QUESTIONS = {
    "When did the ferry of Lomm first carry goats ?": "NUM:date",
    "Who paints boats ?": "HUM:ind",
    "Where is Lomm ?": "LOC:other",
    "What does a bee eat in the winter ?": "ENTY:food",
}
"""Question -> its class."""

STORIES = [
    f"{name} keeps {n} bees near {town}. On day {n} it rains. {name} sells {n + 3} goats to {town}."
    + " Nobody minds." * n
    for n, (name, town) in enumerate(
        [("Tarn", "Lomm"), ("Mira", "Osk"), ("Bell", "Ryde"), ("Ada", "Wick")], 2
    )
]


def passages(folder: Path) -> list[str]:
    """Four short questions, half of them unanswerable, and passages of many windows."""
    dev = [*FOUR[:2], (LONG, "What was carried on day 3?", "23 goats")]
    splits = {"train": [*FOUR, *WIDE], "calibration": FOUR, "dev": dev}
    for split, rows in splits.items():
        write_squad(folder / f"{split}.json", rows)
    write_vectors(folder / "vectors.txt", (LONG, *(row[0] for row in FOUR)))
    return [
        *TRIAL,
        "encoder.initializer_range=0.15",
        "features.max_length=64",
        "features.max_question=16",
        "features.stride=8",
        *(f"data.{split}={folder}/{split}.json" for split in splits),
        f"glove.path={folder}/vectors.txt",
    ]


def candidates(folder: Path) -> list[str]:
    """Questions against the sentences of their passages."""
    splits = {"train": CHOICES, "calibration": CHOICES[:4], "dev": CHOICES}
    for split, rows in splits.items():
        write_squad(folder / f"{split}.json", rows)
    write_vectors(folder / "vectors.txt", (row[0] for row in CHOICES))
    return [
        *TRIAL,
        "data.train_questions=0",
        "selection.negatives=2",
        "selection.unknown_buckets=3",
        "selection.margin=0.9",  # cosines of new models lie within less, so that every pair has a loss
        *(f"data.{split}={folder}/{split}.json" for split in splits),
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
    ]


def classes(folder: Path) -> list[str]:
    """Four questions against all classes; the three splits are the same."""
    write_atomic(folder / "four.label", "".join(f"{label} {text}\n" for text, label in QUESTIONS.items()))
    write_vectors(folder / "vectors.txt", QUESTIONS)
    return [
        *TRIAL,
        "data=question_types",
        "data.train_questions=0",
        *(f"data.{split}=types:{folder}/four.label" for split in ("train", "calibration", "dev")),
        "glove=file",
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
    ]


def corpus(folder: Path) -> list[str]:
    """Four stories, in blocks of 32 tokens."""
    write_atomic(folder / "train.txt", "\n\n".join(STORIES))
    write_atomic(folder / "held.txt", "\n\n".join(STORIES[:2]))
    return [
        *TRIAL,
        "data=corpus",
        "trainer.max_steps=-1",
        "encoder.layers=1",
        "encoder.width=32",
        "encoder.heads=2",
        "encoder.initializer_range=0.15",
        *QUIET_ENCODER,
        "features.max_length=32",
        "features.max_question=16",
        "features.stride=8",
        f"data.train={folder}/train.txt",
        f"data.calibration={folder}/held.txt",
    ]


def write_squad(path: Path, rows: Sequence[Row]) -> Path:
    """The questions as a file of SQuAD 2.0, an article of one paragraph a passage."""
    paragraphs: dict[str, list[dict]] = {context: [] for context, _, _ in rows}
    for number, (context, question, text) in enumerate(rows):
        golds = [] if text is None else [{"text": text, "answer_start": context.index(text)}]
        id_ = f"{path.stem}-{number}"
        paragraphs[context].append(
            {"id": id_, "question": question, "answers": golds, "is_impossible": not golds}
        )
    article = [{"context": context, "qas": qas} for context, qas in paragraphs.items()]
    return write_json(path, {"version": "v2.0", "data": [{"title": path.stem, "paragraphs": article}]})


def write_vectors(path: Path, texts: Iterable[str]) -> None:
    """Word vectors of width 5 for every word of ``texts``, in GloVe's form."""
    words = sorted({word for text in texts for word in text.split()})
    rows = np.random.default_rng(0).normal(size=(len(words), 5)).round(3)
    lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows, strict=True))
    write_atomic(path, "".join(lines))

"""Seeded random cases for ``old_and_new.py``, and the files that they name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from checkpoints import make_checkpoint
from metrics.test_fuzzed_predictions import perturbed, text

SENTENCE = (
    "Mira paints red boats in the harbour of Velmora and Old Tarn keeps nine bees there since 1,204 o'clock"
    ' Zürich naïve co-op (rope) U.S. 50% snow! Thirty-two mills, ferry; "quoted" a an the İstanbul 東京 £5'
)
WORDS = SENTENCE.split(" ")
QUESTIONS = ("Who paints?", "What does Old Tarn keep in the harbour since 1,204?", "Why", "  where is  it ")
SPACES = (" ", " ", " ", " ", "  ", "\n", "\t", "\u202f", "\xa0")
FAMILIES = ("bert", "roberta", "albert", "deberta-v2")
"""Families for the pipeline; the first three also for SQuAD features."""


def passage(rng: random.Random, max_words: int) -> str:
    """Words of the vocabulary and some unknown ones, separated by white space of all kinds."""
    parts = []
    for _ in range(rng.randint(1, max_words)):
        word = rng.choice(WORDS)
        parts += [rng.choice((word, word.upper(), word[::-1])) if rng.random() < 0.1 else word]
        parts.append(rng.choice(SPACES))
    return "".join(parts[: -1 if rng.random() < 0.8 else None])


def example(rng: random.Random, number: int, max_words: int) -> dict[str, Any]:
    """Fields of a ``SquadExample``; some answers are not at their offset, some questions unanswerable."""
    context = passage(rng, max_words)
    start = rng.randrange(len(context))
    end = rng.randint(start + 1, min(len(context), start + 30))
    return {
        "qas_id": f"q{number}",
        "question_text": rng.choice((*QUESTIONS, passage(rng, 30))),
        "context_text": context,
        "answer_text": context[start:end].strip() if rng.random() < 0.9 else "nowhere",
        "start_position_character": start,
        "title": "t",
        "answers": [],
        "is_impossible": rng.random() < 0.2,
    }


def settings(rng: random.Random) -> dict[str, Any]:
    length = rng.choice((32, 48, 64))
    return {
        "max_seq_length": length,
        "doc_stride": rng.choice((4, 8, 16, length)),
        "max_query_length": rng.choice((3, 8, 16)),
    }


def evaluation(rng: random.Random) -> dict[str, Any]:
    golds = {
        f"q{number}": [text(rng) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
        for number in range(rng.randint(1, 12))
    }
    texts = {
        id_: rng.choice(("", "the", perturbed(rng, rng.choice(answers)) if answers else text(rng)))
        for id_, answers in golds.items()
        if rng.random() < 0.98
    }
    odds = {id_: rng.choice((0.0, 0.5, 1.0, rng.gauss(0, 2))) for id_ in texts}
    shuffled = dict(rng.sample(sorted(odds.items()), len(odds)))
    return {
        "golds": golds,
        "texts": texts,
        "odds": rng.choice((None, shuffled)),
        "threshold": rng.choice((1.0, 0.0, 0.5)),
    }


def final_text(rng: random.Random) -> dict[str, Any]:
    orig = rng.choice((text(rng), passage(rng, 6)))
    lower = rng.random() < 0.7
    spaced = "".join(c if c.isalnum() else f" {c} " for c in (orig.lower() if lower else orig)).split()
    start = rng.randint(0, len(spaced))
    pred = " ".join(spaced[start : rng.randint(start, len(spaced))])
    return {"pred": rng.choice((pred, pred, pred[1:], orig, text(rng))), "orig": orig, "lower": lower}


def prediction(rng: random.Random, family: str) -> dict[str, Any]:
    return {
        "family": family,
        "examples": [example(rng, number, 60) for number in range(rng.randint(1, 4))],
        "settings": {**settings(rng), "padding_strategy": rng.choice(("max_length", "do_not_pad"))},
        "seed": rng.random(),
        "digits": rng.choice((0, 6)),  # 0: with ties
        "options": [rng.choice((1, 3, 20)), rng.choice((1, 5, 30)), rng.random() < 0.7],
        "null": [rng.random() < 0.7, rng.choice((0.0, -3.0, 3.0))],
    }


def answer(rng: random.Random, family: str) -> dict[str, Any]:
    pairs = [
        {"question": rng.choice(QUESTIONS), "context": passage(rng, rng.choice((2, 20, 150))) or "x"}
        for _ in range(rng.choice((1, 1, 1, 3)))
    ]
    length = rng.choice((72, 96, 128))
    options = {
        "max_seq_len": length,
        "doc_stride": rng.choice((0, 5, 30, 200)),
        "top_k": rng.choice((1, 1, 3, 40)),
        "max_answer_len": rng.choice((1, 5, 15)),
        "handle_impossible_answer": rng.random() < 0.5,
        "align_to_words": rng.random() < 0.6,
    }
    chosen = dict(rng.sample(sorted(options.items()), rng.randint(0, len(options)))) | {"max_seq_len": length}
    return {
        "family": family,
        "args": [pairs],
        "options": chosen,
        "side": "right" if rng.random() < 0.75 else "left",
    }


def write_sets(folder: Path, rng: random.Random, count: int) -> list[str]:
    """File names of new random data sets; some unanswerable questions are not marked as such."""
    for number in range(count * 10):
        questions = [
            {
                "id": f"q{n}",
                "question": "Who?",
                **({"is_impossible": rng.random() < 0.5} if rng.random() < 0.8 else {}),
                "answers": [
                    {"text": "Mira", "answer_start": rng.randint(0, 3)} for _ in range(rng.randint(n, 3))
                ],
            }
            for n in range(2)
        ]
        article = {"title": "t", "paragraphs": [{"context": passage(rng, 9) + " Mira", "qas": questions}]}
        (folder / f"set{number}.json").write_text(json.dumps({"data": [article]}), encoding="utf-8")
    return [f"set{number}.json" for number in range(count * 10)]


def write_cases(folder: Path, scale: int = 1) -> dict[str, list[Any]]:
    """Cases by kind, ``scale`` times as many; their models, tokenizers and data sets go to ``folder``."""
    for family in FAMILIES:
        positions = {"max_position_embeddings": 162}
        make_checkpoint(family, folder / family, [f"{SENTENCE} " * 3, *QUESTIONS], **positions)
        model = json.loads((folder / family / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        if family == "bert":
            pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
            (folder / family / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        if family == "roberta":
            (folder / family / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
            merges = "\n".join(" ".join(pair) for pair in model["merges"])
            (folder / family / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    rng = random.Random(457)
    return {
        "pairs": [{"pair": [gold := text(rng), perturbed(rng, gold)]} for _ in range(1000 * scale)],
        "evaluations": [evaluation(rng) for _ in range(100 * scale)],
        "final_texts": [final_text(rng) for _ in range(500 * scale)],
        "logits": [
            {"logits": [round(rng.gauss(0, 3), 6 * (n > 1)) for _ in range(rng.randint(0, 40))], "n": n}
            for n in (1, 5, 20) * 10 * scale
        ],
        "features": [
            {
                "family": family,
                "examples": [example(rng, number, 60) for number in range(3)],
                "settings": {**settings(rng), "is_training": training},
            }
            for family in FAMILIES[:3]
            for training in (True, False) * 5 * scale
        ],
        "predictions": [prediction(rng, family) for family in FAMILIES[:3] for _ in range(10 * scale)],
        "processors": [
            {"version": version, "training": training, "file": name}
            for version in "12"
            for training in (True, False)
            for name in write_sets(folder, rng, scale)
        ],
        "answers": [answer(rng, family) for family in FAMILIES for _ in range(25 * scale)],
    }

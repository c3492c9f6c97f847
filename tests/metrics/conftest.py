"""The plain reference evaluation, and invented questions with perturbed predictions."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qa_arch.types.text import Example, Gold, QuestionSet

WORDS = (
    *("the", "a", "an", "The", "river", "Ferry", "lantern", "Théodore", "naïve", "Zürich", "lamp", "lamp"),
    *("co-operative", "U.S.", "1,204", "19th", "o'clock", "½", "don’t", "“quoted”", "–", "the–best", "$5"),
    *("Ω", "ΣΑΣ", "İstanbul", "e\u0301clair", "東京", "🦊", "the\tmill", "x\u00a0y", "_under_", "a\x00b"),
)


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """The independent implementation beside this file."""
    spec = importlib.util.spec_from_file_location("plain_squad", Path(__file__).with_name("plain_squad.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def phrase(rng: random.Random) -> str:
    return rng.choice(("", "", " ", "  ")) + " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))


def invent(rng: random.Random, count: int, unanswerable: float) -> list[dict[str, Any]]:
    """Raw articles of three questions a paragraph; golds repeat, differ, or hold no token at all."""
    questions = []
    for i in range(count):
        golds = []
        if rng.random() >= unanswerable:
            golds = rng.choices([phrase(rng) for _ in range(2)], k=rng.randint(1, 4))
            if rng.random() < 0.1:
                golds = rng.choices(["the", "--", "A.", phrase(rng)], k=2)
        questions.append({"id": f"q{i}", "answers": [{"text": g, "answer_start": 0} for g in golds]})
    paragraphs = [{"qas": questions[i : i + 3]} for i in range(0, count, 3)]
    return [{"paragraphs": paragraphs[i : i + 4]} for i in range(0, len(paragraphs), 4)]


def perturb(rng: random.Random, golds: list[str]) -> str:
    """A prediction near one of ``golds``: right, clipped, stretched, shuffled, silent, ..."""
    text = rng.choice(golds) if golds else phrase(rng)
    words = text.split()
    kind = rng.randrange(10)
    if kind == 0:
        return ""
    if kind == 1:
        return rng.choice(("the", "...", " ", "AN a", "\n"))
    if kind == 2:
        return phrase(rng)
    if kind == 3:
        return text.upper() + "!"
    if kind == 4:
        return "The " + text + " " + rng.choice(WORDS)
    if kind == 5:
        return " ".join(words[1:])
    if kind == 6:
        return " ".join(words[:-1] * 2)
    if kind == 7:
        return " ".join(rng.sample(words, len(words)))
    return text


def perturbed(rng: random.Random, articles: list[dict[str, Any]]) -> dict[str, str]:
    """A prediction for each question, in shuffled order."""
    questions = [qa for a in articles for p in a["paragraphs"] for qa in p["qas"]]
    rng.shuffle(questions)
    return {qa["id"]: perturb(rng, [answer["text"] for answer in qa["answers"]]) for qa in questions}


def as_set(articles: list[dict[str, Any]], protocol: Any = "2.0") -> QuestionSet:
    questions = [qa for a in articles for p in a["paragraphs"] for qa in p["qas"]]
    examples = (
        Example(qa["id"], "", "", answers=tuple(Gold(answer["text"], 0) for answer in qa["answers"]))
        for qa in questions
    )
    return QuestionSet("invented", tuple(examples), protocol, fingerprint="")


@pytest.fixture(scope="session")
def make() -> Any:
    """``make(seed, count, unanswerable, protocol)``: raw articles, the same as a set, predictions."""

    def build(seed: int, count: int = 60, unanswerable: float = 0.4, protocol: str = "2.0"):
        rng = random.Random(seed)
        articles = invent(rng, count, unanswerable)
        return articles, as_set(articles, protocol), perturbed(rng, articles)

    return build


@pytest.fixture(scope="session")
def gold_set() -> Any:
    """``gold_set({"id": ["gold", ...]}, protocol)``: a question set written out by hand."""

    def build(golds: dict[str, list[str]], protocol: str = "2.0") -> QuestionSet:
        questions = [
            {"id": id_, "answers": [{"text": text} for text in texts]} for id_, texts in golds.items()
        ]
        return as_set([{"paragraphs": [{"qas": questions}]}], protocol)

    return build

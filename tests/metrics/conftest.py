"""The plain reference evaluation, and question sets written out by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qa_arch.types.text import Example, Gold, QuestionSet


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """The independent implementation beside this file."""
    spec = importlib.util.spec_from_file_location("plain_squad", Path(__file__).with_name("plain_squad.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_set(articles: list[dict[str, Any]], protocol: Any = "2.0") -> QuestionSet:
    questions = [qa for a in articles for p in a["paragraphs"] for qa in p["qas"]]
    examples = (
        Example(qa["id"], "", "", answers=tuple(Gold(answer["text"], 0) for answer in qa["answers"]))
        for qa in questions
    )
    return QuestionSet("invented", tuple(examples), protocol, fingerprint="")


@pytest.fixture(scope="session")
def gold_set() -> Any:
    """``gold_set({"id": ["gold", ...]}, protocol)``: a question set written out by hand."""

    def build(golds: dict[str, list[str]], protocol: str = "2.0") -> QuestionSet:
        questions = [
            {"id": id_, "answers": [{"text": text} for text in texts]} for id_, texts in golds.items()
        ]
        return as_set([{"paragraphs": [{"qas": questions}]}], protocol)

    return build

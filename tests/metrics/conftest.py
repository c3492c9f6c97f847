"""The reference evaluation, and hand-written question sets."""

from types import ModuleType
from typing import Any

import pytest

from qa_arch.types import Example, Gold, QuestionSet
from tests.metrics import plain_squad


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """The independent implementation next to this file."""
    return plain_squad


@pytest.fixture(scope="session")
def gold_set() -> Any:
    """``gold_set({"id": ["gold", ...]}, protocol)``: a hand-written question set."""

    def build(golds: dict[str, list[str]], protocol: Any = "2.0") -> QuestionSet:
        examples = (
            Example(id_, "", "", answers=tuple(Gold(text, 0) for text in texts))
            for id_, texts in golds.items()
        )
        return QuestionSet("invented", tuple(examples), protocol)

    return build

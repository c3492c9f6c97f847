"""Tokenizers of four families trained on a few sentences, and question sets from these sentences."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from transformers import PreTrainedTokenizerFast

from qa_arch.features import tokenizers
from qa_arch.types import Example, Gold, QuestionSet

SENTENCES = [
    "The harbour of Velmora was dug by hand between 1804 and 1811.",
    "Its lighthouse burns whale oil, and 62 keepers have lived beneath the lamp.",
    "A café on the quay sells naïve paintings; the crème brûlée costs 3½ crowns.",
    "When the tide falls, children gather mussels and hermit crabs among the stones.",
    "The mayor (a retired pilot) re-opened the canal's northern lock in 1923.",
    "Who dug the harbour? What do the children gather? How much is the dessert?",
]


class Family(NamedTuple):
    name: str
    tokenizer: PreTrainedTokenizerFast
    segments: bool


KINDS: dict[str, tuple[tokenizers.Family, bool]] = {
    "bert": ("wordpiece", True),
    "distilbert": ("wordpiece", False),
    "roberta": ("byte_bpe", False),
    "albert": ("unigram", True),
}


@pytest.fixture(scope="session", params=KINDS)
def family(request: pytest.FixtureRequest) -> Family:
    kind, segments = KINDS[request.param]
    return Family(request.param, tokenizers.build(kind, SENTENCES, 420), segments)


@pytest.fixture(scope="session")
def bert() -> PreTrainedTokenizerFast:
    return tokenizers.build("wordpiece", SENTENCES, 420)


@pytest.fixture(scope="session")
def passage() -> str:
    """About 300 words: several windows of 64 tokens."""
    return " ".join(SENTENCES[i % 5] for i in range(25))


@pytest.fixture(scope="session")
def make_set() -> Callable[..., QuestionSet]:
    """(question, context, answer or None, ...) -> QuestionSet; an answer is (text, nth occurrence)."""

    def make(*triples: tuple[str, str, tuple[str, int] | str | None]) -> QuestionSet:
        examples = []
        for number, (question, context, answer) in enumerate(triples):
            golds = ()
            if answer is not None:
                text, nth = (answer, 0) if isinstance(answer, str) else answer
                start = -1
                for _ in range(nth + 1):
                    start = context.index(text, start + 1)
                golds = (Gold(text, start),)
            examples.append(Example(f"q{number}", question, context, "Velmora", golds))
        return QuestionSet("test", tuple(examples), "2.0")

    return make

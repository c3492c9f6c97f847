"""Rule-based models for tests of the service, and a program that serves them.

    python tests/service.py [REQUEST_SECONDS]

prints the address. The answer to a question is the first occurrence of its last word in the passage.
``wait 0.5 mill?`` takes half a second, ``boom`` raises.
"""

import math
import os
import re
import sys
import threading
import time
from functools import cache
from typing import Any

from torch import nn

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.qa.reader import Reader
from qa_arch.serving import ServiceOptions
from qa_arch.serving.app import create_app
from qa_arch.serving.guard import address, bind, serve
from qa_arch.types import Candidate, Prediction

WORD = re.compile(r"\w+|[^\w\s]+")


@cache
def _config() -> Config:
    return validate(compose(["model=bert"]))


class RuleReader(Reader):
    """Finds the last word of the question; records the batches and threads.

    With ``attention``, a passage word attends to the question word with its first letter, or to none.
    """

    def __init__(self, *, seconds: float = 0.0, attention: bool = False) -> None:
        super().__init__(nn.Linear(3, 2), None, None, _config(), segments=False)
        self.seconds, self.shows_attention = seconds, attention
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()

    def predict(self, pairs, *, decode=None, batch_size=None):
        questions = [question for question, _ in pairs]
        self.batches.append(questions)
        self.threads.add(threading.current_thread().name)
        waits = (float(re.match(r"wait (\S+)", question)[1]) for question in questions if "wait " in question)
        time.sleep(max(waits, default=self.seconds))
        return [self._predict(str(row), *pair) for row, pair in enumerate(pairs)]

    def _predict(self, id_: str, question: str, context: str) -> Prediction:
        if question == "boom":
            raise RuntimeError("the model is broken")
        words = WORD.findall(question.rstrip("?"))
        if not words or not context.strip():
            return Prediction(id_, None, math.inf, 0)
        null = Candidate("", 0, 0, math.log(0.2), 0.2)
        places = [match.span() for match in re.finditer(re.escape(words[-1]), context, re.IGNORECASE)]
        others = [match.span() for match in WORD.finditer(context) if match.span() not in places]
        if not places:
            spans = [_candidate(context, place, 0.1) for place in others[:2]]
            best = spans[0] if spans else None
            return Prediction(id_, best, 5.0, 1, (Candidate("", 0, 0, 0.0, 0.8), *spans))
        spans = [
            _candidate(context, place, 0.7 / 8**rank) for rank, place in enumerate([*places, *others][:3])
        ]
        return Prediction(id_, spans[0], -5.0, 1, (*spans, null))

    @property
    def has_attention(self) -> bool:
        return self.shows_attention

    def attention(self, question: str, context: str) -> dict[str, Any]:
        passage, words = ([match.span() for match in WORD.finditer(text)] for text in (context, question))
        weights = [[0.1 / len(words)] * (len(words) + 1) for _ in passage]
        for row, (start, _) in enumerate(passage):
            equal = [
                at for at, (first, _) in enumerate(words) if question[first].lower() == context[start].lower()
            ]
            weights[row][equal[0] if equal else -1] = 0.9
        return {"context": passage, "question": words, "weights": weights}


def _candidate(context: str, place: tuple[int, int], probability: float) -> Candidate:
    return Candidate(context[slice(*place)], *place, math.log(probability), probability)


def models() -> dict[str, RuleReader]:
    return {"first": RuleReader(attention=True), "second": RuleReader()}


if __name__ == "__main__":
    options = ServiceOptions(
        request_seconds=float(sys.argv[1]) if sys.argv[1:] else 60, token=os.environ.get("QA_ARCH_TOKEN")
    )
    bound = bind("127.0.0.1", 0)
    serve(create_app(models(), options), bound, options, ready=lambda: print(address(bound), flush=True))

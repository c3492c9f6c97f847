"""Prompts for language models: question, passage and few-shot examples as messages; parsing of replies."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from qa_arch.data.answer_files import UNANSWERABLE
from qa_arch.errors import DataError
from qa_arch.types.text import Example, QuestionSet

FORCED = (
    "Passage: {passage}\n\nQuestion: {question}\n\n"
    "Answer with the shortest span of the passage that answers the question, word for word."
)
"""User turn that forces an answer."""
TEMPLATE = f'{FORCED[:-1]}, or with "{UNANSWERABLE}" if the passage does not answer it.'
"""User turn of the question and of each shot."""
Messages = list[dict[str, str]]
"""``user`` and ``assistant`` turns, in the format of chat templates and servers."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's best answer to a question, and its cost in tokens."""

    text: str
    """Generated text, or the most likely span; "" if only "unanswerable" is known."""
    null_odds: float | None
    """log P("unanswerable") - log P(answer); None if the server returns no log-probabilities."""
    prompt_tokens: int | None
    """None if the server reports no token counts."""
    answer_tokens: int | None
    """Tokens generated, or scored after the prompt; None as above."""


def messages(example: Example, shots: Sequence[Example]) -> Messages:
    """Few-shot examples with their answers, then the question."""
    turns = []
    for shot in shots:
        gold = shot.answers[0].text if shot.answers else UNANSWERABLE
        turns += [question_turn(shot), {"role": "assistant", "content": gold}]
    return [*turns, question_turn(example)]


def question_turn(example: Example, template: str = TEMPLATE) -> dict[str, str]:
    return {"role": "user", "content": template.format(passage=example.context, question=example.question)}


def draw_shots(train: QuestionSet, count: int, seed: int, sets: Sequence[QuestionSet]) -> list[Example]:
    """Draw ``count`` examples of ``train``, half of them unanswerable if it has any, in random order.

    Deterministic given ``seed``; the examples share neither article nor passage with ``sets``. Raises
    DataError if there are too few.
    """
    titles = {title for questions in sets for title in questions.titles} - {""}
    passages = {example.context for questions in sets for example in questions.examples}
    pool = [e for e in train.examples if e.title not in titles and e.context not in passages]
    pools = {answerable: [e for e in pool if e.answerable is answerable] for answerable in (True, False)}
    unanswerable = count // 2 if pools[False] else 0
    counts = {True: count - unanswerable, False: unanswerable}
    for answerable, candidates in pools.items():
        if len(candidates) < counts[answerable]:
            raise DataError(
                f"{train.name}: only {len(candidates)} {'' if answerable else 'un'}answerable questions about"
                f" passages outside the scored sets, {counts[answerable]} are needed; lower --shots"
            )
    generator = random.Random(seed)
    shots = [shot for key, candidates in pools.items() for shot in generator.sample(candidates, counts[key])]
    generator.shuffle(shots)
    return shots


def as_span(text: str, context: str) -> str:
    """Span of the passage that matches a reply up to case, quotes and a final full stop; else the reply's
    first line."""
    line = next(iter(text.strip().splitlines()), "")
    for attempt in (line, line.strip(" \"'*"), line.strip(" \"'*.")):
        exact = re.escape(attempt)
        if attempt and (match := re.search(exact, context) or re.search(exact, context, re.IGNORECASE)):
            return match[0]
    return line

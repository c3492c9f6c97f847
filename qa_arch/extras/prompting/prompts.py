"""Prompts of language models: the question, its passage and shots as messages, and what a reply means."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from qa_arch.data.answer_files import UNANSWERABLE
from qa_arch.errors import DataError
from qa_arch.types.text import Example, QuestionSet

FORCED = (
    "Passage: {passage}\n\nQuestion: {question}\n\n"
    "Answer with the shortest span of the passage that answers the question, word for word."
)
"""The turn that asks for an answer in any case."""
TEMPLATE = f'{FORCED[:-1]}, or with "{UNANSWERABLE}" if the passage does not answer it.'
"""The turn of the question, and of each shot."""
Messages = list[dict[str, str]]
"""Turns of ``user`` and ``assistant``, as chat templates and servers take them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The best answer of a model to a question, and what it cost."""

    text: str
    """What the model wrote, or the likeliest span; "" where only "unanswerable" is known."""
    null_odds: float | None
    """log P("unanswerable") - log P(answer); None where the server gives no log-probabilities."""
    prompt_tokens: int
    answer_tokens: int
    """Tokens that were generated, or scored behind the prompt."""


def messages(example: Example, shots: Sequence[Example], template: str = TEMPLATE) -> Messages:
    """The shots with their answers, then the question."""
    turns = []
    for shot in shots:
        gold = shot.answers[0].text if shot.answers else UNANSWERABLE
        turns += [question_turn(shot, TEMPLATE), {"role": "assistant", "content": gold}]
    return [*turns, question_turn(example, template)]


def question_turn(example: Example, template: str) -> dict[str, str]:
    return {"role": "user", "content": template.format(passage=example.context, question=example.question)}


def draw_shots(train: QuestionSet, count: int, seed: int, sets: Sequence[QuestionSet]) -> list[Example]:
    """``count`` examples of ``train``, half of them unanswerable where it has such, in random order.

    They are decided by the seed, and share neither article nor passage with ``sets``. DataError where there
    are too few.
    """
    titles = {title for questions in sets for title in questions.titles} - {""}
    passages = {example.context for questions in sets for example in questions.examples}
    pool = [e for e in train.examples if e.title not in titles and e.context not in passages]
    of_kind = {kind: [e for e in pool if e.answerable is kind] for kind in (True, False)}
    unanswerable = count // 2 if of_kind[False] else 0
    wanted = {True: count - unanswerable, False: unanswerable}
    for kind, own in of_kind.items():
        if len(own) < wanted[kind]:
            raise DataError(
                f"{train.name}: {len(own)} {'' if kind else 'un'}answerable questions about other passages"
                f" than those of the scored sets, {wanted[kind]} are wanted; lower --shots"
            )
    generator = random.Random(seed)
    shots = [shot for kind, own in of_kind.items() for shot in generator.sample(own, wanted[kind])]
    generator.shuffle(shots)
    return shots


def is_null(text: str) -> bool:
    """Whether a reply says that there is no answer."""
    return text.strip(" \t\n\"'.*").casefold().startswith(UNANSWERABLE)


def as_span(text: str, context: str) -> str:
    """The place of the passage that a reply repeats, in any case of letters and without quotes and full stop;
    the reply's first line where there is none."""
    line = next(iter(text.strip().splitlines()), "")
    for attempt in (line, line.strip(" \"'*"), line.strip(" \"'*.")):
        start = context.find(attempt)
        start = context.casefold().find(attempt.casefold()) if start < 0 else start
        if attempt and start >= 0 and context[start : start + len(attempt)].casefold() == attempt.casefold():
            return context[start : start + len(attempt)]
    return line

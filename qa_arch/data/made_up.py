"""Unanswerable questions made of answerable ones, by rules that read capital letters, digits and a list.

They are no substitute for questions that people wrote to look answerable (Rajpurkar et al. 2018): a swapped
name may be another of the same thing, and the question then still has its answer. No model chose or judged
them.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from qa_arch.data.question_sets import question_set
from qa_arch.types.text import Example, QuestionSet

Kind = Literal["entity", "antonym", "paragraph"]
SWAPS: tuple[Kind, ...] = ("entity", "antonym")
"""The kinds that are made where none are named; ``paragraph`` is the weak one, as words alone tell it."""

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
NAME = rf"(?!(?:{MONTHS})\b)[A-Z][\w’'-]+"
ENTITY = re.compile(
    rf"\b(?:(?P<month>{MONTHS})|(?P<year>(?:1\d|20)\d\d)|(?P<number>\d+(?:[.,]\d+)*)"
    rf"|(?P<name>{NAME}(?:\ {NAME})*))\b"
)
SENTENCE_START = re.compile(r"(?:^|[.!?:;]['\"”’)]*\s)\W*$")
OPPOSITES = """
    first last, earliest latest, early late, before after, above below, inside outside,
    largest smallest, larger smaller, large small, biggest tiniest, highest lowest, higher lower, high low,
    longest shortest, longer shorter, long short, oldest youngest, older younger, old young,
    strongest weakest, stronger weaker, strong weak, fastest slowest, faster slower, fast slow,
    hottest coldest, hotter colder, hot cold, best worst, better worse, good bad, richest poorest, rich poor,
    most least, majority minority, maximum minimum, major minor, always never, increase decrease,
    increased decreased, increases decreases, rise fall, rose fell, began ended, begin end, begins ends,
    won lost, win lose, wins loses, built destroyed, opened closed, accepted rejected,
    accept reject, allowed forbidden, legal illegal, supported opposed, support oppose, attacked defended,
    public private, male female, positive negative, internal external, ancient modern, common rare,
    north south, northern southern, northernmost southernmost, east west, eastern western
"""
ANTONYMS: Mapping[str, str] = {
    word: other
    for first, second in (pair.split() for pair in OPPOSITES.split(","))
    for word, other in ((first, second), (second, first))
}


@dataclass(frozen=True, slots=True)
class Entity:
    """A name, a number, a year or a month in a text, by its look."""

    kind: str
    text: str
    start: int


EntitiesOf = Callable[[str], tuple[Entity, ...]]


def with_made_up(
    questions: QuestionSet, share: float, seed: int, kinds: Sequence[Kind] = SWAPS
) -> QuestionSet:
    """``questions`` and, behind the question that each is made of, at most ``share`` times as many
    unanswerable ones as there are answerable ones; fewer where the rules find no more.

    * ``entity``: a name, number, year or month of the question becomes another of its kind from the passage,
      or where that has none from another passage of the article.
    * ``antonym``: a word of the question becomes its opposite (``ANTONYMS``).
    * ``paragraph``: the question as it is, about another passage of the article without the answer's text.

    The set is a function of the arguments. Made-up questions have ``kind`` ``made_up_KIND`` and the id
    ``ID-made_up_KIND``; after a swap the old answers are ``plausible``.
    """
    answerable = (example for example in questions.examples if example.answerable)
    drawn = sorted(answerable, key=lambda example: _draw(seed, "order", example).random())
    entities_of = cache(lambda passage: tuple(entities(passage)))  # for as long as the set is made
    passages: dict[str, dict[str, None]] = defaultdict(dict)
    for example in questions.examples:
        passages[example.title][example.context] = None
    taken = {(example.context, example.question.casefold()) for example in questions.examples}
    made: dict[str, Example] = {}
    target = round(share * len(drawn))
    for example in drawn:
        if len(made) == target:
            break
        others = [text for text in passages[example.title] if text is not example.context]
        for candidate in _candidates(example, others, kinds, entities_of, _draw(seed, "swap", example)):
            key = candidate.context, candidate.question.casefold()
            if key not in taken:
                taken.add(key)
                made[example.id] = candidate
                break
    examples = [e for origin in questions.examples for e in (origin, made.get(origin.id)) if e is not None]
    protocol = "2.0" if made else questions.protocol
    return question_set(f"{questions.name}.made_up", examples, protocol, questions.skipped)


def _draw(seed: int, purpose: str, example: Example) -> random.Random:
    """Random numbers of a question for ``purpose``, whatever stands before it."""
    return random.Random(f"{seed}\0{purpose}\0{example.id}")


def _candidates(
    example: Example,
    others: Sequence[str],
    kinds: Sequence[Kind],
    entities_of: EntitiesOf,
    draw: random.Random,
) -> Iterator[Example]:
    """An attempt of each kind that is possible, the kinds in a drawn order."""
    makers: dict[Kind, Callable[[], str | None]] = {
        "entity": lambda: _with_other_entity(example, others, entities_of, draw),
        "antonym": lambda: _with_antonym(example.question, draw),
    }
    for kind in draw.sample(sorted(kinds), len(kinds)):
        label = f"made_up_{kind}"
        made = replace(example, id=f"{example.id}-{label}", answers=(), plausible=(), kind=label)
        if kind == "paragraph":
            golds = [gold.text.casefold() for gold in example.answers]
            without = [text for text in others if not any(gold in text.casefold() for gold in golds)]
            if without:
                yield replace(made, context=draw.choice(without))
        elif (question := makers[kind]()) is not None:
            yield replace(made, question=question, plausible=example.answers)


def _with_other_entity(
    example: Example, others: Sequence[str], entities_of: EntitiesOf, draw: random.Random
) -> str | None:
    """The question with one of its entities exchanged; None where there is no other of its kind."""
    question = example.question
    own = list(entities(question, example.context))
    draw.shuffle(own)
    used = {word for text in (question, *(gold.text for gold in example.answers)) for word in _words(text)}
    for entity in own:
        for passages in ([example.context], others):
            fitting = sorted(
                {
                    other.text
                    for passage in passages
                    for other in entities_of(passage)
                    if other.kind == entity.kind and not used & _words(other.text)
                }
            )
            if fitting:
                end = entity.start + len(entity.text)
                return question[: entity.start] + draw.choice(fitting) + question[end:]
    return None


def _with_antonym(question: str, draw: random.Random) -> str | None:
    """The question with one word turned into its opposite; None where no word has one."""
    words = [match for match in re.finditer(r"[A-Za-z]+", question) if match[0].lower() in ANTONYMS]
    if not words:
        return None
    word = draw.choice(words)
    opposite = ANTONYMS[word[0].lower()]
    opposite = opposite.capitalize() if word[0][0].isupper() else opposite
    return question[: word.start()] + opposite + question[word.end() :]


def entities(text: str, *others: str) -> Iterator[Entity]:
    """The entities of ``text``. A capital letter at the front of a sentence is no name's, unless the word
    has one inside a sentence of ``text`` or ``others`` as well."""
    inside = {word for source in (text, *others) for word in _names_inside(source)}
    for match in ENTITY.finditer(text):
        kind, start, words = str(match.lastgroup), match.start(), match[0]
        if kind in ("name", "month") and _begins_sentence(text, start):
            first, _, rest = words.partition(" ")
            if first not in inside:
                start, words = start + len(first) + 1, rest
        if words:
            yield Entity(kind, words, start)


def _names_inside(text: str) -> Iterable[str]:
    """Words with a capital letter that does not stand at the front of a sentence."""
    return (m[0] for m in re.finditer(rf"\b{NAME}", text) if not _begins_sentence(text, m.start()))


def _begins_sentence(text: str, at: int) -> bool:
    return SENTENCE_START.search(text, max(0, at - 8), at) is not None if at else True


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))

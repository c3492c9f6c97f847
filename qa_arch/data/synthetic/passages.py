"""Synthetic passages: their facts, wordings and the offset of each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from qa_arch.data.synthetic.names import Names, Value
from qa_arch.data.synthetic.relations import RELATIONS, SUBJECTS, Relation, SubjectType
from qa_arch.types.text import Gold

EVENTS = (
    "the great flood",
    "the long drought",
    "the silver fair",
    "the second siege",
    "the harvest riots",
    "the night of comets",
)
_DENIED_SHARE = 0.5
"""Share of single-subject passages that deny one of their facts."""
_SHORT_MENTION_SHARE = 0.85
"""How often a single-subject passage says "the town" and not its name."""
_ASIDE_SHARE = 0.15
"""How often names that are no answers stand before a fact, and behind one."""
_FILLER_SHARE = 0.5
"""How often a passage has a sentence that states no fact."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a passage; it has ``trait``, which rules out ``excluded``."""

    name: str
    noun: str
    type: SubjectType
    trait: str
    excluded: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement; ``start`` is the character offset of the value's text in the context."""

    subject: Subject
    relation: Relation
    wording: int
    value: Value
    denied: bool = False
    event: str | None = None
    start: int = -1

    @property
    def golds(self) -> tuple[Gold, ...]:
        return tuple(Gold(part, self.start + offset) for offset, part in self.value.golds)


@dataclass(frozen=True, slots=True)
class Passage:
    context: str
    subjects: tuple[Subject, ...]
    facts: tuple[Fact, ...]
    """Everything the context states; any other relation of a subject is open."""


def single_subject(rng: Random, names: Names) -> Passage:
    """A passage on one subject, each relation at most once (levels 1 and 2).

    One stated relation has an opposite that is not stated, and in some one fact is denied.
    """
    names.fresh()
    kind = rng.choice(SUBJECTS)
    subject = _subject(rng, names, kind)
    denied = rng.random() < _DENIED_SHARE
    facts = [_fact(rng, names, subject, relation) for relation in _draw_relations(rng, kind, 3 + denied)]
    if denied:
        facts[-1] = replace(facts[-1], denied=True)
    return _compose(rng, names, (subject,), facts, lambda s: _mention(rng, s))


def two_subjects(rng: Random, names: Names) -> Passage:
    """A passage on two subjects of one type that share relations (level 3).

    Two relations are stated of both, two of one subject only; one fact is denied and one is tied to an event.
    """
    names.fresh()
    kind = rng.choice(SUBJECTS)
    pair = (_subject(rng, names, kind), _subject(rng, names, kind))
    first, second, third, fourth = _draw_relations(rng, kind, 4)
    stated = [(pair[0], second), (pair[1], second), (pair[0], third), (pair[1], third)]
    stated += [(rng.choice(pair), first), (rng.choice(pair), fourth)]
    facts = [_fact(rng, names, subject, relation) for subject, relation in stated]
    facts[-1] = replace(facts[-1], denied=True)
    dated = rng.randrange(len(facts) - 1)
    facts[dated] = replace(facts[dated], event=rng.choice(EVENTS))
    return _compose(rng, names, pair, facts, lambda s: s.name)


def _subject(rng: Random, names: Names, kind: SubjectType) -> Subject:
    name = names.subject(kind.name)
    trait, excluded = rng.sample(rng.choice(kind.traits), 2)
    return Subject(name, rng.choice(kind.nouns), kind, trait, excluded)


def _draw_relations(rng: Random, kind: SubjectType, count: int) -> list[Relation]:
    """``count`` relations of a type; the first has an opposite, and that one is not among them."""
    first = rng.choice([name for name in kind.relations if RELATIONS[name].opposite])
    remaining = [name for name in kind.relations if name not in (first, RELATIONS[first].opposite)]
    return [RELATIONS[name] for name in (first, *rng.sample(remaining, count - 1))]


def _fact(rng: Random, names: Names, subject: Subject, relation: Relation) -> Fact:
    return Fact(subject, relation, rng.randrange(len(relation.wordings)), names.value(relation.value))


def _mention(rng: Random, subject: Subject) -> str:
    return f"the {subject.noun}" if rng.random() < _SHORT_MENTION_SHARE else subject.name


def _compose(
    rng: Random,
    names: Names,
    subjects: Sequence[Subject],
    facts: Sequence[Fact],
    mention: Callable[[Subject], str],
) -> Passage:
    """Passage text: the leads, then the facts in random order with at most one filler sentence."""
    sentences = [f"{subject.name} is a {subject.trait} {subject.noun}." for subject in subjects]
    order: list[Fact | None] = [*facts, None] if rng.random() < _FILLER_SHARE else [*facts]
    rng.shuffle(order)
    length = sum(len(sentence) + 1 for sentence in sentences)
    placed = []
    for fact in order:
        if fact is None:
            sentence = _filler(rng, names)
        else:
            before, after = _statement(rng, names, fact, mention(fact.subject))
            placed.append(replace(fact, start=length + len(before)))
            sentence = before + fact.value.text + after
        sentences.append(sentence)
        length += len(sentence) + 1
    return Passage(" ".join(sentences), tuple(subjects), tuple(placed))


def _statement(rng: Random, names: Names, fact: Fact, subject: str) -> tuple[str, str]:
    """The sentence of a fact, as the text before and after its value."""
    wording = fact.relation.wordings[fact.wording]
    never = "never " if fact.denied else ""
    before = wording.before.format(s=subject, n=never)
    after = wording.after.format(s=subject, n=never)
    if fact.event:
        before = f"After {fact.event}, {before}"
    elif rng.random() < _ASIDE_SHARE:
        before = _opening(rng, names) + before
    closing = _closing(rng, names) if rng.random() < _ASIDE_SHARE else ""
    return before[:1].upper() + before[1:], f"{after}{closing}."


def _opening(rng: Random, names: Names) -> str:
    """Names and years that are no answers, in front of the fact."""
    return rng.choice(
        (
            lambda: f"According to {names.person()}, ",
            lambda: f"As a letter of {names.year()} has it, ",
            lambda: f"As they say in {names.place()}, ",
        )
    )()


def _closing(rng: Random, names: Names) -> str:
    """The same behind the fact."""
    return rng.choice(
        (
            lambda: f", as {names.person()} noted",
            lambda: f", says a chronicle of {names.year()}",
            lambda: f", and {names.number()} guests came from {names.place()}",
        )
    )()


def _filler(rng: Random, names: Names) -> str:
    return rng.choice(
        (
            lambda: f"Travellers from {names.place()} still speak of {names.person()}.",
            lambda: f"In {names.year()} a storm kept {names.person()} away.",
            lambda: f"The archive keeps {names.number()} letters to {names.person()}.",
            lambda: f"Songs of {names.value('clan').text} are sung in {names.place()}.",
            lambda: f"Each spring {names.value('guild').text} meets on {names.value('river').text}.",
        )
    )()

"""Synthetic passages: relations and their wordings, the facts of a passage, and the offset of each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from qa_arch.data.synthetic.names import Names, Value
from qa_arch.types.text import Gold

_RELATIONS = """
founder person - | {s} was {n}{v} by {o} | Who {n}{v} {s}? | founded, established
designer person - | {s} was {n}{v} by {o} | Who {n}{v} {s}? | designed, planned
teacher person - | {s} was {n}{v} by {o} | Who {n}{v} {s}? | taught, instructed
buyer guild seller | {s} was {n}{v} by {o} | Who {n}{v} {s}? | bought, acquired
seller guild buyer | {s} was {n}{v} by {o} | Who {n}{v} {s}? | sold, relinquished
attacker clan defender | {s} was {n}{v} by {o} | Who {n}{v} {s}? | attacked, besieged
defender clan attacker | {s} was {n}{v} by {o} | Who {n}{v} {s}? | defended, protected
opening year closing | {s} was {n}{v} in {o} | In which year was {s} {n}{v}? | opened, inaugurated
closing year opening | {s} was {n}{v} in {o} | In which year was {s} {n}{v}? | closed, abandoned
destruction year rebuilding | {s} was {n}{v} in {o} | In which year was {s} {n}{v}? | destroyed, ruined
rebuilding year destruction | {s} was {n}{v} in {o} | In which year was {s} {n}{v}? | rebuilt, restored
election year dismissal | {s} was {n}{v} in {o} | In which year was {s} {n}{v}? | elected, appointed
dismissal year election | {s} was {n}{v} in {o} | In which year was {s} {n}{v}? | dismissed, ousted
birth place death | {s} was {n}{v} in {o} | Where was {s} {n}{v}? | born, christened
death place birth | {s} had {n}{v} in {o} | Where had {s} {n}{v}? | died, perished
seat place - | {s} was {n}{v} in {o} | Where was {s} {n}{v}? | based, headquartered
capital province - | {s} was {n}the {v} of {o} | Which province was {s} {n}the {v} of? | capital, metropolis
river river - | {s} was {n}{v} by {o} | Which river was {s} {n}{v} by? | reached, touched
author book - | {o} was {n}{v} by {s} | What was {n}{v} by {s}? | written, composed
staff people - | {s} had {n}{v} {o} | How many people had {s} {n}{v}? | employed, hired
inhabitants people - | {s} was {n}{v} by {o} | How many people was {s} {n}{v} by? | inhabited, populated
height metres - | {s} had {n}a {v} of {o} | What {v} had {s} {n}? | height
height metres - | {s} was {n}{o} {v} | How {v} was {s} {n}? | tall
price crowns - | {s} had {n}{v} {o} | How much had {s} {n}{v}? | cost
price crowns - | {s} was {n}{v} at {o} | At how much was {s} {n}{v}? | priced
pay crowns - | {s} was {n}{v} {o} | How much was {s} {n}{v}? | paid, granted
"""
"""Name, type of its value and opposite; statement; question; the relation words, each a wording.

``{s}`` is the subject, ``{o}`` the value, ``{n}`` the place of "never " in a denial, ``{v}`` the relation
word. Statement and question of a wording share that word (level 1); another wording is a paraphrase.
"""


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to state a relation (``before`` and ``after`` the value) and to ask for its value."""

    before: str
    after: str
    question: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between subjects of certain types and a value of one type."""

    name: str
    value: str
    wordings: tuple[Wording, ...]
    opposite: str | None = None


@dataclass(frozen=True, slots=True)
class SubjectType:
    """A type of thing that passages are about; ``traits`` are pairs of adjectives that exclude each other."""

    nouns: tuple[str, ...]
    name: str
    traits: tuple[tuple[str, str], ...]
    relations: tuple[str, ...]


def _relations() -> dict[str, Relation]:
    """``_RELATIONS`` by name; two lines of one name add up."""
    relations: dict[str, Relation] = {}
    for line in _RELATIONS.strip().splitlines():
        head, statement, question, words = line.split(" | ")
        name, value, opposite = head.split()
        relation = relations.get(name) or Relation(name, value, (), None if opposite == "-" else opposite)
        for word in words.split(", "):
            before, after = statement.replace("{v}", word).split("{o}")
            wording = Wording(before, after, question.replace("{v}", word))
            relation = replace(relation, wordings=(*relation.wordings, wording))
        relations[name] = relation
    return relations


RELATIONS = _relations()
SUBJECTS: tuple[SubjectType, ...] = (
    SubjectType(
        ("town", "city"),
        "{place}",
        (("northern", "southern"), ("coastal", "landlocked"), ("walled", "wall-less")),
        ("founder", "attacker", "defender", "destruction", "rebuilding", "capital", "river", "inhabitants"),
    ),
    SubjectType(
        ("painter", "poet", "senator"),
        "{person}",
        (("left-handed", "right-handed"), ("wealthy", "penniless"), ("tall", "short")),
        ("teacher", "election", "dismissal", "birth", "death", "author", "pay"),
    ),
    SubjectType(
        ("firm", "company"),
        "{place} Works",
        (("private", "state-owned"), ("small", "large"), ("local", "foreign")),
        ("founder", "buyer", "seller", "opening", "closing", "seat", "staff", "price"),
    ),
    SubjectType(
        ("tower", "monument"),
        "{place} Tower",
        (("stone", "wooden"), ("round", "square"), ("white", "black")),
        ("designer", "opening", "closing", "river", "height", "price"),
    ),
)

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
_LEADS = ("According to {person}, ", "As a letter of {year} has it, ", "As they say in {place}, ")
_CLOSINGS = (
    ", as {person} noted",
    ", says a chronicle of {year}",
    ", and {number} guests came from {place}",
)
_FILLER_SHARE = 0.5
"""How often a passage has a sentence that states no fact."""
_FILLERS = (
    "Travellers from {place} still speak of {person}.",
    "In {year} a storm kept {person} away.",
    "The archive keeps {number} letters to {person}.",
    "Songs of {clan} are sung in {place}.",
    "Each spring {guild} meets on {river}.",
)


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
    facts = _facts(rng, names, [(subject, stated) for stated in _draw_relations(rng, kind, 3 + denied)])
    if denied:
        facts[-1] = replace(facts[-1], denied=True)
    return _compose(rng, names, (subject,), facts)


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
    facts = _facts(rng, names, stated)
    facts[-1] = replace(facts[-1], denied=True)
    dated = rng.randrange(len(facts) - 1)
    facts[dated] = replace(facts[dated], event=rng.choice(EVENTS))
    return _compose(rng, names, pair, facts)


def _subject(rng: Random, names: Names, kind: SubjectType) -> Subject:
    name = names.subject(kind.name)
    trait, excluded = rng.sample(rng.choice(kind.traits), 2)
    return Subject(name, rng.choice(kind.nouns), kind, trait, excluded)


def _draw_relations(rng: Random, kind: SubjectType, count: int) -> list[Relation]:
    """``count`` relations of a type; the first has an opposite, and that one is not among them."""
    first = rng.choice([name for name in kind.relations if RELATIONS[name].opposite])
    remaining = [name for name in kind.relations if name not in (first, RELATIONS[first].opposite)]
    return [RELATIONS[name] for name in (first, *rng.sample(remaining, count - 1))]


def _facts(rng: Random, names: Names, stated: Sequence[tuple[Subject, Relation]]) -> list[Fact]:
    return [
        Fact(subject, relation, rng.randrange(len(relation.wordings)), names.value(relation.value))
        for subject, relation in stated
    ]


def _compose(rng: Random, names: Names, subjects: Sequence[Subject], facts: Sequence[Fact]) -> Passage:
    """Passage text: the leads, then the facts in random order with at most one filler sentence."""
    sentences = [f"{subject.name} is a {subject.trait} {subject.noun}." for subject in subjects]
    order: list[Fact | None] = [*facts, None] if rng.random() < _FILLER_SHARE else [*facts]
    rng.shuffle(order)
    length = sum(len(sentence) + 1 for sentence in sentences)
    placed = []
    for fact in order:
        if fact is None:
            sentence = names.fill(rng.choice(_FILLERS))
        else:
            mention = fact.subject.name
            if len(subjects) == 1 and rng.random() < _SHORT_MENTION_SHARE:
                mention = f"the {fact.subject.noun}"
            before, after = _statement(rng, names, fact, mention)
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
        before = names.fill(rng.choice(_LEADS)) + before
    closing = names.fill(rng.choice(_CLOSINGS)) if rng.random() < _ASIDE_SHARE else ""
    return before[:1].upper() + before[1:], f"{after}{closing}."

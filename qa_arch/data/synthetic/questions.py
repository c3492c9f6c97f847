"""Answerable and unanswerable questions about a passage, the latter with their kind.

The kinds are those of Table 2 of "Know What You Don't Know: Unanswerable Questions for SQuAD"
(Rajpurkar, Jia and Liang 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from qa_arch.data.synthetic.passages import EVENTS, Fact, Passage, Subject
from qa_arch.data.synthetic.relations import RELATIONS, Relation

KINDS = ("negation", "antonym", "entity_swap", "mutual_exclusion", "impossible_condition", "other_neutral")
_KINDS_BELOW_3 = ("negation", "antonym", *["other_neutral"] * 4)
"""Kinds that need neither a second subject nor a condition; repetition makes a kind more frequent."""
_TRAIT_SHARE = 0.3
_CONDITION_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Request:
    """Content of a question before wording; ``fact`` answers it, or only seems to."""

    subject: Subject
    relation: Relation
    fact: Fact | None
    never: bool = False
    trait: str | None = None
    event: str | None = None


@dataclass(frozen=True, slots=True)
class GeneratedQuestion:
    """A question, its fact, and the kind of unanswerable question (None: the fact answers it)."""

    text: str
    fact: Fact | None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionMaker:
    """Makes the questions about a passage at one level."""

    rng: Random
    passage: Passage
    level: int

    def answerable(self, count: int) -> list[GeneratedQuestion]:
        """Questions on ``count`` different facts (or all); below level 3 none about a denied fact."""
        facts = [fact for fact in self.passage.facts if self.level == 3 or not fact.denied]
        chosen = self.rng.sample(facts, min(count, len(facts)))
        return [GeneratedQuestion(self._word(self._request(fact)), fact) for fact in chosen]

    def unanswerable(self, count: int) -> list[GeneratedQuestion]:
        """Up to ``count`` different questions that the passage does not answer."""
        kinds = KINDS if self.level == 3 else _KINDS_BELOW_3
        questions: dict[str, GeneratedQuestion] = {}
        for kind in self.rng.sample(kinds, len(kinds)) * 2:
            if len(questions) == count:
                break
            if options := list(_MAKERS[kind](self)):
                request = self.rng.choice(options)
                question = self._word(request)
                questions.setdefault(question, GeneratedQuestion(question, request.fact, kind))
        return list(questions.values())

    def _request(self, fact: Fact) -> Request:
        """Request for a fact; at level 3 it may name a true trait or condition."""
        trait = event = None
        if self.level == 3 and self.rng.random() < _TRAIT_SHARE:
            trait = fact.subject.trait
        if self.level == 3 and fact.event and self.rng.random() < _CONDITION_SHARE:
            event = fact.event
        return Request(fact.subject, fact.relation, fact, fact.denied, trait, event)

    def _word(self, request: Request) -> str:
        """Text of the question."""
        subject, trait = request.subject, request.trait
        name = f"the {trait} {subject.noun} {subject.name}" if trait else subject.name
        wording = request.relation.wordings[self._wording(request.relation, request.fact)]
        question = wording.question.format(s=name, n="never " if request.never else "")
        return f"{question[:-1]} after {request.event}?" if request.event else question

    def _wording(self, relation: Relation, fact: Fact | None) -> int:
        """Wording: the passage's at level 1, another one at level 2, any at level 3."""
        count = len(relation.wordings)
        if self.level == 3 or fact is None or fact.relation is not relation:
            return self.rng.randrange(count)
        if self.level == 1:
            return fact.wording
        return (fact.wording + self.rng.randrange(1, count)) % count


def _states(passage: Passage, subject: Subject, relation: str) -> bool:
    return any(fact.subject is subject and fact.relation.name == relation for fact in passage.facts)


def _negation(maker: QuestionMaker) -> Iterator[Request]:
    """The passage denies what is asked or, at level 3, asserts what the question denies."""
    for fact in maker.passage.facts:
        if fact.denied or maker.level == 3:
            yield Request(fact.subject, fact.relation, fact, never=not fact.denied)


def _antonym(maker: QuestionMaker) -> Iterator[Request]:
    """Asks for the opposite of what is stated."""
    for fact in maker.passage.facts:
        opposite = fact.relation.opposite
        if opposite and not fact.denied and not _states(maker.passage, fact.subject, opposite):
            yield Request(fact.subject, RELATIONS[opposite], fact)


def _entity_swap(maker: QuestionMaker) -> Iterator[Request]:
    """Asks of one subject what is stated of the other alone."""
    for fact in maker.passage.facts:
        for subject in maker.passage.subjects:
            if not fact.denied and not _states(maker.passage, subject, fact.relation.name):
                yield Request(subject, fact.relation, fact)


def _mutual_exclusion(maker: QuestionMaker) -> Iterator[Request]:
    """Gives the subject a trait that its stated trait excludes."""
    for fact in maker.passage.facts:
        trait = fact.subject.excluded
        yield Request(fact.subject, fact.relation, fact, never=fact.denied, trait=trait)


def _impossible_condition(maker: QuestionMaker) -> Iterator[Request]:
    """Adds a condition that nothing in the passage meets."""
    named = {fact.event for fact in maker.passage.facts}
    for fact in maker.passage.facts:
        for event in EVENTS:
            if event not in named and not fact.denied:
                yield Request(fact.subject, fact.relation, fact, event=event)


def _other_neutral(maker: QuestionMaker) -> Iterator[Request]:
    """Asks for a relation of which, as of its opposite, the passage says nothing."""
    stated = {fact.relation.name for fact in maker.passage.facts}
    for subject in maker.passage.subjects:
        for name in subject.type.relations:
            if name not in stated and RELATIONS[name].opposite not in stated:
                yield Request(subject, RELATIONS[name], None)


_MAKERS: dict[str, Callable[[QuestionMaker], Iterator[Request]]] = {
    "negation": _negation,
    "antonym": _antonym,
    "entity_swap": _entity_swap,
    "mutual_exclusion": _mutual_exclusion,
    "impossible_condition": _impossible_condition,
    "other_neutral": _other_neutral,
}

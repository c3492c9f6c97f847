"""Questions about a passage, answerable and not, with the reason why not.

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
"""With one subject and no conditions three kinds are left; listed more often is drawn more often."""
_TRAIT_SHARE = 0.3
_CONDITION_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask for, before it has words; ``fact`` is what answers it, or only seems to."""

    subject: Subject
    relation: Relation
    fact: Fact | None
    never: bool = False
    trait: str | None = None
    event: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the fact it rests on, and why that does not answer it (None: it does)."""

    text: str
    fact: Fact | None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks about one passage at one level."""

    rng: Random
    passage: Passage
    level: int

    def answerable(self, count: int) -> list[Asked]:
        """Questions on ``count`` different facts (or all); below level 3 none about a denied fact."""
        facts = [fact for fact in self.passage.facts if self.level == 3 or not fact.denied]
        chosen = self.rng.sample(facts, min(count, len(facts)))
        return [Asked(self._word(self._request(fact)), fact) for fact in chosen]

    def unanswerable(self, count: int) -> list[Asked]:
        """Up to ``count`` different questions that the passage does not answer."""
        kinds = KINDS if self.level == 3 else _KINDS_BELOW_3
        asked: dict[str, Asked] = {}
        for kind in self.rng.sample(kinds, len(kinds)) * 2:
            if len(asked) == count:
                break
            if options := list(_MAKERS[kind](self)):
                request = self.rng.choice(options)
                question = self._word(request)
                asked.setdefault(question, Asked(question, request.fact, kind))
        return list(asked.values())

    def _request(self, fact: Fact) -> Request:
        """At level 3 a true trait or a true condition may be named: neither gives a trick question away."""
        trait = event = None
        if self.level == 3 and self.rng.random() < _TRAIT_SHARE:
            trait = fact.subject.trait
        if self.level == 3 and fact.event and self.rng.random() < _CONDITION_SHARE:
            event = fact.event
        return Request(fact.subject, fact.relation, fact, fact.denied, trait, event)

    def _word(self, request: Request) -> str:
        """The question in words."""
        subject, trait = request.subject, request.trait
        name = f"the {trait} {subject.noun} {subject.name}" if trait else subject.name
        wording = request.relation.wordings[self._wording(request.relation, request.fact)]
        question = wording.question.format(s=name, n="never " if request.never else "")
        return f"{question[:-1]} after {request.event}?" if request.event else question

    def _wording(self, relation: Relation, fact: Fact | None) -> int:
        """Level 1 asks in the passage's words, level 2 in others, level 3 in any."""
        count = len(relation.wordings)
        if self.level == 3 or fact is None or fact.relation is not relation:
            return self.rng.randrange(count)
        if self.level == 1:
            return fact.wording
        return (fact.wording + self.rng.randrange(1, count)) % count


def _states(passage: Passage, subject: Subject, relation: str) -> bool:
    return any(fact.subject is subject and fact.relation.name == relation for fact in passage.facts)


def _negation(asker: Asker) -> Iterator[Request]:
    """The passage denies what is asked or, at level 3, asserts what the question denies."""
    for fact in asker.passage.facts:
        if fact.denied or asker.level == 3:
            yield Request(fact.subject, fact.relation, fact, never=not fact.denied)


def _antonym(asker: Asker) -> Iterator[Request]:
    """Asks for the opposite of what is stated."""
    for fact in asker.passage.facts:
        opposite = fact.relation.opposite
        if opposite and not fact.denied and not _states(asker.passage, fact.subject, opposite):
            yield Request(fact.subject, RELATIONS[opposite], fact)


def _entity_swap(asker: Asker) -> Iterator[Request]:
    """Asks of one subject what is stated of the other alone."""
    for fact in asker.passage.facts:
        for subject in asker.passage.subjects:
            if not fact.denied and not _states(asker.passage, subject, fact.relation.name):
                yield Request(subject, fact.relation, fact)


def _mutual_exclusion(asker: Asker) -> Iterator[Request]:
    """Gives the subject a trait that its stated trait excludes."""
    for fact in asker.passage.facts:
        trait = fact.subject.excluded
        yield Request(fact.subject, fact.relation, fact, never=fact.denied, trait=trait)


def _impossible_condition(asker: Asker) -> Iterator[Request]:
    """Adds a condition that nothing in the passage meets."""
    named = {fact.event for fact in asker.passage.facts}
    for fact in asker.passage.facts:
        for event in EVENTS:
            if event not in named and not fact.denied:
                yield Request(fact.subject, fact.relation, fact, event=event)


def _other_neutral(asker: Asker) -> Iterator[Request]:
    """Asks for a relation of which, as of its opposite, the passage says nothing."""
    stated = {fact.relation.name for fact in asker.passage.facts}
    for subject in asker.passage.subjects:
        for name in subject.type.relations:
            if name not in stated and RELATIONS[name].opposite not in stated:
                yield Request(subject, RELATIONS[name], None)


_MAKERS: dict[str, Callable[[Asker], Iterator[Request]]] = {
    "negation": _negation,
    "antonym": _antonym,
    "entity_swap": _entity_swap,
    "mutual_exclusion": _mutual_exclusion,
    "impossible_condition": _impossible_condition,
    "other_neutral": _other_neutral,
}

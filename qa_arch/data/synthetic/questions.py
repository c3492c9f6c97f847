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
_KINDS_BELOW_3 = ("negation", "antonym", "other_neutral", "other_neutral")
"""With one subject and no conditions three kinds are left; listed twice is drawn twice as often."""
_TRAIT_SHARE = 0.3
_CONDITION_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what it rests on: the fact that answers it, or that only seems to."""

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
        """Questions on ``count`` different facts; below level 3 none about a denied fact."""
        facts = [fact for fact in self.passage.facts if self.level == 3 or not fact.denied]
        return [self._about(fact) for fact in self.rng.sample(facts, min(count, len(facts)))]

    def unanswerable(self, count: int) -> list[Asked]:
        """Up to ``count`` different questions that the passage does not answer."""
        kinds = KINDS if self.level == 3 else _KINDS_BELOW_3
        asked: dict[str, Asked] = {}
        for kind in self.rng.sample(kinds, len(kinds)) * 2:
            if len(asked) == count:
                break
            options = list(_MAKERS[kind](self))
            if options:
                subject, relation, fact, extra = self.rng.choice(options)
                question = self._ask(subject, relation, fact, **extra)
                asked.setdefault(question, Asked(question, fact, kind))
        return list(asked.values())

    def _about(self, fact: Fact) -> Asked:
        """At level 3 a true trait or a true condition may be named: neither gives a trick question away."""
        trait = event = None
        if self.level == 3 and self.rng.random() < _TRAIT_SHARE:
            trait = fact.subject.trait
        if self.level == 3 and fact.event and self.rng.random() < _CONDITION_SHARE:
            event = fact.event
        question = self._ask(
            fact.subject, fact.relation, fact, never=fact.denied, trait=trait, event=event
        )
        return Asked(question, fact)

    def _ask(
        self,
        subject: Subject,
        relation: Relation,
        fact: Fact | None,
        never: bool = False,
        trait: str | None = None,
        event: str | None = None,
    ) -> str:
        name = f"the {trait} {subject.noun} {subject.name}" if trait else subject.name
        wording = relation.wordings[self._wording(relation, fact)]
        question = wording.question.format(s=name, n="never " if never else "")
        return f"{question[:-1]} after {event}?" if event else question

    def _wording(self, relation: Relation, fact: Fact | None) -> int:
        """Level 1 asks in the passage's words, level 2 in others, level 3 in any."""
        count = len(relation.wordings)
        if self.level == 3 or fact is None or fact.relation is not relation:
            return self.rng.randrange(count)
        if self.level == 1:
            return fact.wording
        return (fact.wording + self.rng.randrange(1, count)) % count

    def _states(self, subject: Subject, relation: str) -> bool:
        return any(fact.subject is subject and fact.relation.name == relation for fact in self.passage.facts)


_Option = tuple[Subject, Relation, Fact | None, dict[str, object]]


def _negation(asker: Asker) -> Iterator[_Option]:
    """The passage denies what is asked or, at level 3, asserts what the question denies."""
    for fact in asker.passage.facts:
        if fact.denied or asker.level == 3:
            yield fact.subject, fact.relation, fact, {"never": not fact.denied}


def _antonym(asker: Asker) -> Iterator[_Option]:
    """Asks for the opposite of what is stated."""
    for fact in asker.passage.facts:
        opposite = fact.relation.opposite
        if opposite and not fact.denied and not asker._states(fact.subject, opposite):
            yield fact.subject, RELATIONS[opposite], fact, {}


def _entity_swap(asker: Asker) -> Iterator[_Option]:
    """Asks of one subject what is stated of the other alone."""
    for fact in asker.passage.facts:
        for subject in asker.passage.subjects:
            if not fact.denied and not asker._states(subject, fact.relation.name):
                yield subject, fact.relation, fact, {}


def _mutual_exclusion(asker: Asker) -> Iterator[_Option]:
    """Gives the subject a trait that its stated trait excludes."""
    for fact in asker.passage.facts:
        yield fact.subject, fact.relation, fact, {"trait": fact.subject.excluded, "never": fact.denied}


def _impossible_condition(asker: Asker) -> Iterator[_Option]:
    """Adds a condition that nothing in the passage meets."""
    named = {fact.event for fact in asker.passage.facts}
    for fact in asker.passage.facts:
        for event in EVENTS:
            if event not in named and not fact.denied:
                yield fact.subject, fact.relation, fact, {"event": event}


def _other_neutral(asker: Asker) -> Iterator[_Option]:
    """Asks for a relation that neither the passage nor its opposite speaks of."""
    stated = {fact.relation.name for fact in asker.passage.facts}
    for subject in asker.passage.subjects:
        for name in subject.type.relations:
            if name not in stated and RELATIONS[name].opposite not in stated:
                yield subject, RELATIONS[name], None, {}


_MAKERS: dict[str, Callable[[Asker], Iterator[_Option]]] = {
    "negation": _negation,
    "antonym": _antonym,
    "entity_swap": _entity_swap,
    "mutual_exclusion": _mutual_exclusion,
    "impossible_condition": _impossible_condition,
    "other_neutral": _other_neutral,
}

"""Synthetic data: a seeded generator of questions in SQuAD 2.0 form about invented entities.

Level 1: question and passage share the relation word.
Level 2: the question paraphrases the relation.
Level 3: two subjects with the same relations, so that entity and relation must be matched, and all
six kinds of unanswerable question. The level is part of the question id (``syn-7-dev-00012-L1-...``).

The kinds are those of Table 2 of "Know What You Don't Know: Unanswerable Questions for SQuAD"
(Rajpurkar, Jia and Liang 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic.names import SPLITS, Names, Split
from qa_arch.data.synthetic.passages import EVENTS, Fact, Passage, Subject, single_subject, two_subjects
from qa_arch.data.synthetic.relations import RELATIONS, Relation
from qa_arch.errors import ConfigError
from qa_arch.types.text import Example, QuestionSet

__all__ = ["DEMO_LEVELS", "KINDS", "LEVELS", "SPLITS", "Split", "demo_sets", "generate", "named"]

LEVELS = (1, 2, 3)
DEMO_LEVELS: Mapping[int, float] = {1: 0.8, 2: 0.2}
DEMO_SIZES: Mapping[str, int] = {"train": 1800, "calibration": 40, "dev": 40}
"""Articles."""
DEMO_SEED = 20
"""Differs from the seed that the generator was tuned on (7), so that the demo's dev set was unseen."""
_PARAGRAPHS = 3
_ANSWERABLE, _UNANSWERABLE = 3, 2
"""Questions per paragraph: 40% are unanswerable."""
KINDS = ("negation", "antonym", "entity_swap", "mutual_exclusion", "impossible_condition", "other_neutral")
_KINDS_BELOW_3 = ("negation", "antonym", *["other_neutral"] * 4)
"""Kinds that need neither a second subject nor a condition; repetition makes a kind more frequent."""
_TRAIT_SHARE = 0.3
_CONDITION_SHARE = 0.7


def generate(
    articles: int,
    seed: int,
    levels: Mapping[int, float] | int = 1,
    split: Split = "train",
) -> QuestionSet:
    """``articles`` articles of 3 paragraphs with up to 5 questions each; the same arguments, the same set.

    ``levels`` is a level or the share of paragraphs of each level. No name word of one ``split``
    occurs in another, whatever the seeds. Raises ConfigError for counts or levels out of range.
    """
    shares = {levels: 1.0} if isinstance(levels, int) else dict(levels)
    if articles < 1:
        raise ConfigError(f"articles={articles}: at least 1 is needed")
    if not shares or not set(shares) <= set(LEVELS) or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        raise ConfigError(f"levels={levels}: give 1, 2 or 3, or positive shares of them")
    rng = Random(f"{seed}/{split}")
    names = Names(rng, split)
    examples: list[Example] = []
    titles: set[str] = set()
    for article in range(articles):
        examples += _article(rng, names, shares, f"syn-{seed}-{split}-{article:05d}", titles)
    return question_set(f"synthetic-{split}", examples, "2.0")


def demo_sets(
    train: int = DEMO_SIZES["train"],
    calibration: int = DEMO_SIZES["calibration"],
    dev: int = DEMO_SIZES["dev"],
    seed: int = DEMO_SEED,
    levels: Mapping[int, float] | int = DEMO_LEVELS,
) -> tuple[QuestionSet, QuestionSet, QuestionSet]:
    """The demo's train, calibration and dev sets (sizes in articles), of equal difficulty, no name shared."""
    return (
        generate(train, seed, levels, "train"),
        generate(calibration, seed, levels, "calibration"),
        generate(dev, seed, levels, "dev"),
    )


@cache  # several models of one call read the same sets
def named(which: str) -> QuestionSet:
    """Set of a setting: ``dev`` is that of the demo, ``dev:L3`` one of the same size at level 3."""
    split, _, level = which.partition(":")
    levels = {"": DEMO_LEVELS, **{f"L{n}": n for n in LEVELS}}
    if split not in DEMO_SIZES or level not in levels:
        raise ConfigError(
            f"synthetic:{which} is unknown: write train, calibration or dev, and :L1 to :L3 after it"
        )
    return generate(DEMO_SIZES[split], DEMO_SEED, levels[level], split)  # type: ignore[arg-type]


def _article(
    rng: Random, names: Names, shares: Mapping[int, float], prefix: str, titles: set[str]
) -> list[Example]:
    """The questions of one article, titled after its first subject; ``titles`` holds the used ones."""
    examples: list[Example] = []
    title = ""
    for paragraph in range(_PARAGRAPHS):
        level = rng.choices(tuple(shares), tuple(shares.values()))[0]
        write = two_subjects if level == 3 else single_subject
        passage = write(rng, names)
        while not title and passage.subjects[0].name in titles:
            passage = write(rng, names)
        title = title or passage.subjects[0].name
        maker = QuestionMaker(rng, passage, level)
        questions = maker.answerable(_ANSWERABLE) + maker.unanswerable(_UNANSWERABLE)
        rng.shuffle(questions)
        for number, question in enumerate(questions):
            id_ = f"{prefix}-L{level}-{paragraph}{number}"
            examples.append(_example(id_, title, passage.context, question))
    titles.add(title)
    return examples


def _example(id_: str, title: str, context: str, question: GeneratedQuestion) -> Example:
    golds = question.fact.golds if question.fact else ()
    answers, plausible = ((), golds) if question.kind else (golds, ())
    return Example(id_, question.text, context, title, answers, plausible, question.kind)


# Questions about a passage ------------------------------------------------------------------------


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

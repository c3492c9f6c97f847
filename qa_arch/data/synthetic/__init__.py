"""Synthetic data: a seeded generator of questions in SQuAD 2.0 form about invented entities.

Level 1: question and passage share the relation word.
Level 2: the question paraphrases the relation.
Level 3: two subjects with the same relations, so that entity and relation must be matched, and all
six kinds of unanswerable question. The level is part of the question id (``syn-7-dev-00012-L1-...``).

The kinds are those of Table 2 of "Know What You Don't Know: Unanswerable Questions for SQuAD"
(Rajpurkar, Jia and Liang 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic.names import Names, Split
from qa_arch.data.synthetic.passages import (
    EVENTS,
    RELATIONS,
    Fact,
    Passage,
    Relation,
    Subject,
    single_subject,
    two_subjects,
)
from qa_arch.errors import ConfigError
from qa_arch.types.text import Example, QuestionSet

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
        questions = _answerable(rng, passage, level) + _unanswerable(rng, passage, level)
        rng.shuffle(questions)
        for number, (question, fact, kind) in enumerate(questions):
            golds = fact.golds if fact else ()
            answers, plausible = ((), golds) if kind else (golds, ())
            id_ = f"{prefix}-L{level}-{paragraph}{number}"
            examples.append(Example(id_, question, passage.context, title, answers, plausible, kind))
    titles.add(title)
    return examples


# Questions about a passage ------------------------------------------------------------------------

Question = tuple[str, Fact | None, str | None]
"""Text, the fact that answers it or only seems to, and the kind of unanswerable question or None."""


@dataclass(frozen=True, slots=True)
class Request:
    """Content of a question before wording; ``fact`` answers it, or only seems to."""

    subject: Subject
    relation: Relation
    fact: Fact | None
    never: bool = False
    trait: str | None = None
    event: str | None = None


def _answerable(rng: Random, passage: Passage, level: int) -> list[Question]:
    """Questions on different facts; below level 3 none about a denied fact.

    At level 3 they may name a true trait or condition.
    """
    facts = [fact for fact in passage.facts if level == 3 or not fact.denied]
    questions: list[Question] = []
    for fact in rng.sample(facts, min(_ANSWERABLE, len(facts))):
        trait = event = None
        if level == 3 and rng.random() < _TRAIT_SHARE:
            trait = fact.subject.trait
        if level == 3 and fact.event and rng.random() < _CONDITION_SHARE:
            event = fact.event
        request = Request(fact.subject, fact.relation, fact, fact.denied, trait, event)
        questions.append((_word(rng, request, level), fact, None))
    return questions


def _unanswerable(rng: Random, passage: Passage, level: int) -> list[Question]:
    """Different questions that the passage does not answer, as far as there are enough."""
    kinds = KINDS if level == 3 else _KINDS_BELOW_3
    questions: dict[str, Question] = {}
    for kind in rng.sample(kinds, len(kinds)) * 2:
        if len(questions) == _UNANSWERABLE:
            break
        if options := list(_requests(passage, level, kind)):
            request = rng.choice(options)
            question = _word(rng, request, level)
            questions.setdefault(question, (question, request.fact, kind))
    return list(questions.values())


def _word(rng: Random, request: Request, level: int) -> str:
    """Text of a question: in the passage's wording at level 1, another one at level 2, any at level 3."""
    subject, trait, fact = request.subject, request.trait, request.fact
    wordings = request.relation.wordings
    if level == 3 or fact is None or fact.relation is not request.relation:
        wording = rng.randrange(len(wordings))
    elif level == 1:
        wording = fact.wording
    else:
        wording = (fact.wording + rng.randrange(1, len(wordings))) % len(wordings)
    name = f"the {trait} {subject.noun} {subject.name}" if trait else subject.name
    question = wordings[wording].question.format(s=name, n="never " if request.never else "")
    return f"{question[:-1]} after {request.event}?" if request.event else question


def _requests(passage: Passage, level: int, kind: str) -> Iterator[Request]:
    """All requests of one kind of unanswerable question that a passage allows.

    ``negation``: the passage denies what is asked or, at level 3, asserts what the question denies.
    ``antonym``: the opposite of what is stated. ``entity_swap``: of one subject what is stated of the other
    alone. ``mutual_exclusion``: the subject with a trait that its own excludes. ``impossible_condition``: a
    condition that nothing meets. ``other_neutral``: a relation that, as its opposite, is not mentioned.
    """
    facts = passage.facts
    stated = {(fact.subject.name, fact.relation.name) for fact in facts}
    events = {fact.event for fact in facts}
    mentioned = {relation for _, relation in stated}
    if kind == "other_neutral":
        for subject in passage.subjects:
            for relation in map(RELATIONS.__getitem__, subject.type.relations):
                if mentioned.isdisjoint((relation.name, relation.opposite)):
                    yield Request(subject, relation, None)
        return
    for fact in facts:
        subject, relation = fact.subject, fact.relation
        if kind == "negation" and (fact.denied or level == 3):
            yield Request(subject, relation, fact, never=not fact.denied)
        elif kind == "mutual_exclusion":
            yield Request(subject, relation, fact, never=fact.denied, trait=subject.excluded)
        elif fact.denied:
            continue
        elif kind == "antonym" and relation.opposite and (subject.name, relation.opposite) not in stated:
            yield Request(subject, RELATIONS[relation.opposite], fact)
        elif kind == "entity_swap":
            others = [s for s in passage.subjects if (s.name, relation.name) not in stated]
            yield from (Request(other, relation, fact) for other in others)
        elif kind == "impossible_condition":
            unmet = [event for event in EVENTS if event not in events]
            yield from (Request(subject, relation, fact, event=event) for event in unmet)

"""Synthetic data: seeded generator of SQuAD 2.0 questions about invented entities.

Level 1: question and passage share the relation word.
Level 2: the question paraphrases the relation.
Level 3: two subjects with the same relations, so entity and relation must both be matched, and all six kinds
of unanswerable question. The level is part of the question id (``syn-7-dev-00012-L1-...``).

The kinds are those of Table 2 of "Know What You Don't Know: Unanswerable Questions for SQuAD"
(Rajpurkar, Jia and Liang 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic.names import Names, Split, Value
from qa_arch.errors import ConfigError
from qa_arch.types.text import Example, Gold, QuestionSet

LEVELS = (1, 2, 3)
DEMO_LEVELS: Mapping[int, float] = {1: 0.8, 2: 0.2}
DEMO_SIZES: Mapping[str, int] = {"train": 1800, "calibration": 40, "dev": 40}
"""Split -> number of articles."""
DEMO_SEED = 20
"""Not the seed that the generator was tuned on (7), so the demo's dev set was unseen."""
_PARAGRAPHS = 3
_ANSWERABLE, _UNANSWERABLE = 3, 2
"""Questions per paragraph: 40% are unanswerable."""
KINDS = ("negation", "antonym", "entity_swap", "mutual_exclusion", "impossible_condition", "other_neutral")
_KINDS_BELOW_3 = ("negation", "antonym", *["other_neutral"] * 4)
"""Kinds that need neither a second subject nor a condition; repeated kinds are more frequent."""
_TRAIT_SHARE = 0.3
_CONDITION_SHARE = 0.7


def generate(
    articles: int,
    seed: int,
    levels: Mapping[int, float] | int = 1,
    split: Split = "train",
) -> QuestionSet:
    """Generate ``articles`` articles of 3 paragraphs with up to 5 questions each; deterministic.

    ``levels`` is a level, or the share of paragraphs per level. Name words never occur in two splits,
    whatever the seeds. Raises ConfigError for counts or levels out of range.
    """
    shares = {levels: 1.0} if isinstance(levels, int) else dict(levels)
    if articles < 1:
        raise ConfigError(f"articles={articles}: must be at least 1")
    if not shares or not set(shares) <= set(LEVELS) or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        raise ConfigError(f"levels={levels}: use 1, 2 or 3, or positive shares of them")
    rng = Random(f"{seed}/{split}")
    names = Names(rng, split)
    examples: list[Example] = []
    titles: set[str] = set()
    for article in range(articles):
        examples += _article(rng, names, shares, f"syn-{seed}-{split}-{article:05d}", titles)
    return question_set(f"synthetic-{split}", examples, "2.0")


@cache  # several models of one command read the same sets
def named(name: str) -> QuestionSet:
    """Built-in set: ``dev`` is that of the demo, ``dev:L3`` one of the same size at level 3."""
    split, _, level = name.partition(":")
    levels = {"": DEMO_LEVELS, **{f"L{n}": n for n in LEVELS}}
    if split not in DEMO_SIZES or level not in levels:
        raise ConfigError(
            f"synthetic:{name} is unknown: use train, calibration or dev, optionally followed by :L1 to :L3"
        )
    return generate(DEMO_SIZES[split], DEMO_SEED, levels[level], split)  # type: ignore[arg-type]


def _article(
    rng: Random, names: Names, shares: Mapping[int, float], prefix: str, titles: set[str]
) -> list[Example]:
    """Questions of one article, titled after its first subject; ``titles`` holds the titles in use."""
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


# Passages: relations and their wordings, facts of a passage, offset of each value --------------------

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
"""Name, value type and opposite; statement; question; relation words, one per wording.

``{s}`` is the subject, ``{o}`` the value, ``{n}`` the slot of "never " in a denial, ``{v}`` the relation
word. Statement and question of a wording share that word (level 1); another wording is a paraphrase.
"""


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to state a relation (``before`` and ``after`` the value) and ask for its value."""

    before: str
    after: str
    question: str


@dataclass(frozen=True, slots=True)
class Relation:
    """Relation between a subject and a value of type ``value``."""

    name: str
    value: str
    wordings: tuple[Wording, ...]
    opposite: str | None = None


@dataclass(frozen=True, slots=True)
class SubjectType:
    """Type of a passage's subject; ``traits`` are pairs of mutually exclusive adjectives."""

    nouns: tuple[str, ...]
    name: str
    traits: tuple[tuple[str, str], ...]
    relations: tuple[str, ...]


def _relations() -> dict[str, Relation]:
    """Parse ``_RELATIONS`` by name; lines with the same name add wordings."""
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
"""How often a single-subject passage says "the town" instead of the name."""
_ASIDE_SHARE = 0.15
"""How often distractor names precede a fact, and how often they follow one."""
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
    """Subject of a passage with a ``trait``, which rules out ``excluded``."""

    name: str
    noun: str
    type: SubjectType
    trait: str
    excluded: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Statement of a passage; ``start`` is the character offset of the value's text in the context."""

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
    """Generate a passage on one subject, with each relation at most once (levels 1 and 2).

    One stated relation has an opposite that is not stated; some passages deny one fact.
    """
    names.reset()
    type_ = rng.choice(SUBJECTS)
    subject = _subject(rng, names, type_)
    denied = rng.random() < _DENIED_SHARE
    facts = _facts(rng, names, [(subject, stated) for stated in _draw_relations(rng, type_, 3 + denied)])
    if denied:
        facts[-1] = replace(facts[-1], denied=True)
    return _compose(rng, names, (subject,), facts)


def two_subjects(rng: Random, names: Names) -> Passage:
    """Generate a passage on two subjects of the same type that share relations (level 3).

    Two relations are stated of both subjects, two of only one; one fact is denied and one tied to an event.
    """
    names.reset()
    type_ = rng.choice(SUBJECTS)
    pair = (_subject(rng, names, type_), _subject(rng, names, type_))
    first, second, third, fourth = _draw_relations(rng, type_, 4)
    stated = [(pair[0], second), (pair[1], second), (pair[0], third), (pair[1], third)]
    stated += [(rng.choice(pair), first), (rng.choice(pair), fourth)]
    facts = _facts(rng, names, stated)
    facts[-1] = replace(facts[-1], denied=True)
    dated = rng.randrange(len(facts) - 1)
    facts[dated] = replace(facts[dated], event=rng.choice(EVENTS))
    return _compose(rng, names, pair, facts)


def _subject(rng: Random, names: Names, type_: SubjectType) -> Subject:
    name = names.subject(type_.name)
    trait, excluded = rng.sample(rng.choice(type_.traits), 2)
    return Subject(name, rng.choice(type_.nouns), type_, trait, excluded)


def _draw_relations(rng: Random, type_: SubjectType, count: int) -> list[Relation]:
    """Draw ``count`` relations of a type; the first has an opposite, which is not drawn."""
    first = rng.choice([name for name in type_.relations if RELATIONS[name].opposite])
    remaining = [name for name in type_.relations if name not in (first, RELATIONS[first].opposite)]
    return [RELATIONS[name] for name in (first, *rng.sample(remaining, count - 1))]


def _facts(rng: Random, names: Names, stated: Sequence[tuple[Subject, Relation]]) -> list[Fact]:
    return [
        Fact(subject, relation, rng.randrange(len(relation.wordings)), names.value(relation.value))
        for subject, relation in stated
    ]


def _compose(rng: Random, names: Names, subjects: Sequence[Subject], facts: Sequence[Fact]) -> Passage:
    """Passage text: introductions of the subjects, then the facts in random order and at most one filler."""
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
    """Sentence of a fact, as the text before and after its value."""
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


# Questions about a passage ------------------------------------------------------------------------

Question = tuple[str, Fact | None, str | None]
"""(text, fact that answers it or only seems to, kind of unanswerable question or None)."""


@dataclass(frozen=True, slots=True)
class Request:
    """Content of a question before it is worded; ``fact`` answers it, or only seems to."""

    subject: Subject
    relation: Relation
    fact: Fact | None
    never: bool = False
    trait: str | None = None
    event: str | None = None


def _answerable(rng: Random, passage: Passage, level: int) -> list[Question]:
    """Draw questions on different facts, below level 3 only on facts that are not denied.

    At level 3 they may mention a true trait or condition.
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
        questions.append((_phrase(rng, request, level), fact, None))
    return questions


def _unanswerable(rng: Random, passage: Passage, level: int) -> list[Question]:
    """Draw different questions that the passage does not answer, if there are enough."""
    kinds = KINDS if level == 3 else _KINDS_BELOW_3
    questions: dict[str, Question] = {}
    for kind in rng.sample(kinds, len(kinds)) * 2:
        if len(questions) == _UNANSWERABLE:
            break
        if options := list(_requests(passage, level, kind)):
            request = rng.choice(options)
            question = _phrase(rng, request, level)
            questions.setdefault(question, (question, request.fact, kind))
    return list(questions.values())


def _phrase(rng: Random, request: Request, level: int) -> str:
    """Text of a question, with the passage's wording at level 1, another at level 2, any at level 3."""
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
    """Yield all possible unanswerable questions of one kind about a passage.

    ``negation``: the passage denies what is asked or, at level 3, asserts what the question denies.
    ``antonym``: asks for the opposite of a stated relation. ``entity_swap``: asks one subject for what is
    stated only of the other. ``mutual_exclusion``: gives the subject a trait that its own excludes.
    ``impossible_condition``: adds a condition that no fact meets. ``other_neutral``: asks for a relation that
    is not mentioned, nor is its opposite.
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

"""Synthetic data: seeded generator of SQuAD 2.0 questions about invented entities.

No name word occurs in two splits.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import Literal, get_args

from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError
from qa_arch.types import Example, Gold, QuestionSet

Split = Literal["train", "calibration", "dev"]
SPLITS: tuple[Split, ...] = get_args(Split)

_PARTS = """
given al be bi co da do ed el fi fu ga gu hu is jo ka ko le li mi mo ni os pe
    | bin cas dra jin lia mon phie rik tja zel
family ab bru cho cro dre fli fro gri gru hol jep kin kno lun mur nor pla pra sno sti tru vlo wro zwe
    | berd dovan galt hurst lotti mbert nsky quin rsen zetti
place arn bam cald dunn essel farr hask ilm karl lamb marn nett oss pell quor rast samb tarn umb yarn
    | bury chester combe dale field ford ham port stead wick
province ac bel car dur ere fal gar hes jul kel lor mar nov om per rav sil tol urs vel wal zar
    | dria mark land lund nia shire stan via
river aw bor cly dov esk fow gad hod isk jor kem lyn mod nid ock pid rul sev tay usk wey
    | beck brook burn creek flow mere stream water
clan agr brok chur drog eth ghor hrim ing krag morl nazg okh rhod skor thur ulf vorg zhar
    | goth grim nak rak thar vul zog
guild aqu bald cent delph equ fort gal herm imp jov lib magn nept opt pal regn silv terr
    | alis anum arium ensis icus inum orum
book amber ash bone brass candle cloud copper dawn ember feather frost ghost honey iron lily moon
    | cloak dream fire flute harp rose song wheel
"""
"""Kind of name, its beginnings, its endings: as in real life, towns do not sound like people."""
_STARTS_AND_ENDS = {
    kind: (starts.split(), ends.split())
    for kind, starts, ends in re.findall(r"(\w+) (.+)\n +\| (.+)", _PARTS)
}
_MIDDLES = ("ba", "de", "fo", "gi", "la", "lo", "me", "na", "nu", "pi", "ra", "ro", "se", "ti", "vo")
_MIDDLE_SHARE = 0.25
_DECORATED_SHARE = 0.3
"""How often a person has a rank, a place is "the village of ...", a year is "the year ..."."""
_SPLIT_OF_BUCKET: tuple[Split, ...] = ("train", "train", "calibration", "dev")

_RANKS = ("Captain", "Doctor", "Judge", "Lady", "Sister")
_UNITS = ("people", "metres", "crowns")
_COUNTS = range(200, 2_000, 20)
_YEARS = range(1600, 1800, 2)


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a passage, and the parts of it that are gold answers.

    ``golds`` holds (offset in ``text``, part), the shortest acceptable answer first.
    """

    text: str
    golds: tuple[tuple[int, str], ...]


def _value(text: str, *parts: str) -> Value:
    return Value(text, tuple((text.index(part), part) for part in dict.fromkeys((*parts, text))))


def split_of(word: str) -> Split:
    """The split in which a name word may be used, by checksum, so that the vocabularies are disjoint."""
    # A checksum, as hash() gives a text another number in each process.
    return _SPLIT_OF_BUCKET[zlib.crc32(word.encode()) % len(_SPLIT_OF_BUCKET)]


class Names:
    """Draw names of one split, without repeating a name word between calls of ``reset``."""

    def __init__(self, rng: Random, split: Split) -> None:
        self._rng = rng
        self._split = split
        self._used: set[str] = set()

    def reset(self) -> None:
        """Forget the names in use; called at the start of a passage."""
        self._used.clear()

    def word(self, kind: str) -> str:
        """Draw a capitalised name word of this split that is not yet used in this passage."""
        starts, ends = _STARTS_AND_ENDS[kind]
        pick = self._rng.choice
        while True:
            middle = pick(_MIDDLES) if self._rng.random() < _MIDDLE_SHARE else ""
            word = (pick(starts) + middle + pick(ends)).capitalize()
            if word not in self._used and split_of(word) == self._split:
                self._used.add(word)
                return word

    def person(self) -> str:
        return f"{self.word('given')} {self.word('family')}"

    def place(self) -> str:
        return self.word("place")

    def subject(self, pattern: str) -> str:
        """Fill in the ``{person}`` or ``{place}`` of ``pattern``."""
        return pattern.format(person=self.person(), place=self.place())

    def year(self) -> str:
        return str(self._rng.choice(_YEARS))

    def number(self) -> str:
        return str(self._rng.choice(_COUNTS))

    def fill(self, pattern: str) -> str:
        """Fill in the slots of ``pattern`` (``{person}``, ``{year}``, ``{clan}``), left to right."""
        draws = {"person": self.person, "place": self.place, "year": self.year, "number": self.number}

        def draw(slot: re.Match[str]) -> str:
            kind = slot[1]
            return draws[kind]() if kind in draws else self.value(kind).text

        return re.sub(r"\{(\w+)\}", draw, pattern)

    def value(self, kind: str) -> Value:
        """Draw a value of a relation's type: a kind of name, a year or a number with a unit."""
        decorated = self._rng.random() < _DECORATED_SHARE
        if kind in _UNITS:
            number = self.number()
            return _value(f"{number} {kind}", number)
        draw = {"person": self.person, "year": self.year}.get(kind)
        name = draw() if draw else self.word(kind)
        match kind, decorated:
            case "person", True:
                return _value(f"{self._rng.choice(_RANKS)} {name}", name)
            case "place", True:
                return _value(f"the village of {name}", name)
            case "year", True:
                return _value(f"the year {name}", name)
            case "river", _:
                return _value(f"the river {name}", name, f"river {name}")
            case "book", _:
                return _value(f"The {name}", name)
            case (("clan" | "guild"), _):
                name = f"{name} {kind.capitalize()}"
                return _value(f"the {name}", name)
        return _value(name)


DEMO_LEVELS: Mapping[int, float] = {1: 0.8, 2: 0.2}
DEMO_SIZES: Mapping[str, int] = {"train": 1800, "calibration": 40, "dev": 40}
"""Split -> number of articles."""
DEMO_SEED = 20
"""Not the seed that the generator was tuned on (7), so the demo's dev set was unseen."""
ANSWERABLE, UNANSWERABLE = 3, 2
"""Questions per paragraph: 40% are unanswerable."""
_PARAGRAPHS = 3
_KINDS = ("negation", "antonym", *["other_neutral"] * 4)
"""Kinds that need neither a second subject nor a condition; repeated kinds are more frequent."""


def generate(
    articles: int,
    seed: int,
    levels: Mapping[int, float] | int = 1,
    split: Split = "train",
    known: Mapping[int, Level] | None = None,
) -> QuestionSet:
    """Generate ``articles`` articles of 3 paragraphs with up to 5 questions each; deterministic.

    ``levels`` is a level, or the share of paragraphs per level, of those that are ``known`` (default:
    ``LEVELS``). Name words never occur in two splits, whatever the seeds. Raises ConfigError for counts or
    levels out of range.
    """
    shares, known = {levels: 1.0} if isinstance(levels, int) else dict(levels), known or LEVELS
    if articles < 1:
        raise ConfigError(f"articles={articles}: must be at least 1")
    if not shares or not set(shares) <= set(known) or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        choices = " or ".join(map(str, known))
        raise ConfigError(f"levels={levels}: use {choices}, or positive shares of them")
    rng = Random(f"{seed}/{split}")
    names = Names(rng, split)
    examples: list[Example] = []
    titles: set[str] = set()
    for article in range(articles):
        examples += _article(rng, names, shares, known, f"syn-{seed}-{split}-{article:05d}", titles)
    return question_set(f"synthetic-{split}", examples, "2.0")


@cache  # several models of one command read the same sets
def named(name: str) -> QuestionSet:
    """Built-in set: ``dev`` is that of the demo, ``dev:L2`` one of the same size at level 2."""
    split, _, level = name.partition(":")
    levels = {"": DEMO_LEVELS, **{f"L{n}": n for n in LEVELS}}
    if split not in DEMO_SIZES or level not in levels:
        raise ConfigError(
            f"synthetic:{name} is unknown: use train, calibration or dev, optionally followed by :L1 or :L2"
        )
    return generate(DEMO_SIZES[split], DEMO_SEED, levels[level], split)  # type: ignore[arg-type]


def _article(
    rng: Random,
    names: Names,
    shares: Mapping[int, float],
    known: Mapping[int, Level],
    prefix: str,
    titles: set[str],
) -> list[Example]:
    """Questions of one article, titled after its first subject; ``titles`` holds the titles in use."""
    examples: list[Example] = []
    title = ""
    for paragraph in range(_PARAGRAPHS):
        level = rng.choices(tuple(shares), tuple(shares.values()))[0]
        passage = known[level].passage(rng, names)
        while not title and passage.subjects[0].name in titles:
            passage = known[level].passage(rng, names)
        title = title or passage.subjects[0].name
        questions = known[level].questions(rng, passage)
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
class PassageSubject:
    """Subject of a passage with a ``trait``, which rules out ``excluded``."""

    name: str
    noun: str
    type: SubjectType
    trait: str
    excluded: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Statement of a passage; ``start`` is the character offset of the value's text in the context."""

    subject: PassageSubject
    relation: Relation
    wording: int
    value: Value
    denied: bool = False
    lead: str = ""
    """Beginning of its sentence; empty for one of ``_LEADS``, or none."""
    start: int = -1

    @property
    def golds(self) -> tuple[Gold, ...]:
        return tuple(Gold(part, self.start + offset) for offset, part in self.value.golds)


@dataclass(frozen=True, slots=True)
class Passage:
    context: str
    subjects: tuple[PassageSubject, ...]
    facts: tuple[Fact, ...]
    """Everything the context states; any other relation of a subject is open."""


def single_subject(rng: Random, names: Names) -> Passage:
    """Generate a passage on one subject, with each relation at most once.

    One stated relation has an opposite that is not stated; some passages deny one fact.
    """
    names.reset()
    type_ = rng.choice(SUBJECTS)
    subject = draw_subject(rng, names, type_)
    denied = rng.random() < _DENIED_SHARE
    facts = draw_facts(rng, names, [(subject, stated) for stated in draw_relations(rng, type_, 3 + denied)])
    if denied:
        facts[-1] = replace(facts[-1], denied=True)  # not the first, whose opposite is asked for
    return compose_passage(rng, names, (subject,), facts)


def draw_subject(rng: Random, names: Names, type_: SubjectType) -> PassageSubject:
    name = names.subject(type_.name)
    trait, excluded = rng.sample(rng.choice(type_.traits), 2)
    return PassageSubject(name, rng.choice(type_.nouns), type_, trait, excluded)


def draw_relations(rng: Random, type_: SubjectType, count: int) -> list[Relation]:
    """Draw ``count`` relations of a type; the first has an opposite, which is not drawn."""
    first = rng.choice([name for name in type_.relations if RELATIONS[name].opposite])
    remaining = [name for name in type_.relations if name not in (first, RELATIONS[first].opposite)]
    return [RELATIONS[name] for name in (first, *rng.sample(remaining, count - 1))]


def draw_facts(rng: Random, names: Names, stated: Sequence[tuple[PassageSubject, Relation]]) -> list[Fact]:
    return [
        Fact(subject, relation, rng.randrange(len(relation.wordings)), names.value(relation.value))
        for subject, relation in stated
    ]


def compose_passage(
    rng: Random, names: Names, subjects: Sequence[PassageSubject], facts: Sequence[Fact]
) -> Passage:
    """Passage text: introductions of the subjects, then the facts in random order and at most one filler."""
    sentences = [f"{subject.name} is a {subject.trait} {subject.noun}." for subject in subjects]
    order: list[Fact | None] = [*facts, None] if rng.random() < _FILLER_SHARE else [*facts]
    rng.shuffle(order)
    length = sum(len(sentence) + 1 for sentence in sentences)  # where the next sentence begins
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
    if fact.lead:
        before = fact.lead + before
    elif rng.random() < _ASIDE_SHARE:
        before = names.fill(rng.choice(_LEADS)) + before
    closing = names.fill(rng.choice(_CLOSINGS)) if rng.random() < _ASIDE_SHARE else ""
    return before[:1].upper() + before[1:], f"{after}{closing}."


# Questions about a passage ------------------------------------------------------------------------

Question = tuple[str, Fact | None, str | None]
"""(text, fact that answers it or only seems to, kind of unanswerable question or None)."""


@dataclass(frozen=True, slots=True)
class Level:
    """How passages are written, and how questions about one are asked."""

    passage: Callable[[Random, Names], Passage]
    questions: Callable[[Random, Passage], list[Question]]


def _ask(rng: Random, passage: Passage, *, paraphrase: bool) -> list[Question]:
    """Draw questions on different facts that are not denied, and questions that nothing answers."""
    facts = [fact for fact in passage.facts if not fact.denied]
    questions: list[Question] = [
        (_phrase(rng, fact.subject, fact.relation, fact, paraphrase), fact, None)
        for fact in rng.sample(facts, min(ANSWERABLE, len(facts)))
    ]
    unanswerable: dict[str, Question] = {}
    for kind in rng.sample(_KINDS, len(_KINDS)) * 2:  # twice: a question may be drawn that was drawn before
        if len(unanswerable) == UNANSWERABLE:
            break
        if options := list(_unanswered(passage, kind)):
            subject, relation, seeming = rng.choice(options)
            question = _phrase(rng, subject, relation, seeming, paraphrase)
            unanswerable.setdefault(question, (question, seeming, kind))
    return questions + list(unanswerable.values())


def _phrase(
    rng: Random, subject: PassageSubject, relation: Relation, fact: Fact | None, paraphrase: bool
) -> str:
    """Text of a question, in the words of the fact that it is about or in others."""
    wordings = relation.wordings
    if fact is None or fact.relation is not relation:
        wording = rng.randrange(len(wordings))
    elif paraphrase:
        wording = (fact.wording + rng.randrange(1, len(wordings))) % len(wordings)
    else:
        wording = fact.wording
    return wordings[wording].question.format(s=subject.name, n="")


def _unanswered(passage: Passage, kind: str) -> Iterator[tuple[PassageSubject, Relation, Fact | None]]:
    """Yield what could be asked for a question of one kind, with the fact that seems to answer it.

    ``negation``: the passage denies what is asked. ``antonym``: asks for the opposite of a stated relation.
    ``other_neutral``: asks for a relation that is not mentioned, nor is its opposite.
    """
    mentioned = {fact.relation.name for fact in passage.facts}
    if kind == "other_neutral":
        for subject in passage.subjects:
            for relation in map(RELATIONS.__getitem__, subject.type.relations):
                if mentioned.isdisjoint((relation.name, relation.opposite)):
                    yield subject, relation, None
        return
    for fact in passage.facts:
        opposite = fact.relation.opposite
        if kind == "negation" and fact.denied:
            yield fact.subject, fact.relation, fact
        elif kind == "antonym" and not fact.denied and opposite and opposite not in mentioned:
            yield fact.subject, RELATIONS[opposite], fact


LEVELS: Mapping[int, Level] = {
    1: Level(single_subject, partial(_ask, paraphrase=False)),
    2: Level(single_subject, partial(_ask, paraphrase=True)),
}

"""Relations of the synthetic passages: two or more wordings of each, and their opposites.

``{s}`` is the subject, ``{o}`` the value, ``{n}`` the place of "never " in a denial. A wording's
statement and its question share the relation word, so asking in the statement's own wording is
level 1, asking in another wording of the same relation is a paraphrase.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def _relation(name: str, value: str, *wordings: tuple[str, str], opposite: str | None = None) -> Relation:
    parsed = []
    for statement, question in wordings:
        before, after = statement.split("{o}")
        parsed.append(Wording(before, after, question))
    return Relation(name, value, tuple(parsed), opposite)


def _passive(*verbs: str) -> tuple[tuple[str, str], ...]:
    """Wordings for "{s} was VERB by {o}" with the one who did it asked for."""
    return tuple((f"{{s}} was {{n}}{verb} by {{o}}", f"Who {{n}}{verb} {{s}}?") for verb in verbs)


def _dated(*verbs: str) -> tuple[tuple[str, str], ...]:
    """Wordings for "{s} was VERB in {o}" with the year asked for."""
    return tuple(
        (f"{{s}} was {{n}}{verb} in {{o}}", f"In which year was {{s}} {{n}}{verb}?") for verb in verbs
    )


def _placed(*verbs: str) -> tuple[tuple[str, str], ...]:
    """Wordings for "{s} VERB in {o}", the verb with its auxiliary, with the place asked for."""
    return tuple(
        (f"{{s}} {aux} {{n}}{verb} in {{o}}", f"Where {aux} {{s}} {{n}}{verb}?")
        for aux, verb in (phrase.split(" ", 1) for phrase in verbs)
    )


_ALL = (
    _relation("founder", "person", *_passive("founded", "established")),
    _relation("designer", "person", *_passive("designed", "planned")),
    _relation("teacher", "person", *_passive("taught", "instructed")),
    _relation("buyer", "guild", *_passive("bought", "acquired"), opposite="seller"),
    _relation("seller", "guild", *_passive("sold", "relinquished"), opposite="buyer"),
    _relation("attacker", "clan", *_passive("attacked", "besieged"), opposite="defender"),
    _relation("defender", "clan", *_passive("defended", "protected"), opposite="attacker"),
    _relation("opening", "year", *_dated("opened", "inaugurated"), opposite="closing"),
    _relation("closing", "year", *_dated("closed", "abandoned"), opposite="opening"),
    _relation("destruction", "year", *_dated("destroyed", "ruined"), opposite="rebuilding"),
    _relation("rebuilding", "year", *_dated("rebuilt", "restored"), opposite="destruction"),
    _relation("election", "year", *_dated("elected", "appointed"), opposite="dismissal"),
    _relation("dismissal", "year", *_dated("dismissed", "ousted"), opposite="election"),
    _relation("birth", "place", *_placed("was born", "was christened"), opposite="death"),
    _relation("death", "place", *_placed("had died", "had perished"), opposite="birth"),
    _relation("seat", "place", *_placed("was based", "was headquartered")),
    _relation(
        "capital",
        "province",
        ("{s} was {n}the capital of {o}", "Which province was {s} {n}the capital of?"),
        ("{s} was {n}the metropolis of {o}", "Which province was {s} {n}the metropolis of?"),
    ),
    _relation(
        "river",
        "river",
        ("{s} was {n}reached by {o}", "Which river was {s} {n}reached by?"),
        ("{s} was {n}touched by {o}", "Which river was {s} {n}touched by?"),
    ),
    _relation(
        "author",
        "book",
        ("{o} was {n}written by {s}", "What was {n}written by {s}?"),
        ("{o} was {n}composed by {s}", "What was {n}composed by {s}?"),
    ),
    _relation(
        "staff",
        "people",
        ("{s} had {n}employed {o}", "How many people had {s} {n}employed?"),
        ("{s} had {n}hired {o}", "How many people had {s} {n}hired?"),
    ),
    _relation(
        "inhabitants",
        "people",
        ("{s} was {n}inhabited by {o}", "How many people was {s} {n}inhabited by?"),
        ("{s} was {n}populated by {o}", "How many people was {s} {n}populated by?"),
    ),
    _relation(
        "height",
        "metres",
        ("{s} had {n}a height of {o}", "What height had {s} {n}?"),
        ("{s} was {n}{o} tall", "How tall was {s} {n}?"),
    ),
    _relation(
        "price",
        "crowns",
        ("{s} had {n}cost {o}", "How much had {s} {n}cost?"),
        ("{s} was {n}priced at {o}", "At how much was {s} {n}priced?"),
    ),
    _relation(
        "pay",
        "crowns",
        ("{s} was {n}paid {o}", "How much was {s} {n}paid?"),
        ("{s} was {n}granted {o}", "How much was {s} {n}granted?"),
    ),
)

RELATIONS: dict[str, Relation] = {relation.name: relation for relation in _ALL}

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

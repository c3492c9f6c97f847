"""Invented names and values; no name word occurs in two splits."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

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

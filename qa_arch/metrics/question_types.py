"""Question types by rules: the question word and the expected answer type.

Used to break errors down; no model is needed. The answer types are the coarse classes of Li & Roth 2002,
as far as the question word and the noun after it determine them.
"""

from __future__ import annotations

from collections.abc import Sequence

QUESTION_WORDS = ("what", "which", "who", "whom", "whose", "when", "where", "why", "how")
_BEFORE = """
in on at by for from of to with under during after before about into upon as
"""
_OF_NUMBER = """
many much long old far often large big tall high deep wide fast heavy hot cold late early few
"""
_BEGINNINGS = """
is are was were am do does did has have had can could will would shall should may might must
"""
_PREPOSITIONS, _HOW_NUMBER, _VERBS = (
    frozenset(words.split()) for words in (_BEFORE, _OF_NUMBER, _BEGINNINGS)
)
_BY_NOUN = {
    "PERSON": "person people man woman king queen president author artist actor actress singer scientist"
    " leader emperor pope name",
    "LOCATION": "city country state place location town river continent region island street mountain"
    " province county village capital nation",
    "NUMBER": "year date day month century decade time age number percentage percent amount population"
    " temperature size rate height length distance cost price",
}
_NOUN = {noun: kind for kind, nouns in _BY_NOUN.items() for noun in nouns.split()}
_DIRECT = {"who": "PERSON", "whom": "PERSON", "whose": "PERSON", "where": "LOCATION", "when": "NUMBER"}


def question_word(words: Sequence[str]) -> str:
    """Question word, ``yes/no`` if the question begins with a verb, else ``other``.

    The first word decides, or the word after a preposition; else the first question word anywhere.
    """
    lower = [word.lower() for word in words]
    for word in lower[:1] + (lower[1:2] if lower[:1] and lower[0] in _PREPOSITIONS else []):
        if word in QUESTION_WORDS:
            return word
    if lower and lower[0] in _VERBS:
        return "yes/no"
    return next((word for word in lower if word in QUESTION_WORDS), "other")


def question_type(words: Sequence[str]) -> str:
    """Question word and answer type, such as ``how:NUMBER``; see ``answer_type``."""
    return f"{question_word(words)}:{answer_type(words)}"


def answer_type(words: Sequence[str]) -> str:
    """PERSON, LOCATION, NUMBER (dates included), DESCRIPTION, YES/NO, or else ENTITY."""
    lower = [word.lower() for word in words]
    word = question_word(words)
    if word in _DIRECT:
        return _DIRECT[word]
    if word == "yes/no":
        return "YES/NO"
    if word == "other":
        return "ENTITY"
    following = lower[lower.index(word) + 1 :]
    if word == "how":
        return "NUMBER" if following and following[0] in _HOW_NUMBER else "DESCRIPTION"
    if word == "why":
        return "DESCRIPTION"
    return next((_NOUN[word] for word in following[:2] if word in _NOUN), "ENTITY")

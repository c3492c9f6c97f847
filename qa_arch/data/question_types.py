"""Question classes of Li & Roth 2002, and sets of questions labelled with them.

Classification is selection with the same candidates for all questions: the 50 classes.
"""

from __future__ import annotations

from collections.abc import Iterable

from qa_arch.data.selection_sets import selection_set, words
from qa_arch.types.text import SelectionQuestion, SelectionSet

MAIN = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant product"
    " religion sport substance symbol techmeth termeq veh word",
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}
"""Main class -> its sub classes: 6 and 50."""
CLASSES = tuple(f"{main}:{sub}" for main, subs in MAIN.items() for sub in subs.split())
"""The 50 classes, in the order of the models' scores."""
_PLACE = {label: place for place, label in enumerate(CLASSES)}
_MAIN_OF = tuple(list(MAIN).index(main_class) for main_class in (c.partition(":")[0] for c in CLASSES))


def class_set(name: str, labelled: Iterable[tuple[str | None, str]]) -> SelectionSet:
    """SelectionSet of (class, question) pairs with the classes as candidates; None is an unknown class."""
    every = range(len(CLASSES))
    questions = [
        SelectionQuestion(
            f"{name}-{number}", words(text), every, () if label is None else (_PLACE[label],), text=text
        )
        for number, (label, text) in enumerate(labelled, start=1)
    ]
    return selection_set(name, [(label,) for label in CLASSES], questions, main=_MAIN_OF)

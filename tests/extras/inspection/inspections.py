"""An inspection made by hand, for the tests of its tables, figure and page."""

from __future__ import annotations

import numpy as np

from qa_arch.extras.inspection.layers import MATCH, AttentionLayer, Inspection, Unit

QUESTION = "Who  built it?"
PASSAGE = "So far. Ada built $5 and $6 mills. It fell."
EVIL = ' </script><img src=x onerror="window.broken=1"> 𝔸'


def units(text: str, part, words) -> tuple[Unit, ...]:
    """Each of ``words`` where it next stands in ``text``."""
    made, at = [], 0
    for word in words:
        at = text.index(word, at)
        made.append(Unit(word, part, at, at + len(word)))
        at += len(word)
    return tuple(made)


def special(name: str) -> tuple[Unit, ...]:
    return (Unit(name, "special", 0, 0),)


def make_inspection(*, evil: bool = False, match: bool = True) -> Inspection:
    """3 layers of 2 heads over 13 tokens, and a match-LSTM over pieces, with weights at random."""
    passage = PASSAGE + (EVIL if evil else "")
    question = QUESTION + (EVIL if evil else "")
    asking = units(question, "question", ["Who", "built", "it", "?", *(["𝔸"] if evil else [])])
    reading = units(passage, "passage", ["Ada", "built", "$", "5", "and", "$", "6", "mills", "."])
    tokens = (*special("[CLS]"), *asking, *special("[SEP]"), *reading, *special("[SEP]"))
    random = np.random.default_rng(0)

    def draw(heads: int, rows: int, columns: int) -> np.ndarray:
        return random.dirichlet(np.full(columns, 0.3), size=(heads, rows)).astype(np.float32)

    layers = [
        AttentionLayer(str(number), ("1", "2"), draw(2, len(tokens), len(tokens)), tokens, tokens)
        for number in (1, 2, 3)
    ]
    if match:
        columns = (*asking, *special("(nothing)"))
        weights = draw(2, len(reading), len(columns))
        layers.append(AttentionLayer(MATCH, ("forward", "backward"), weights, reading, columns))
    answer = passage.index("Ada")
    name = f"bert{EVIL}" if evil else "bert"
    end = reading[-1].end
    return Inspection(
        name, question, passage, 2, 3, reading[0].start, end, (answer, answer + 3), tuple(layers)
    )

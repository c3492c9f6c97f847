"""A made-up inspection for the tests of tables and page."""

import numpy as np

from qa_arch.extras.inspection.layers import MATCH, AttentionLayer, Inspection, Unit

QUESTION = "Who  built it?"
PASSAGE = "So far. Ada built $5 and $6 mills. It fell."
EVIL = ' </script><img src=x onerror="window.broken=1"> 𝔸'


def units(text: str, part, words) -> tuple[Unit, ...]:
    """Units of ``words``, each at its next occurrence in ``text``."""
    result, end = [], 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        result.append(Unit(word, part, start, end))
    return tuple(result)


def special(name: str) -> tuple[Unit, ...]:
    return (Unit(name, "special", 0, 0),)


def make_inspection(*, evil: bool = False) -> Inspection:
    """Random weights: 3 layers of 2 heads over 16 tokens, and a match-LSTM over pieces."""
    passage = PASSAGE + (EVIL if evil else "")
    question = QUESTION + (EVIL if evil else "")
    question_units = units(question, "question", ["Who", "built", "it", "?", *(["𝔸"] if evil else [])])
    passage_units = units(passage, "passage", ["Ada", "built", "$", "5", "and", "$", "6", "mills", "."])
    tokens = (*special("[CLS]"), *question_units, *special("[SEP]"), *passage_units, *special("[SEP]"))
    random = np.random.default_rng(0)

    def draw(heads: int, rows: int, columns: int) -> np.ndarray:
        return random.dirichlet(np.full(columns, 0.3), size=(heads, rows)).astype(np.float32)

    layers = [
        AttentionLayer(str(number), ("1", "2"), draw(2, len(tokens), len(tokens)), tokens, tokens)
        for number in (1, 2, 3)
    ]
    columns = (*question_units, *special("(nothing)"))
    weights = draw(2, len(passage_units), len(columns))
    layers.append(AttentionLayer(MATCH, ("forward", "backward"), weights, passage_units, columns))
    answer = passage.index("Ada")
    name = f"bert{EVIL}" if evil else "bert"
    end = passage_units[-1].end
    return Inspection(
        name, question, passage, 2, 3, passage_units[0].start, end, (answer, answer + 3), tuple(layers)
    )

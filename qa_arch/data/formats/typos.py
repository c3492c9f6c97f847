"""``typos:SEED:SOURCE``: any other source with a typo in every question, to test robustness.

As in Pruthi et al. 2019 (section 4), a word of four letters or more is misspelt between its first and its
last letter: two letters are swapped, or one is dropped, doubled or replaced by a neighbouring key (QWERTY).
The typo depends only on the seed and the question id. Questions without such a word, passages, answers and
ids are unchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.question_sets import question_set
from qa_arch.errors import DataError
from qa_arch.types.text import QuestionSet

_WORD = re.compile(r"[^\W\d_]{4,}")
_KEYS = {
    key: (row, column)
    for row, keys in enumerate(("qwertyuiop", "asdfghjkl", "zxcvbnm"))
    for column, key in enumerate(keys)
}
_NEXT = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
"""(row, column) offsets of adjacent keys: each row starts half a key to the right of the one above."""
_NEIGHBOURS = {
    key: [other for other, (r, c) in _KEYS.items() if (r - row, c - column) in _NEXT]
    for key, (row, column) in _KEYS.items()
}


def misspell(question: str, draw: int) -> str:
    """Add a typo selected by the large number ``draw``; no change without a word of four letters."""
    words = list(_WORD.finditer(question))
    if not words:
        return question
    draw, chosen = divmod(draw, len(words))
    match = words[chosen]
    kinds = [variants for variants in _typos(match[0]) if variants]
    draw, chosen = divmod(draw, len(kinds))
    word = kinds[chosen][draw % len(kinds[chosen])]
    return f"{question[: match.start()]}{word}{question[match.end() :]}"


def _typos(word: str) -> tuple[list[str], ...]:
    """Misspellings by kind: swapped, dropped, doubled, replaced."""
    inner = range(1, len(word) - 1)
    return (
        [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in inner[:-1] if word[i] != word[i + 1]],
        [word[:i] + word[i + 1 :] for i in inner],
        [word[:i] + word[i] + word[i:] for i in inner],
        [
            word[:i] + (key.upper() if word[i].isupper() else key) + word[i + 1 :]
            for i in inner
            for key in _NEIGHBOURS.get(word[i].lower(), ())
        ],
    )


def _parts(source: str) -> tuple[str, str]:
    seed, _, inner = source.partition(":")
    if not (seed.isascii() and seed.isdigit() and inner):
        raise DataError(f"typos:{source}: write typos:SEED:SOURCE, such as typos:13:FILE")
    return seed.lstrip("0") or "0", inner


def _open(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> QuestionSet:
    from qa_arch.data.sources import open_passages

    seed, inner = _parts(sources[0])
    questions = open_passages(inner, on_error=on_error, use=use)
    examples = []
    for example in questions.examples:
        draw = int.from_bytes(hashlib.sha256(f"{seed}:{example.id}".encode()).digest())
        examples.append(replace(example, question=misspell(example.question, draw)))
    name = name or f"{questions.name}.typos{seed}"
    return question_set(name, examples, questions.protocol, questions.skipped, questions.language)


FORMAT = Format("typos:SEED:SOURCE", "a set with typing errors", open=_open, wraps=_parts)

"""Answer normalisation for languages other than English, as in the official MLQA evaluation.

Lower-case, then strip punctuation (Unicode category P and ASCII symbols), then articles; in Chinese every Han
character is its own token (Lewis et al. 2020, section 4). English follows SQuAD's rules (``metrics.squad``),
which keep non-ASCII punctuation.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping

ENGLISH = "en"
_ARTICLES: Mapping[str, str] = {
    "ar": "ال",  # anywhere, even inside words, as in the official script
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "hi": "",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "zh": "",
    # Not in MLQA: languages without articles, treated like Hindi.
    "ru": "",
    "tr": "",
}
"""Article pattern of each language; empty if it has none."""
LANGUAGES = (ENGLISH, *sorted(_ARTICLES))
_HAN = re.compile("([\u4e00-\u9fa5])")


class _Punctuation(dict[int, int | None]):
    """``str.translate`` table that drops punctuation, filled lazily."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        drops = character in string.punctuation or unicodedata.category(character).startswith("P")
        self[code] = None if drops else code
        return self[code]


def normaliser(language: str) -> Callable[[str], str]:
    """Return the function that normalises an answer to space-separated tokens; any language but English."""
    articles, table = re.compile(_ARTICLES[language] or r"(?!)"), _Punctuation()

    def normalise(text: str) -> str:
        plain = articles.sub(" ", text.lower().translate(table))
        if language == "zh":
            plain = _HAN.sub(r" \1 ", plain)
        return " ".join(plain.split())

    return normalise

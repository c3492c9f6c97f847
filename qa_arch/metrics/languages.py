"""Normalisation of answers in other languages than English, as in the official evaluation of MLQA.

Lower case, then without punctuation (every Unicode character of category P, and ASCII's symbols), then
without articles; of Chinese every Han character is a token of its own (Lewis et al. 2020, section 4). English
is left to SQuAD's rules (``metrics.squad``), which keep punctuation outside of ASCII.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping

ENGLISH = "en"
_ARTICLES: Mapping[str, str] = {
    "ar": "ال",  # wherever it stands, within words too, as the official script takes it
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "hi": "",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "zh": "",
    # Not of MLQA: languages without articles, by the rules of Hindi.
    "ru": "",
    "tr": "",
}
"""The articles of each language, as a pattern; empty where there are none."""
LANGUAGES = (ENGLISH, *sorted(_ARTICLES))
_HAN = re.compile("([\u4e00-\u9fa5])")


class _Punctuation(dict[int, int | None]):
    """Table of ``str.translate``: punctuation is left out; filled as characters occur."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        drops = character in string.punctuation or unicodedata.category(character).startswith("P")
        self[code] = None if drops else code
        return self[code]


def normaliser(language: str) -> Callable[[str], str]:
    """The function that normalises an answer in one of ``LANGUAGES`` but English: tokens between spaces."""
    articles, table = re.compile(_ARTICLES[language] or r"(?!)"), _Punctuation()

    def normalise(text: str) -> str:
        plain = articles.sub(" ", text.lower().translate(table))
        if language == "zh":
            plain = _HAN.sub(r" \1 ", plain)
        return " ".join(plain.split())

    return normalise

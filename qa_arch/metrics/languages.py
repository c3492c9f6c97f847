"""Answer normalisation for languages other than English, as in the official MLQA evaluation.

Lower-case, then strip punctuation (Unicode category P and ASCII symbols), then articles; in Chinese every Han
character is its own token (Lewis et al. 2020, section 4). English follows SQuAD's rules (``metrics.squad``),
which keep non-ASCII punctuation. Not in MLQA: Japanese, Korean and Thai, where every character is a token, as
in the official evaluation of KorQuAD 1.0 (Lim et al. 2019), whose rules Korean follows exactly.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from qa_arch.types.text import Language

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
    **dict.fromkeys(("ja", "ko", "th"), ""),
}
"""Article pattern of each language; empty if it has none."""
LANGUAGES: tuple[Language, ...] = get_args(Language)
_HAN = re.compile("([\u4e00-\u9fa5])")
BY_CHARACTER = ("ja", "ko", "th")
_KORQUAD = str.maketrans(dict.fromkeys(string.punctuation) | dict.fromkeys("'\"《》<>〈〉()‘’", " "))
_SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),  # kana; in Japanese text Han characters are never alone
    "ko": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
    "zh": _HAN,
}
"""Language -> its script. White space does not separate its words, or words are not what is compared."""


class _Punctuation(dict[int, int | None]):
    """``str.translate`` table that drops punctuation, filled lazily."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        drops = character in string.punctuation or unicodedata.category(character).startswith("P")
        self[code] = None if drops else code
        return self[code]


def normaliser(language: str) -> Callable[[str], str]:
    """Return the function that normalises an answer to space-separated tokens; any language but English."""
    articles = re.compile(_ARTICLES[language] or r"(?!)")
    table = _KORQUAD if language == "ko" else _Punctuation()

    def normalise(text: str) -> str:
        plain = articles.sub(" ", text.lower().translate(table))
        if language in BY_CHARACTER:  # two spaces where words end, which matter to exact match only
            return "  ".join(map(" ".join, plain.split()))
        if language == "zh":
            plain = _HAN.sub(r" \1 ", plain)
        return " ".join(plain.split())

    return normalise


def by_characters(texts: Iterable[str]) -> str | None:
    """Language compared by characters whose script occurs in more than half of ``texts``; None for others."""
    texts = list(texts)
    counts = {code: sum(map(bool, map(script.search, texts))) for code, script in _SCRIPTS.items()}
    return next((code for code, count in counts.items() if 2 * count > len(texts)), None)

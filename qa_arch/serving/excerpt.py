"""The sentence around an answer, to show it where it stands."""

from __future__ import annotations

import re
import unicodedata

MOST = 160
"""Most characters that are shown on either side of the answer."""
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]|\n+")
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")


def sentence(text: str, start: int, end: int) -> tuple[str, str, str]:
    """What precedes the span from ``start`` to ``end`` in its sentence, the span, and what follows.

    A side that is longer than ``MOST`` is cut at a space and marked by "…". All three are ``plain``.
    """
    before, after = text[max(0, start - MOST - 1) : start], text[end : end + MOST + 1]
    ends = [match.end() for match in _SENTENCE_END.finditer(before)]
    if ends:
        before = before[ends[-1] :]
    elif len(before) > MOST:
        before = "…" + before.partition(" ")[2]
    own = text[max(start, end - 1) : end]  # its full stop may be the sentence's
    stop = _SENTENCE_END.search(own + after)
    if stop:
        after = after[: max(0, stop.end() - len(own))]
    elif len(after) > MOST:
        after = after.rpartition(" ")[0] + "…"
    return plain(before.lstrip()), plain(text[start:end]), plain(after.rstrip())


def plain(text: str) -> str:
    """``text`` with spaces for line ends and control characters, so that no text steers a terminal."""
    return "".join(" " if unicodedata.category(c) in _CONTROLS else c for c in text)

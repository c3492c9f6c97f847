"""``language:CODE:SOURCE``: any other source, with answers in another language than English.

``language:de:xquad.de.json`` and ``language:ar:hub:facebook/mlqa:test:mlqa.ar.ar`` are scored by the
normalisation rules of their language (``metrics.languages``) instead of SQuAD's English ones. The language is
part of the set's fingerprint, so that scores by different rules never share a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from qa_arch.config.check import suggest
from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.question_sets import question_set
from qa_arch.errors import DataError
from qa_arch.metrics.languages import LANGUAGES
from qa_arch.types.text import QuestionSet


def _parts(source: str) -> tuple[str, str]:
    language, _, inner = source.partition(":")
    if language not in LANGUAGES or not inner:
        example = "write language:CODE:SOURCE, such as language:de:FILE"
        problem = f"language '{language}' is not supported" if inner else example
        raise DataError(f"language:{source}: {problem}{suggest(language, LANGUAGES)}")
    return language, inner


def _open(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> QuestionSet:
    from qa_arch.data.sources import open_passages

    language, inner = _parts(sources[0])
    questions = open_passages(inner, name=name, on_error=on_error, use=use)
    return question_set(
        questions.name, questions.examples, questions.protocol, questions.skipped, language=language
    )


FORMAT = Format("language:CODE:SOURCE", "a set in another language", open=_open, wraps=_parts)

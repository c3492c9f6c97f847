"""Question files and a stub model that answers instantly, for tests of bulk prediction."""

import json
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from qa_arch.files import write_atomic
from qa_arch.qa.answers import Answer, Query
from qa_arch.serving.lines import answer_part


def write_lines(path: Path, rows: Sequence[object]) -> Path:
    """Write ``rows`` as JSON lines; strings verbatim."""
    texts = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    return write_atomic(path, "".join(f"{text}\n" for text in texts))


def read_lines(text: str | Path) -> list[dict]:
    text = text.read_text(encoding="utf-8") if isinstance(text, Path) else text
    return [json.loads(line) for line in text.splitlines()]


def rows(count: int) -> list[dict[str, object]]:
    return [
        {"id": f"é{n}", "question": f"Who {n}?", "context": f"Odo {n} built it." * (n % 5) or "-"}
        for n in range(count)
    ]


def first_words(queries: Sequence[Query]) -> list[Answer]:
    """Answer with the first word of the first document; a dash means "no answer"."""
    words = [query.documents[0].split()[0].strip("-") for query in queries]
    return [
        Answer(
            text=word,
            start=0 if word else None,
            end=len(word) if word else None,
            document=0 if word else None,
            score=float(query.top_k) if word else None,
            confidence=0.5,
            no_answer_probability=0.25,
            null_odds=-len(query.question) / 3,
            null_threshold=0.0,
            windows=len(query.documents),
        )
        for word, query in zip(words, queries, strict=True)
    ]


@contextmanager
def answering(file: object, reading=first_words, **options):
    """Context manager for ``answer_file`` that answers parts in this process."""
    answer = partial(answer_part, answer_queries=reading, file=str(file), options=options)
    yield lambda parts: map(answer, parts)

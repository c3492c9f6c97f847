"""The train, calibration and dev sets of a run, and splits of a set by article; no two share an article.

Articles are drawn in the order of a hash of seed and title. So the draw does not depend on their order in
the file, and adding an article does not reorder the others.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations, permutations
from math import isclose

from qa_arch.config.schema import Data, Source
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import available, holds, open_passages, require
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)


def load_splits(data: Data) -> dict[str, QuestionSet]:
    """Open train, calibration and dev of a run, in this order; splits without data are left out.

    Where the config names no calibration set, it is held out of train; ``data.train_questions`` then samples
    train. Of a closed dev set only the titles are read, so that a run which shares articles with it fails
    before training and not when it is scored.

    Raises DataError where a source holds no passages or two sets share an article, ConfigError where nothing
    can be held out.
    """
    named = {"train": data.train, "calibration": data.calibration, "dev": data.dev if data.open_dev else None}
    for split, source in named.items():
        if source is not None:
            require(source, "passages", f"data.{split}")
    sets = {"train": _open(data.train, "train", data)}
    share, seed = data.hold_out_share, data.split_seed
    if data.calibration is not None:
        sets["calibration"] = _open(data.calibration, "calibration", data)
    elif data.hold_out_articles:
        sets["train"], sets["calibration"] = hold_out(sets["train"], data.hold_out_articles, seed)
    elif share:
        sets = by_article(sets["train"], {"train": 1 - share, "calibration": share}, seed)
    if data.train_questions:
        sets["train"] = subset(sets["train"], data.train_questions, seed)
    if data.dev is not None and data.open_dev:
        sets["dev"] = _open(data.dev, "dev", data)
    require_disjoint(**sets, **closed_titles(data))
    return sets


def _open(source: Source, split: str, data: Data) -> QuestionSet:
    questions = open_passages(source, name=split, on_error=data.on_error)
    for problem in questions.skipped:
        log.warning("left out: %s", problem)
    return questions


def closed_titles(data: Data) -> dict[str, frozenset[str]]:
    """The titles of a dev set that the config keeps closed, by its name; empty where it has none, or none is
    on disk."""
    if data.dev is None or data.open_dev or holds(data.dev) != "passages":
        return {}
    if not available(data.dev):
        log.info("data.dev: not on disk; articles shared with training are only checked when it is scored")
        return {}
    return {"dev (closed)": open_passages(data.dev, name="dev", on_error=data.on_error).titles}


def by_article(questions: QuestionSet, fractions: Mapping[str, float], seed: int) -> dict[str, QuestionSet]:
    """Split whole articles into named parts whose shares of the questions are near ``fractions``.

    Fractions are positive and sum to 1. A seeded assignment is improved by local search: articles are moved
    and swapped until no single step reduces the squared error of the sizes, counted in questions. Every part
    gets an article. Raises ConfigError for bad fractions, DataError for fewer articles than parts.
    """
    if any(value <= 0 for value in fractions.values()) or not isclose(
        sum(fractions.values()), 1, abs_tol=1e-6
    ):
        raise ConfigError(f"split fractions {dict(fractions)} must be positive and sum to 1")
    sizes = Counter(example.title for example in questions.examples)
    if len(sizes) < len(fractions):
        raise DataError(
            f"{questions.name}: {len(sizes)} article(s) cannot be split into {len(fractions)} parts; use more"
            " articles or fewer parts, or to train name data.calibration"
        )
    parts = _assign(sizes, fractions, seed)
    _balance(parts, sizes, fractions)
    return {name: _pick(questions, titles, f"{questions.name}.{name}") for name, titles in parts.items()}


def hold_out(questions: QuestionSet, articles: int, seed: int) -> tuple[QuestionSet, QuestionSet]:
    """(rest, held out) after drawing ``articles`` whole articles by ``seed``."""
    titles = _shuffled(questions.titles, seed)
    if not 0 < articles < len(titles):
        raise ConfigError(
            f"cannot hold out {articles} of the {len(titles)} articles of {questions.name}; "
            f"ask for 1 to {len(titles) - 1}"
        )
    held = titles[:articles]
    rest = titles[articles:]
    return _pick(questions, rest, f"{questions.name}.rest"), _pick(questions, held, f"{questions.name}.held")


def subset(questions: QuestionSet, n: int, seed: int) -> QuestionSet:
    """At most ``n`` questions in file order: whole articles drawn by ``seed``, the last of them truncated."""
    if n < 1:
        raise ConfigError(f"a subset of {n} questions is empty; take at least 1")
    if n >= len(questions):
        return questions
    rank = {title: place for place, title in enumerate(_shuffled(questions.titles, seed))}
    order = sorted(range(len(questions)), key=lambda index: (rank[questions.examples[index].title], index))
    examples = (questions.examples[index] for index in sorted(order[:n]))
    return question_set(f"{questions.name}.{n}", examples, questions.protocol, language=questions.language)


def require_disjoint(**sets: QuestionSet | Collection[str]) -> None:
    """Raise DataError, naming sets and titles, where any two sets (or collections of titles) share an
    article."""
    titles = {name: frozenset(s.titles if isinstance(s, QuestionSet) else s) for name, s in sets.items()}
    faults = []
    for a, b in combinations(titles, 2):
        if shared := sorted(titles[a] & titles[b]):
            first = ", ".join(map(repr, shared[:5])) + (", ..." if len(shared) > 5 else "")
            faults.append(f"{a} and {b} share {len(shared)} article{'s'[: len(shared) > 1]} ({first})")
    if faults:
        raise DataError(f"{'; '.join(faults)}; remove them from one of the sets or split by article")


def _shuffled(titles: Iterable[str], seed: int) -> list[str]:
    return sorted(titles, key=lambda title: (hashlib.sha256(f"{seed}\0{title}".encode()).digest(), title))


def _pick(questions: QuestionSet, titles: Iterable[str], name: str) -> QuestionSet:
    wanted = frozenset(titles)
    examples = (example for example in questions.examples if example.title in wanted)
    return question_set(name, examples, questions.protocol, language=questions.language)


def _assign(sizes: Mapping[str, int], fractions: Mapping[str, float], seed: int) -> dict[str, list[str]]:
    """A first assignment: an article to every part, the others to the part that lacks most questions."""
    titles = _shuffled(sizes, seed)
    parts = {name: [title] for name, title in zip(fractions, titles, strict=False)}
    lacking = {name: share * sum(sizes.values()) - sizes[parts[name][0]] for name, share in fractions.items()}
    for title in titles[len(parts) :]:
        name = max(lacking, key=lacking.__getitem__)
        parts[name].append(title)
        lacking[name] -= sizes[title]
    return parts


def _balance(parts: dict[str, list[str]], sizes: Mapping[str, int], fractions: Mapping[str, float]) -> None:
    """Improve ``parts`` in place: move or swap articles between two parts, the best step first.

    With surpluses u > v of two parts, moving s questions reduces u² + v² by 2s(u - v - s).
    """
    total = sum(sizes.values())
    while True:
        surplus = {name: sum(map(sizes.__getitem__, parts[name])) - fractions[name] * total for name in parts}
        best, step = 1e-6, None
        for source, target in permutations(parts, 2):
            gap = surplus[source] - surplus[target]
            for given, taken in _steps(parts[source], parts[target]) if gap > 0 else ():
                moved = sizes[given] - (sizes[taken] if taken is not None else 0)
                if moved * (gap - moved) > best:
                    best, step = moved * (gap - moved), (source, target, given, taken)
        if step is None:
            return
        source, target, given, taken = step
        parts[source].remove(given)
        parts[target].append(given)
        if taken is not None:
            parts[target].remove(taken)
            parts[source].append(taken)


def _steps(source: list[str], target: list[str]) -> Iterator[tuple[str, str | None]]:
    for given in source:
        if len(source) > 1:
            yield given, None
        for taken in target:
            yield given, taken

"""Train, calibration and dev sets of a run, and splits by article; no two sets share an article.

Articles are drawn in the order of a hash of seed and title, so the draw does not depend on their order in the
file, and adding an article does not reorder the others.
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
    """Open train, calibration and dev of a run, in this order; splits without data are omitted.

    Without a configured calibration set, one is held out from train; ``data.train_questions`` then subsamples
    train. A closed dev set is only checked for shared articles, so that a run fails before training rather
    than when it is scored.

    Raises DataError if a source has no passages or two sets share an article, ConfigError if nothing can be
    held out.
    """
    for setting, source in data.opened.items():
        require(source, "passages", setting)
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
    if "data.dev" in data.opened:
        sets["dev"] = _open(data.opened["data.dev"], "dev", data)
    require_disjoint(**sets, **closed_titles(data))
    return sets


def _open(source: Source, split: str, data: Data) -> QuestionSet:
    questions = open_passages(source, name=split, on_error=data.on_error)
    for problem in questions.skipped:
        log.warning("left out: %s", problem)
    return questions


def closed_titles(data: Data) -> dict[str, frozenset[str]]:
    """Titles of a closed dev set, keyed by its name; empty without one, or if it is not on disk."""
    if data.dev is None or data.open_dev or holds(data.dev) != "passages":
        return {}
    if not available(data.dev):
        log.info("data.dev: not on disk; articles shared with training are checked only when it is scored")
        return {}
    return {"dev (closed)": open_passages(data.dev, name="dev", on_error=data.on_error).titles}


def by_article(questions: QuestionSet, fractions: Mapping[str, float], seed: int) -> dict[str, QuestionSet]:
    """Split whole articles into named parts whose shares of the questions approximate ``fractions``.

    Fractions are positive and sum to 1. A seeded initial assignment is improved by local search: articles are
    moved and swapped until no single step reduces the squared error of the sizes, in questions. Every part
    gets at least one article. Raises ConfigError for invalid fractions, DataError for fewer articles than
    parts.
    """
    if any(value <= 0 for value in fractions.values()) or not isclose(
        sum(fractions.values()), 1, abs_tol=1e-6
    ):
        raise ConfigError(f"split fractions {dict(fractions)} must be positive and sum to 1")
    sizes = Counter(example.title for example in questions.examples)
    if len(sizes) < len(fractions):
        raise DataError(
            f"{questions.name}: {len(sizes)} article(s) cannot be split into {len(fractions)} parts; use more"
            " articles or fewer parts, or set data.calibration to train"
        )
    parts = _initial_assignment(sizes, fractions, seed)
    _balance(parts, sizes, fractions)
    return {name: _select(questions, titles, f"{questions.name}.{name}") for name, titles in parts.items()}


def hold_out(questions: QuestionSet, articles: int, seed: int) -> tuple[QuestionSet, QuestionSet]:
    """Hold out ``articles`` whole articles drawn by ``seed``; returns (rest, held out)."""
    titles = _shuffled(questions.titles, seed)
    if not 0 < articles < len(titles):
        raise ConfigError(
            f"cannot hold out {articles} of the {len(titles)} articles of {questions.name}; "
            f"choose 1 to {len(titles) - 1}"
        )
    rest = titles[articles:]
    held_out = _select(questions, titles[:articles], f"{questions.name}.held")
    return _select(questions, rest, f"{questions.name}.rest"), held_out


def subset(questions: QuestionSet, n: int, seed: int) -> QuestionSet:
    """At most ``n`` questions in file order, from whole articles drawn by ``seed``; the last is truncated."""
    if n < 1:
        raise ConfigError(f"a subset of {n} questions is empty; use at least 1")
    if n >= len(questions):
        return questions
    rank = {title: index for index, title in enumerate(_shuffled(questions.titles, seed))}
    order = sorted(range(len(questions)), key=lambda index: (rank[questions.examples[index].title], index))
    examples = (questions.examples[index] for index in sorted(order[:n]))
    return question_set(f"{questions.name}.{n}", examples, questions.protocol, language=questions.language)


def require_disjoint(**sets: QuestionSet | Collection[str]) -> None:
    """Raise DataError naming sets and titles if any two sets (or collections of titles) share an article."""
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


def _select(questions: QuestionSet, titles: Iterable[str], name: str) -> QuestionSet:
    wanted = frozenset(titles)
    examples = (example for example in questions.examples if example.title in wanted)
    return question_set(name, examples, questions.protocol, language=questions.language)


def _initial_assignment(
    sizes: Mapping[str, int], fractions: Mapping[str, float], seed: int
) -> dict[str, list[str]]:
    """Assign one article to every part, then each other one to the part that lacks the most questions."""
    titles = _shuffled(sizes, seed)
    parts = {name: [title] for name, title in zip(fractions, titles, strict=False)}
    lacking = {name: share * sum(sizes.values()) - sizes[parts[name][0]] for name, share in fractions.items()}
    for title in titles[len(parts) :]:
        name = max(lacking, key=lacking.__getitem__)
        parts[name].append(title)
        lacking[name] -= sizes[title]
    return parts


def _balance(parts: dict[str, list[str]], sizes: Mapping[str, int], fractions: Mapping[str, float]) -> None:
    """Improve ``parts`` in place by moving or swapping articles between two parts, best step first.

    With surpluses u > v of two parts, moving s questions reduces u² + v² by 2s(u - v - s).
    """
    total = sum(sizes.values())
    while True:
        surplus = {name: sum(map(sizes.__getitem__, parts[name])) - fractions[name] * total for name in parts}
        best, step = 1e-6, None
        for source, target in permutations(parts, 2):
            gap = surplus[source] - surplus[target]
            for moved, returned in _steps(parts[source], parts[target], sizes) if gap > 0 else ():
                size = sizes[moved] - (sizes[returned] if returned is not None else 0)
                if size * (gap - size) > best:
                    best, step = size * (gap - size), (source, target, moved, returned)
        if step is None:
            return
        source, target, moved, returned = step
        parts[source].remove(moved)
        parts[target].append(moved)
        if returned is not None:
            parts[target].remove(returned)
            parts[source].append(returned)


def _steps(
    source: list[str], target: list[str], sizes: Mapping[str, int]
) -> Iterator[tuple[str, str | None]]:
    """(article to move, article returned in a swap or None); ``source`` keeps at least one article.

    Only the first article of each size: if every passage is one, there are 100,000 articles.
    """
    returns = _first_of_each_size(target, sizes)
    for moved in _first_of_each_size(source, sizes):
        if len(source) > 1:
            yield moved, None
        for returned in returns:
            yield moved, returned


def _first_of_each_size(titles: Iterable[str], sizes: Mapping[str, int]) -> Collection[str]:
    first: dict[int, str] = {}
    for title in titles:
        first.setdefault(sizes[title], title)
    return first.values()

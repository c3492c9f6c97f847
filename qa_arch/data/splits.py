"""Train, calibration and dev sets of a run, and splits by article; no two sets share an article.

Articles are drawn in the order of a hash of seed and title, so the draw does not depend on their order in the
file, and adding an article does not reorder the others. If a part would lack answerable or unanswerable
questions, which the null threshold is fitted on, the draw is repeated. A set of one article is split by
passage.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, permutations
from math import isclose
from typing import Any

from qa_arch.config.schema import Data, Source
from qa_arch.data.files import PASSAGES, Use
from qa_arch.data.question_sets import passage_title
from qa_arch.data.sources import available, format_of, open_listed, open_passages, require_passages
from qa_arch.errors import ConfigError, DataError
from qa_arch.records import SplitFacts
from qa_arch.terminal import counted
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)
DRAWS = 20
"""Draws of a split that is to have answerable and unanswerable questions in every part."""


def load_splits(data: Data) -> dict[str, QuestionSet]:
    """Open train, calibration and dev of a run, in this order; splits without data are omitted.

    Without a configured calibration set, one is held out from train; ``data.train_questions`` then subsamples
    train. A closed dev set is only checked for shared articles, so that a run fails before training rather
    than when it is scored.

    Raises DataError if a source has no passages or two sets share an article, ConfigError if nothing can be
    held out.
    """
    for setting, source in data.opened.items():
        require_passages(source, setting)
    sets = {"train": _open(data.train, "train", data)}
    share, seed = data.hold_out_share, data.split_seed
    examples = sets["train"].examples
    if data.calibration is None and all(e.title == passage_title(e.context) for e in examples):
        log.info("train: without titles, so each passage counts as an article")
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
    require_disjoint(**sets, **closed_dev(data))
    return sets


def _open(source: Source, split: str, data: Data) -> QuestionSet:
    use: Use = "training" if split == "train" else "scoring"
    return open_listed(source, name=split, on_error=data.on_error, use=use, language=data.language)


def closed_dev(data: Data) -> dict[str, QuestionSet]:
    """A closed dev set, keyed by its name; empty without one, or if it is not on disk."""
    if data.dev is None or data.open_dev or format_of(data.dev).holds != PASSAGES:
        return {}
    if not available(data.dev):
        log.info("data.dev: not on disk; articles shared with training are checked only when it is scored")
        return {}
    dev = open_passages(data.dev, name="dev", on_error=data.on_error, use="scoring", language=data.language)
    return {"dev (closed)": dev}


def held_out(data: Data) -> SplitFacts | None:
    """Facts of ``closed_dev``, by whose titles also an untitled part of it is known; None if it is empty."""
    for questions in closed_dev(data).values():
        passages = {passage_title(example.context) for example in questions.examples}
        return replace(SplitFacts.of(questions), titles=tuple(sorted(questions.titles | passages)))
    return None


def by_article(questions: QuestionSet, fractions: Mapping[str, float], seed: int) -> dict[str, QuestionSet]:
    """Split whole articles into named parts whose shares of the questions approximate ``fractions``.

    Fractions are positive and sum to 1. A seeded initial assignment is improved by local search: articles are
    moved and swapped until no single step reduces the squared error of the sizes, in questions. Every part
    gets at least one article. Raises ConfigError for invalid fractions, DataError for fewer articles than
    parts.
    """
    questions = _of_several_articles(questions)
    if any(value <= 0 for value in fractions.values()) or not isclose(
        sum(fractions.values()), 1, abs_tol=1e-6
    ):
        raise ConfigError(f"split fractions {dict(fractions)} must be positive and sum to 1")
    sizes = Counter(example.title for example in questions.examples)
    if len(sizes) < len(fractions):
        raise DataError(
            f"{questions.name}: {counted(len(sizes), 'article')} cannot be split into"
            f" {len(fractions)} parts; use more articles, or fewer parts (data split --parts), or train with"
            " a calibration set of other articles (data.calibration)"
        )

    def draw(seed: str) -> dict[str, list[str]]:
        parts = _initial_assignment(sizes, fractions, seed)
        _balance(parts, sizes, fractions)
        return parts

    parts = _with_both_classes(questions, draw, seed)
    return {name: _select(questions, titles, f"{questions.name}.{name}") for name, titles in parts.items()}


def hold_out(questions: QuestionSet, articles: int, seed: int) -> tuple[QuestionSet, QuestionSet]:
    """Hold out ``articles`` whole articles drawn by ``seed``; returns (rest, held out)."""
    questions = _of_several_articles(questions)
    count = len(questions.titles)
    if not 0 < articles < count:
        remedy = f"choose 1 to {count - 1}" if count > 1 else "name a calibration set (data.calibration)"
        raise ConfigError(f"cannot hold out {articles} of the {count} articles of {questions.name}; {remedy}")

    def draw(seed: str) -> dict[str, list[str]]:
        titles = _shuffled(questions.titles, seed)
        return {"rest": titles[articles:], "held": titles[:articles]}

    parts = _with_both_classes(questions, draw, seed)
    rest, held = (_select(questions, titles, f"{questions.name}.{name}") for name, titles in parts.items())
    return rest, held


def _of_several_articles(questions: QuestionSet) -> QuestionSet:
    """``questions``; if all are of one article, with each passage as an article."""
    if len(questions.titles) > 1 or len({example.context for example in questions.examples}) == 1:
        return questions
    log.warning("%s: has a single article, and is split by passage", questions.name)
    examples = [replace(example, title=passage_title(example.context)) for example in questions.examples]
    return replace(questions, examples=tuple(examples))


def _with_both_classes(
    questions: QuestionSet, draw: Callable[[str], dict[str, list[str]]], seed: int
) -> dict[str, list[str]]:
    """The first draw (part -> titles) in which every part has answerable and unanswerable questions; without
    any among ``DRAWS``, or if too few articles have both, the first of all, with a warning."""
    titles = {
        answerable: {e.title for e in questions.examples if e.answerable == answerable}
        for answerable in (True, False)
    }
    first = draw(str(seed))
    if not all(titles.values()):  # all questions are of one class
        return first
    several = all(len(having) >= len(first) for having in titles.values())
    redraws = (draw(f"{seed}.{number}") for number in range(1, DRAWS if several else 1))
    for parts in chain([first], redraws):
        if not _one_class(parts, titles):
            return parts
    for name in _one_class(first, titles):
        log.warning(
            "%s: all questions of the part %s are answerable, or all are unanswerable, as few articles have"
            " both; a null threshold cannot be fitted on it",
            questions.name,
            name,
        )
    return first


def _one_class(parts: Mapping[str, Collection[str]], titles: Mapping[bool, set[str]]) -> list[str]:
    """Names of the parts without an answerable or without an unanswerable question."""
    return [name for name, own in parts.items() if any(having.isdisjoint(own) for having in titles.values())]


def subset(questions: QuestionSet, n: int, seed: int) -> QuestionSet:
    """At most ``n`` questions in file order, from whole articles drawn by ``seed``; the last is truncated."""
    if n < 1:
        raise ConfigError(f"a subset of {n} questions is empty; use at least 1")
    if n >= len(questions):
        return questions
    rank = {title: index for index, title in enumerate(_shuffled(questions.titles, seed))}
    order = sorted(range(len(questions)), key=lambda index: (rank[questions.examples[index].title], index))
    examples = (questions.examples[index] for index in sorted(order[:n]))
    return replace(questions, name=f"{questions.name}.{n}", examples=tuple(examples))


def require_disjoint(**sets: QuestionSet | Collection[str]) -> None:
    """Raise DataError naming sets and titles if any two sets (or collections of titles) share an article."""
    faults = []
    for a, b in combinations(sets, 2):
        if shared := sorted(shared_articles(sets[a], sets[b])):
            first = ", ".join(map(repr, shared[:5])) + (", ..." if len(shared) > 5 else "")
            faults.append(f"{a} and {b} share {counted(len(shared), 'article')} ({first})")
    if faults:
        raise DataError(f"{'; '.join(faults)}; remove them from one of the sets or split by article")


def shared_articles(a: Any, b: Any) -> frozenset[str]:
    """Articles of two sets, or collections of titles, by title; a passage without one by its text."""
    (titles, names), (others, other_names) = _titles(a), _titles(b)
    return (titles & other_names) | (names & others)


def _titles(of: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Titles; and these with their hashes, which exports have, and the titles that its passages, if they are
    known, would have without."""
    titles = frozenset(getattr(of, "titles", of))
    contexts = {example.context for example in of.examples} if isinstance(of, QuestionSet) else set[str]()
    return titles, titles.union(map(passage_title, titles | contexts))


def _shuffled(titles: Iterable[str], seed: int | str) -> list[str]:
    return sorted(titles, key=lambda title: (hashlib.sha256(f"{seed}\0{title}".encode()).digest(), title))


def _select(questions: QuestionSet, titles: Iterable[str], name: str) -> QuestionSet:
    wanted = frozenset(titles)
    examples = tuple(example for example in questions.examples if example.title in wanted)
    # A faulty record has no part that it belongs to: each says what its file lacks.
    return replace(questions, name=name, examples=examples)


def _initial_assignment(
    sizes: Mapping[str, int], fractions: Mapping[str, float], seed: str
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
        best, step = 1e-6, None  # less is rounding, by which steps could go round for ever
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

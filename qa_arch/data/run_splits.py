"""Opening of a run's train, calibration and dev sets, as its config names them."""

from __future__ import annotations

import logging
from typing import Literal, overload

import numpy as np

from qa_arch.config.schema import Data, Source
from qa_arch.data.formats import Holds, OnError
from qa_arch.data.made_up import SWAPS, with_made_up
from qa_arch.data.selection_sets import selection_set, sentence_selection
from qa_arch.data.sources import available, holds, open_passages, open_source, require
from qa_arch.data.splits import by_article, hold_out, hold_out_questions, require_disjoint, subset
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import QuestionSet, SelectionSet

log = logging.getLogger(__name__)
AnySet = QuestionSet | SelectionSet
_DESCRIPTION: dict[Holds, str] = {
    "passages": "a data set with passages",
    "candidates": "InsuranceQA",
    "classes": "questions with classes",
}


@overload
def load_splits(data: Data, *, want: Literal["passages"]) -> dict[str, QuestionSet]: ...
@overload
def load_splits(data: Data, *, want: Literal["candidates", "classes"]) -> dict[str, SelectionSet]: ...
def load_splits(data: Data, *, want: Holds) -> dict[str, QuestionSet] | dict[str, SelectionSet]:
    """Open train, calibration and dev of a run, in this order; splits without data are left out.

    Where the config names no calibration set, it is held out of train; ``data.train_questions`` then samples
    train, and ``data.made_up_share`` adds unanswerable questions to it. Of a closed dev set only the titles
    are read, so that a run which shares articles with it fails before training and not when it is scored.
    ``want`` is what the task reads: for ``candidates``, passages are first split by article and then
    converted to candidate sentences.

    Raises DataError where a source does not suit the task or two sets share an article, ConfigError where
    nothing can be held out.
    """
    _check_sources(data, want)
    sets: dict[str, AnySet] = {"train": _open(data.train, "train", data)}
    if data.calibration is not None:
        sets["calibration"] = _open(data.calibration, "calibration", data)
    else:
        sets |= _held_out(sets["train"], data)
    if data.train_questions:
        sets["train"] = _sample(sets["train"], data.train_questions, data.split_seed)
    if data.made_up_share:
        sets["train"] = _with_made_up(sets["train"], data)
    if data.dev is not None and data.open_dev:
        sets["dev"] = _open(data.dev, "dev", data)
    require_disjoint(**{split: questions.titles for split, questions in sets.items()}, **closed_titles(data))
    if not len(sets["train"]):
        raise DataError(
            "data.train: no questions are left to train on; hold out fewer or raise data.train_questions"
        )
    return {split: _as_wanted(questions, want) for split, questions in sets.items()}  # type: ignore[return-value]


def open_for(source: Source, *, want: Holds, name: str = "", on_error: OnError = "raise") -> AnySet:
    """Open a single set as a task reads it; DataError, before reading, for a source that does not suit it."""
    require(source, want)
    return _as_wanted(open_source(source, name=name, on_error=on_error), want)


def _as_wanted(questions: AnySet, want: Holds) -> AnySet:
    return (
        sentence_selection(questions)
        if want == "candidates" and isinstance(questions, QuestionSet)
        else questions
    )


def _check_sources(data: Data, want: Holds) -> None:
    """Check, before anything is read, that the sources suit the task and that questions can be held out."""
    require(data.train, want, "data.train")
    held = holds(data.train)
    for split, source in (("calibration", data.calibration), ("dev", data.dev if data.open_dev else None)):
        if source is not None and holds(source) != held:
            raise DataError(
                f"data.{split}: {source} is not a split of {_DESCRIPTION[held]}, as data.train is"
            )
    if data.made_up_share and want != "passages":
        raise ConfigError("data.made_up_share: only questions about passages are made up; set it to 0")
    if data.calibration is not None or held == "passages":
        return
    if held == "candidates" and (data.hold_out_articles or data.hold_out_share):
        raise ConfigError(
            "data.calibration: InsuranceQA has no articles to hold out; name its validation split"
            " (insuranceqa:FOLDER:dev)"
        )
    if held == "classes" and data.hold_out_articles and not data.hold_out_share:
        raise ConfigError(
            "data.hold_out_articles: questions with classes have no articles; set data.hold_out_share"
        )


def _open(source: Source, split: str, data: Data) -> AnySet:
    questions = open_source(source, name=split, on_error=data.on_error)
    for problem in questions.skipped if isinstance(questions, QuestionSet) else ():
        log.warning("left out: %s", problem)
    return questions


def _held_out(train: AnySet, data: Data) -> dict[str, AnySet]:
    """Train and calibration after holding questions out of ``train``; empty where none are held out."""
    share, seed = data.hold_out_share, data.split_seed
    if isinstance(train, SelectionSet):
        return dict(hold_out_questions(train, share, seed)) if share else {}
    if data.hold_out_articles:
        rest, held = hold_out(train, data.hold_out_articles, seed)
        return {"train": rest, "calibration": held}
    return dict(by_article(train, {"train": 1 - share, "calibration": share}, seed)) if share else {}


def _sample(train: AnySet, count: int, seed: int) -> AnySet:
    """At most ``count`` questions: whole articles of a set with articles, else a seeded sample."""
    if isinstance(train, QuestionSet):
        return subset(train, count, seed)
    if count >= len(train):
        return train
    drawn = np.random.default_rng(seed).choice(len(train), count, replace=False)
    questions = [train.questions[row] for row in sorted(drawn.tolist())]
    return selection_set(train.name, train.answers, questions, train.left_out, main=train.main)


def _with_made_up(train: AnySet, data: Data) -> QuestionSet:
    assert isinstance(train, QuestionSet)  # by _check_sources
    more = with_made_up(train, data.made_up_share, data.split_seed, data.made_up_kinds or SWAPS)
    count = len(more) - len(train)
    wanted = round(data.made_up_share * sum(example.answerable for example in train.examples))
    (log.info if count == wanted else log.warning)(
        "made up %d of %d unanswerable training questions", count, wanted
    )
    return more


def closed_titles(data: Data) -> dict[str, frozenset[str]]:
    """The titles of a dev set that the config keeps closed, by its name; empty where it has none, or none is
    on disk."""
    if data.dev is None or data.open_dev or holds(data.dev) != "passages":
        return {}
    if not available(data.dev):
        log.info("data.dev: not on disk; articles shared with training are only checked when it is scored")
        return {}
    return {"dev (closed)": open_passages(data.dev, name="dev", on_error=data.on_error).titles}

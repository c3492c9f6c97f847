"""The sets of a run, train, calibration and dev, as its config names them, whatever they are made of."""

from __future__ import annotations

import logging
from typing import Literal, overload

import numpy as np

from qa_arch.config.schema import Data, Source
from qa_arch.data.formats import Holds, OnError
from qa_arch.data.selection_sets import selection_set, sentence_selection
from qa_arch.data.sources import available, holds, open_passages, open_source, require
from qa_arch.data.splits import by_article, hold_out, hold_out_questions, require_disjoint, subset
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import QuestionSet, SelectionSet

log = logging.getLogger(__name__)
AnySet = QuestionSet | SelectionSet
_CALLED: dict[Holds, str] = {
    "passages": "a data set with passages",
    "candidates": "InsuranceQA",
    "classes": "questions with classes",
}


@overload
def load_splits(data: Data, *, want: Literal["passages"]) -> dict[str, QuestionSet]: ...
@overload
def load_splits(data: Data, *, want: Literal["candidates", "classes"]) -> dict[str, SelectionSet]: ...
def load_splits(data: Data, *, want: Holds) -> dict[str, QuestionSet] | dict[str, SelectionSet]:
    """Train, calibration and dev, each where there is one, in this order.

    Calibration is held out of train where none is named, and train sampled where the config asks for that.
    Of a dev set that stays closed nothing but its articles' titles is looked at, so that no run trains for
    hours which could never be scored. ``want`` says what the task reads: with ``candidates``, passages are
    split by article first and then become candidate sentences.

    Raises DataError where a source serves the task not or two sets share an article, ConfigError where
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
    if data.dev is not None and data.open_dev:
        sets["dev"] = _open(data.dev, "dev", data)
    require_disjoint(**{split: questions.titles for split, questions in sets.items()}, **_closed_titles(data))
    if not len(sets["train"]):
        raise DataError(
            "data.train: no question is left to train on; hold out less or raise data.train_questions"
        )
    return {split: _as_wanted(questions, want) for split, questions in sets.items()}  # type: ignore[return-value]


def open_for(source: Source, *, want: Holds, name: str = "", on_error: OnError = "raise") -> AnySet:
    """A single set as a task reads it; DataError, before reading, for a source that cannot serve it."""
    require(source, want)
    return _as_wanted(open_source(source, name=name, on_error=on_error), want)


def _as_wanted(questions: AnySet, want: Holds) -> AnySet:
    return (
        sentence_selection(questions)
        if want == "candidates" and isinstance(questions, QuestionSet)
        else questions
    )


def _check_sources(data: Data, want: Holds) -> None:
    """Before anything is read: all sources serve the task, and what is to be held out can be."""
    require(data.train, want, "data.train")
    held = holds(data.train)
    for split, source in (("calibration", data.calibration), ("dev", data.dev if data.open_dev else None)):
        if source is not None and holds(source) != held:
            raise DataError(f"data.{split}: {source} is no split of {_CALLED[held]}, as data.train is")
    if data.calibration is not None or held == "passages":
        return
    if held == "candidates" and (data.hold_out_articles or data.hold_out_share):
        raise ConfigError(
            "data.calibration: InsuranceQA has no articles to hold questions out by; name its own"
            " validation split (insuranceqa:FOLDER:dev)"
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
    """Train without what is held out of it, and that as calibration; nothing where nothing is to be."""
    share, seed = data.hold_out_share, data.split_seed
    if isinstance(train, SelectionSet):
        return dict(hold_out_questions(train, share, seed)) if share else {}
    if data.hold_out_articles:
        rest, held = hold_out(train, data.hold_out_articles, seed)
        return {"train": rest, "calibration": held}
    return dict(by_article(train, {"train": 1 - share, "calibration": share}, seed)) if share else {}


def _sample(train: AnySet, count: int, seed: int) -> AnySet:
    """At most ``count`` questions: whole articles where there are any, else a seeded sample."""
    if isinstance(train, QuestionSet):
        return subset(train, count, seed)
    if count >= len(train):
        return train
    drawn = np.random.default_rng(seed).choice(len(train), count, replace=False)
    questions = [train.questions[row] for row in sorted(drawn.tolist())]
    return selection_set(train.name, train.answers, questions, train.left_out, main=train.main)


def _closed_titles(data: Data) -> dict[str, frozenset[str]]:
    if data.dev is None or data.open_dev or holds(data.dev) != "passages":
        return {}
    if not available(data.dev):
        log.info("data.dev: not on disk; what it shares with training shows when it is scored")
        return {}
    return {"dev (closed)": open_passages(data.dev, name="dev", on_error=data.on_error).titles}

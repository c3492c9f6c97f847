"""Synthetic data: a seeded generator of questions in SQuAD 2.0 form about invented entities.

Level 1: question and passage share the relation word.
Level 2: the question paraphrases the relation.
Level 3: two subjects with the same relations, so that entity and relation must be matched, and all
six kinds of unanswerable question. The level is part of the question id (``syn-7-dev-00012-L1-...``).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic.names import SPLITS, Names, Split
from qa_arch.data.synthetic.passages import single_subject, two_subjects
from qa_arch.data.synthetic.questions import KINDS, GeneratedQuestion, QuestionMaker
from qa_arch.errors import ConfigError
from qa_arch.types.text import Example, QuestionSet

__all__ = ["DEMO_LEVELS", "KINDS", "LEVELS", "SPLITS", "Split", "demo_sets", "generate", "named"]

LEVELS = (1, 2, 3)
DEMO_LEVELS: Mapping[int, float] = {1: 0.8, 2: 0.2}
DEMO_SIZES: Mapping[str, int] = {"train": 1800, "calibration": 40, "dev": 40}
"""Articles."""
DEMO_SEED = 20
"""Differs from the seed that the generator was tuned on (7), so that the demo's dev set was unseen."""
_PARAGRAPHS = 3
_ANSWERABLE, _UNANSWERABLE = 3, 2
"""Questions per paragraph: 40% are unanswerable."""


def generate(
    articles: int,
    seed: int,
    levels: Mapping[int, float] | int = 1,
    split: Split = "train",
) -> QuestionSet:
    """``articles`` articles of 3 paragraphs with up to 5 questions each; the same arguments, the same set.

    ``levels`` is a level or the share of paragraphs of each level. No name word of one ``split``
    occurs in another, whatever the seeds. Raises ConfigError for counts or levels out of range.
    """
    shares = {levels: 1.0} if isinstance(levels, int) else dict(levels)
    if articles < 1:
        raise ConfigError(f"articles={articles}: at least 1 is needed")
    if not shares or not set(shares) <= set(LEVELS) or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        raise ConfigError(f"levels={levels}: give 1, 2 or 3, or positive shares of them")
    rng = Random(f"{seed}/{split}")
    names = Names(rng, split)
    examples: list[Example] = []
    titles: set[str] = set()
    for article in range(articles):
        examples += _article(rng, names, shares, f"syn-{seed}-{split}-{article:05d}", titles)
    return question_set(f"synthetic-{split}", examples, "2.0")


def demo_sets(
    train: int = DEMO_SIZES["train"],
    calibration: int = DEMO_SIZES["calibration"],
    dev: int = DEMO_SIZES["dev"],
    seed: int = DEMO_SEED,
    levels: Mapping[int, float] | int = DEMO_LEVELS,
) -> tuple[QuestionSet, QuestionSet, QuestionSet]:
    """The demo's train, calibration and dev sets (sizes in articles), of equal difficulty, no name shared."""
    return (
        generate(train, seed, levels, "train"),
        generate(calibration, seed, levels, "calibration"),
        generate(dev, seed, levels, "dev"),
    )


def named(which: str) -> QuestionSet:
    """Set of a setting: ``dev`` is that of the demo, ``dev:L3`` one of the same size at level 3."""
    split, _, level = which.partition(":")
    levels = {"": DEMO_LEVELS, **{f"L{n}": n for n in LEVELS}}
    if split not in DEMO_SIZES or level not in levels:
        raise ConfigError(
            f"synthetic:{which} is unknown: write train, calibration or dev, and :L1 to :L3 after it"
        )
    return generate(DEMO_SIZES[split], DEMO_SEED, levels[level], split)  # type: ignore[arg-type]


def _article(
    rng: Random, names: Names, shares: Mapping[int, float], prefix: str, titles: set[str]
) -> list[Example]:
    """The questions of one article, titled after its first subject; ``titles`` holds the used ones."""
    examples: list[Example] = []
    title = ""
    for paragraph in range(_PARAGRAPHS):
        level = rng.choices(tuple(shares), tuple(shares.values()))[0]
        write = two_subjects if level == 3 else single_subject
        passage = write(rng, names)
        while not title and passage.subjects[0].name in titles:
            passage = write(rng, names)
        title = title or passage.subjects[0].name
        maker = QuestionMaker(rng, passage, level)
        questions = maker.answerable(_ANSWERABLE) + maker.unanswerable(_UNANSWERABLE)
        rng.shuffle(questions)
        for number, question in enumerate(questions):
            id_ = f"{prefix}-L{level}-{paragraph}{number}"
            examples.append(_example(id_, title, passage.context, question))
    titles.add(title)
    return examples


def _example(id_: str, title: str, context: str, question: GeneratedQuestion) -> Example:
    golds = question.fact.golds if question.fact else ()
    answers, plausible = ((), golds) if question.kind else (golds, ())
    return Example(id_, question.text, context, title, answers, plausible, question.kind)

"""Rebuild the data files of the experiments on real questions from public files.

    python experiments/real_part/build.py --train-1.1 train-v1.1.json --train-2.0 train-v2.0.json \
        --dev-2.0 dev-v2.0.json --out data/squad [--unansq UnAnsQ/QG]

Four files need only SQuAD; ``train-v2.0.balanced`` also needs the pairs of UnAnsQ (``unansq.py``). Then set
``QA_ARCH_DATA`` to ``data/``. Nothing is written unless all files have the counts of ``EXPECTED``; the
fingerprint shows whether they are identical, question by question and in order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import unansq

from qa_arch.data.question_sets import question_set
from qa_arch.data.splits import require_disjoint
from qa_arch.data.squad import read, write
from qa_arch.errors import DataError, QaArchError
from qa_arch.files import write_json
from qa_arch.types import Example, QuestionSet

TRAIN_ARTICLES = 44
"""Number of leading articles of train-v1.1 used, with all questions."""
NEGATIVE_ARTICLES = 11
"""Number of leading articles of train-v2.0 whose unanswerable questions are used."""

TRAIN = (
    "Southern_California",
    "Sky_(United_Kingdom)",
    "Victoria_(Australia)",
    "Amazon_rainforest",
    "Ctenophora",
    "Fresno,_California",
    "Black_Death",
    "Geology",
    "Pharmacy",
    "Construction",
    "Private_school",
    "Jacksonville,_Florida",
    "University_of_Chicago",
    "Intergovernmental_Panel_on_Climate_Change",
    "Prime_number",
)
"""Articles of dev-v2.0 in the training set."""
CALIBRATION = ("Oxygen", "Civil_disobedience", "Economic_inequality", "Rhine")
FOLD_A = (
    "Normans",
    "Computational_complexity_theory",
    "Huguenot",
    "Steam_engine",
    "1973_oil_crisis",
    "European_Union_law",
    "Packet_switching",
    "Harvard_University",
    "Yuan_dynasty",
    "Immune_system",
    "Scottish_Parliament",
    "Islamism",
    "Imperialism",
    "Warsaw",
    "French_and_Indian_War",
    "Force",
)


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected counts and fingerprint of a rebuilt file."""

    questions: int
    unanswerable: int
    articles: int
    fingerprint: str
    """First 16 digits."""


EXPECTED = {
    "train-v1.1.part": Expected(11877, 0, 44, "98910d817b58ca70"),
    "train-v2.0.part": Expected(16265, 2395, 59, "44416ab7a75d4f36"),
    "calibration-v2.0": Expected(1755, 730, 4, "32729119cb791591"),
    "dev-v2.0.fold_a": Expected(6078, 3168, 16, "7cbedca64dca82f8"),
    unansq.NAME: Expected(10638, 5276, 39, "a69f13b245d84b4c"),
}


def build(train_1: QuestionSet, train_2: QuestionSet, dev_2: QuestionSet) -> dict[str, QuestionSet]:
    """File name -> set, for the four files; DataError if an article is missing or in two splits."""
    dev_2 = without_plausible(dev_2)
    answerable = first_articles(train_1, TRAIN_ARTICLES)
    train = with_unanswerable(answerable, first_articles(train_2, NEGATIVE_ARTICLES))
    examples = (*train.examples, *articles(dev_2, TRAIN).examples)
    sets = {
        "train-v1.1.part": answerable,
        "train-v2.0.part": question_set("train-v2.0.part", examples, "2.0"),
        "calibration-v2.0": articles(dev_2, CALIBRATION),
        "dev-v2.0.fold_a": articles(dev_2, FOLD_A),
    }
    require_disjoint(
        **{name: sets[name] for name in ("train-v2.0.part", "calibration-v2.0", "dev-v2.0.fold_a")}
    )
    return sets


def first_articles(questions: QuestionSet, count: int) -> QuestionSet:
    """Questions of the first ``count`` articles, in file order."""
    titles = list(dict.fromkeys(example.title for example in questions.examples))
    if len(titles) < count:
        raise DataError(f"{questions.name}: has {len(titles)} articles, expected {count}; is it complete?")
    return articles(questions, titles[:count])


def articles(questions: QuestionSet, titles: Collection[str]) -> QuestionSet:
    """Questions of the articles ``titles`` in file order; DataError for a missing article."""
    if missing := [title for title in titles if title not in questions.titles]:
        raise DataError(f"{questions.name}: has no article {', '.join(missing)}; is it the right file?")
    chosen = (example for example in questions.examples if example.title in titles)
    return question_set(questions.name, chosen, questions.protocol)


def with_unanswerable(answerable: QuestionSet, other: QuestionSet) -> QuestionSet:
    """``answerable`` with the unanswerable questions of ``other`` appended to their passages."""
    waiting: dict[tuple[str, str], list[Example]] = {}
    for example in other.examples:
        if not example.answerable:
            waiting.setdefault(_passage(example), []).append(example)
    examples: list[Example] = []
    for passage, group in groupby(answerable.examples, key=_passage):
        examples += group
        context = examples[-1].context  # the same string object for all questions of a passage
        examples += (replace(example, context=context) for example in waiting.pop(passage, ()))
    if waiting:
        title, _ = next(iter(waiting))
        raise DataError(
            f"{other.name}: {len(waiting)} passages, the first of {title}, are not in {answerable.name};"
            " are these the official files?"
        )
    return question_set(answerable.name, examples, "2.0")


def _passage(example: Example) -> tuple[str, str]:
    return example.title, example.context


def without_plausible(questions: QuestionSet) -> QuestionSet:
    """Drop plausible answers, which this experiment does not use."""
    examples = (replace(example, plausible=()) for example in questions.examples)
    return question_set(questions.name, examples, questions.protocol)


def differences(name: str, questions: QuestionSet, expected: Expected) -> list[str]:
    """One message per count that differs from the expected one."""
    counts = {
        "questions": (len(questions), expected.questions),
        "unanswerable": (unanswerable(questions), expected.unanswerable),
        "articles": (len(questions.titles), expected.articles),
    }
    return [
        f"{name}: {actual:,} {what}, expected {count:,}"
        for what, (actual, count) in counts.items()
        if actual != count
    ]


def unanswerable(questions: QuestionSet) -> int:
    """Number of unanswerable questions."""
    return sum(not example.answerable for example in questions.examples)


def describe(name: str, questions: QuestionSet, expected: Expected) -> str:
    """One line on a written file: counts, and whether its fingerprint is the expected one."""
    same = questions.fingerprint.startswith(expected.fingerprint)
    return (
        f"{name}.json: {len(questions):,} questions, {unanswerable(questions):,} unanswerable,"
        f" {len(questions.titles)} articles, {'identical to ours' if same else 'text differs from ours'}"
        f" ({questions.fingerprint[:16]})"
    )


def main(arguments: list[str] | None = None) -> int:
    """Rebuild the files; exit code 4, writing nothing, if counts differ or a file is unusable."""
    parser = argparse.ArgumentParser(description="Rebuild the data of the experiments on real questions.")
    for name in ("train-1.1", "train-2.0", "dev-2.0"):
        parser.add_argument(f"--{name}", dest=name, required=True, metavar="F", help="official file")
    parser.add_argument("--unansq", type=Path, metavar="DIR", help="UnAnsQ's folder QG, for the balanced set")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the files")
    args = vars(parser.parse_args(arguments))
    try:
        sets = build(read(args["train-1.1"]), read(args["train-2.0"]), read(args["dev-2.0"]))
        if args["unansq"]:
            sets[unansq.NAME] = unansq.balanced(sets["train-v2.0.part"], args["unansq"])
        if wrong := [line for name in sets for line in differences(name, sets[name], EXPECTED[name])]:
            raise DataError("; ".join(wrong) + "; nothing was written")
        for name, questions in sets.items():
            write_json(args["out"] / f"{name}.json", write(questions), indent=None)
            print(describe(name, questions, EXPECTED[name]))
    except QaArchError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

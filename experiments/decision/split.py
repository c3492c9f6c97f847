"""Swapped split: test on 15 articles that were previously only trained on, train on most of fold A.

    python experiments/decision/split.py [--rejoin]

Reads the files of experiments/real_part below QA_ARCH_DATA and writes the folder swapped beside them. Test:
the articles of the official dev set that are in neither fold A nor calibration. Calibration also gets every
fourth article of fold A. Train: the other articles of fold A, and the balanced set without the articles of
the test. With ``--rejoin``, in the folder swapped_rejoined, "does n't" in training questions, as UnAnsQ's
pairs have it, is "doesn't": 193 unanswerable and 8 answerable questions have the former, which twins learn.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from qa_arch.data.question_sets import question_set
from qa_arch.data.splits import require_disjoint
from qa_arch.data.squad import read, write
from qa_arch.files import data_folder, write_json
from qa_arch.types import QuestionSet

EVERY = 4
"""Every n-th article of fold A, in file order, goes to calibration."""


def swapped(
    official: QuestionSet, fold_a: QuestionSet, calibration: QuestionSet, balanced: QuestionSet
) -> dict[str, QuestionSet]:
    """File name -> set; DataError if two share an article."""
    titles = list(dict.fromkeys(example.title for example in fold_a.examples))
    chosen = set(titles[EVERY - 1 :: EVERY])
    test = official.titles - fold_a.titles - calibration.titles
    parts = {
        "train": [
            *(example for example in fold_a.examples if example.title not in chosen),
            *(example for example in balanced.examples if example.title not in test),
        ],
        "calibration": [
            *calibration.examples,
            *(example for example in fold_a.examples if example.title in chosen),
        ],
        "test": [example for example in official.examples if example.title in test],
    }
    sets = {name: question_set(f"{name}-v2.0.swapped", examples, "2.0") for name, examples in parts.items()}
    require_disjoint(**sets)
    return sets


def rejoined(questions: QuestionSet) -> QuestionSet:
    """The set with contractions of "not" in its questions as one word."""
    examples = [replace(e, question=re.sub(r" n't\b", "n't", e.question)) for e in questions.examples]
    return question_set(f"{questions.name}.rejoined", examples, "2.0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    data = Path(data_folder())
    parser.add_argument(
        "--rejoin", action="store_true", help='write "does n\'t" of training questions as one word'
    )
    out = "folder to write to (default: swapped or swapped_rejoined, beside the files read)"
    parser.add_argument("--out", type=Path, help=out)
    folder = data / "squad"
    names = ("dev-v2.0", "dev-v2.0.fold_a", "calibration-v2.0", "train-v2.0.balanced")
    options = parser.parse_args()
    out = options.out or data / ("swapped_rejoined" if options.rejoin else "swapped")
    for name, questions in swapped(*(read(folder / f"{name}.json") for name in names)).items():
        if options.rejoin and name == "train":
            questions = rejoined(questions)
        write_json(out / f"{name}-v2.0.json", write(questions))
        unanswerable = sum(not example.answerable for example in questions.examples)
        articles, digest = len(questions.titles), questions.fingerprint[:16]
        print(
            f"{name}: {len(questions)} questions, {unanswerable} unanswerable, {articles} articles, {digest}"
        )


if __name__ == "__main__":
    main()

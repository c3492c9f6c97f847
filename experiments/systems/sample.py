"""Sample the sets of this experiment from other sets.

    python experiments/systems/sample.py --out data/systems

Reads the files of experiments/answer, SQuADShifts and XQuAD below QA_ARCH_DATA. With seed 13, draws 4,000
training questions, 150 questions of each set for the prompted model, and 600 answerable questions of dev as a
SQuAD 1.1 set; removes from XQuAD the articles that the models were trained or calibrated on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import read, write
from qa_arch.files import data_folder, write_json
from qa_arch.types import QuestionSet

SEED, TRAINED, QUESTIONS, ANSWERABLE = 13, 4000, 150, 600
TRANSLATED = {"german": "xquad/xquad.de", "spanish": "xquad/xquad.es"}
SAMPLED = {
    "dev": "squad/dev-v2.0.fold_a",
    "calibration": "squad/calibration-v2.0",
    "amazon": "shifts/amazon_reviews_v1.0",
}


def sample(questions: QuestionSet, name: str, size: int) -> QuestionSet:
    """Draw ``size`` questions of the set, in file order."""
    rows = sorted(Random(SEED).sample(range(len(questions)), size))
    return question_set(name, [questions.examples[row] for row in rows], questions.protocol)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder to write to")
    out, folder = parser.parse_args().out, Path(data_folder())
    sets = {name: read(folder / f"{file}.json") for name, file in SAMPLED.items()}
    train = read(folder / "squad/train-v2.0.balanced.json")
    samples = {"train": sample(train, "train", TRAINED)}
    for name, questions in sets.items():
        samples[f"{name}_{QUESTIONS}"] = sample(questions, f"{name}_{QUESTIONS}", QUESTIONS)
    answerable = [example for example in sets["dev"].examples if example.answerable]
    answerable_set = question_set("dev_answerable", answerable, "1.1")
    samples["dev_answerable"] = sample(answerable_set, "dev_answerable", ANSWERABLE)
    seen = train.titles | sets["calibration"].titles
    for name, file in TRANSLATED.items():
        unseen = [example for example in read(folder / f"{file}.json").examples if example.title not in seen]
        samples[name] = question_set(name, unseen, "1.1")
    for name, questions in samples.items():
        write_json(out / f"{name}.json", write(questions))
        unanswerable = sum(not example.answerable for example in questions.examples)
        print(f"{name}: {len(questions)} questions, {unanswerable} unanswerable")


if __name__ == "__main__":
    main()

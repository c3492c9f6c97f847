"""Write other test sets as SQuAD JSON: questions with typing errors, and SubjQA's questions about reviews.

    python experiments/systems/other_sets.py --out data/systems

Reads squad/dev-v2.0.fold_a.json and subjqa/*.test.csv below QA_ARCH_DATA, for the suites typos.yaml and
reviews.yaml.

Typing errors are those of Pruthi et al. 2019 (section 4): a word of four letters or more is misspelt between
its first and its last letter: two letters are swapped, or one is dropped, doubled or replaced by a
neighbouring key (QWERTY). The error depends on the question's id; passages, answers and ids stay the same.

In SubjQA (Bjerva et al. 2020) every row is a question, as in its published counts: judgements of several
annotators are numbered after the id of question and review. A row whose span contains ANSWERNOTFOUND is
unanswerable; the files append that word to every review, but it is not part of the passage.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import read, write
from qa_arch.errors import DataError
from qa_arch.files import data_folder, write_json
from qa_arch.types import Example, Gold, QuestionSet

SEED = 13
_WORD = re.compile(r"[^\W\d_]{4,}")
_KEYS = {
    key: (row, column)
    for row, keys in enumerate(("qwertyuiop", "asdfghjkl", "zxcvbnm"))
    for column, key in enumerate(keys)
}
_NEXT = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
"""(row, column) offsets of adjacent keys: each row starts half a key to the right of the one above."""
_NEIGHBOURS = {
    key: [other for other, (r, c) in _KEYS.items() if (r - row, c - column) in _NEXT]
    for key, (row, column) in _KEYS.items()
}
_NOTHING = "ANSWERNOTFOUND"


def with_typos(questions: QuestionSet) -> QuestionSet:
    """A typing error in every question that has a word of four letters."""
    examples = []
    for example in questions.examples:
        draw = int.from_bytes(hashlib.sha256(f"{SEED}:{example.id}".encode()).digest())
        examples.append(replace(example, question=misspell(example.question, draw)))
    return question_set("typos", examples, questions.protocol)


def misspell(question: str, draw: int) -> str:
    """Add a typo selected by the large number ``draw``; no change without a word of four letters."""
    words = list(_WORD.finditer(question))
    if not words:
        return question
    draw, chosen = divmod(draw, len(words))
    match = words[chosen]
    kinds = [variants for variants in _typos(match[0]) if variants]
    draw, chosen = divmod(draw, len(kinds))
    word = kinds[chosen][draw % len(kinds[chosen])]
    return f"{question[: match.start()]}{word}{question[match.end() :]}"


def _typos(word: str) -> tuple[list[str], ...]:
    """Misspellings by kind: swapped, dropped, doubled, replaced."""
    inner = range(1, len(word) - 1)
    return (
        [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in inner[:-1] if word[i] != word[i + 1]],
        [word[:i] + word[i + 1 :] for i in inner],
        [word[:i] + word[i] + word[i:] for i in inner],
        [
            word[:i] + (key.upper() if word[i].isupper() else key) + word[i + 1 :]
            for i in inner
            for key in _NEIGHBOURS.get(word[i].lower(), ())
        ],
    )


def subjqa(path: Path) -> QuestionSet:
    """The questions of a CSV file of SubjQA; articles are the reviewed items."""
    seen: Counter[str] = Counter()
    examples = []
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            identity, context = row["q_review_id"], row["review"].removesuffix(_NOTHING).rstrip()
            seen[identity] += 1
            answers: tuple[Gold, ...] = ()
            if _NOTHING not in row["human_ans_spans"]:
                start, end = map(int, re.findall(r"\d+", row["human_ans_indices"])[:2])
                if not context[start:end].strip():
                    raise DataError(
                        f"{path}: row {line}: human_ans_indices: holds no text; download the file again"
                    )
                answers = (Gold(context[start:end], start),)
            id_ = f"{identity}-{seen[identity]}"
            examples.append(Example(id_, row["question"], context, row["item_id"], answers))
    return question_set(path.stem, examples, "2.0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder to write to")
    out, folder = parser.parse_args().out, Path(data_folder())
    sets = [with_typos(read(folder / "squad/dev-v2.0.fold_a.json"))]
    sets += map(subjqa, sorted(folder.glob("subjqa/*.test.csv")))
    for questions in sets:
        path = write_json(out / f"{questions.name.removesuffix('.test')}.json", write(questions))
        unanswerable = sum(not example.answerable for example in questions.examples)
        print(f"{path}: {len(questions)} questions, {unanswerable} unanswerable")


if __name__ == "__main__":
    main()

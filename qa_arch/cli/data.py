"""``qa-arch data``: write data sets as SQuAD JSON."""

from __future__ import annotations

import argparse
from collections import Counter

from qa_arch.config.files import write_json
from qa_arch.data.squad import write
from qa_arch.data.synthetic import LEVELS, SPLITS, generate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sets = parser.add_subparsers(dest="set", metavar="SET", required=True)
    synthetic = sets.add_parser("synthetic", help="generated questions about invented things")
    synthetic.add_argument(
        "--articles", type=int, required=True, metavar="N", help="15 questions each, or just under"
    )
    synthetic.add_argument(
        "--seed", type=int, default=0, metavar="S", help="same seed, same set (default: 0)"
    )
    synthetic.add_argument(
        "--level",
        type=int,
        choices=LEVELS,
        default=1,
        help="1: relation word shared, 2: paraphrased, 3: entity and relation to join (default: 1)",
    )
    synthetic.add_argument(
        "--split",
        choices=SPLITS,
        default="train",
        help="names of one split occur in no other (default: train)",
    )
    synthetic.add_argument("--out", required=True, metavar="F", help="the JSON file to write")


def run(args: argparse.Namespace) -> int:
    """Generate the set, write it atomically, say what it holds."""
    questions = generate(args.articles, args.seed, args.level, args.split)
    path = write_json(args.out, write(questions), indent=None)
    kinds = Counter(example.kind for example in questions.examples if example.kind)
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    print(f"{path}: {len(questions)} questions in {args.articles} articles; unanswerable: {listed}")
    return 0

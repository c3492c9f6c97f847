"""``qa-arch data``: write generated sets, or parts of a set, as SQuAD JSON."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from qa_arch.cli.runs import add_on_error, add_questions
from qa_arch.config.files import json_text, write_atomic, write_json
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import by_article
from qa_arch.data.squad import write
from qa_arch.data.synthetic import LEVELS, SPLITS, generate
from qa_arch.errors import ConfigError

PARTS = ("train=0.64", "calibration=0.16", "dev=0.2")
"""80/20 by article, with a fifth of the 80 for calibration."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sets = parser.add_subparsers(dest="set", metavar="SET", required=True)
    _add_synthetic(sets.add_parser("synthetic", help="generated questions about invented things"))
    _add_split(sets.add_parser("split", help="parts of a set that share no article"))


def _add_synthetic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--articles", type=int, required=True, metavar="N", help="15 questions each, or just under"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same set (default: 0)")
    parser.add_argument(
        "--level",
        type=int,
        choices=LEVELS,
        default=1,
        help="1: relation word shared, 2: paraphrased, 3: entity and relation to join (default: 1)",
    )
    parser.add_argument(
        "--split",
        choices=SPLITS,
        default="train",
        help="names of one split occur in no other (default: train)",
    )
    parser.add_argument("--out", required=True, metavar="F", help="the JSON file to write")


def _add_split(parser: argparse.ArgumentParser) -> None:
    add_questions(parser)
    parser.add_argument(
        "--parts",
        nargs="+",
        default=list(PARTS),
        metavar="NAME=SHARE",
        help=f"shares of the questions, which sum to 1 (default: {' '.join(PARTS)})",
    )
    parser.add_argument("--seed", type=int, default=13, metavar="S", help="which articles (default: 13)")
    parser.add_argument("--out", required=True, metavar="DIR", help="where NAME.json of each part goes")
    add_on_error(parser)


def run(args: argparse.Namespace) -> int:
    """Write the sets as JSON, atomically, and print their sizes."""
    return _synthetic(args) if args.set == "synthetic" else _split(args)


def _synthetic(args: argparse.Namespace) -> int:
    questions = generate(args.articles, args.seed, args.level, args.split)
    path = write_json(args.out, write(questions), indent=None)
    kinds = Counter(example.kind for example in questions.examples if example.kind)
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    print(f"{path}: {len(questions)} questions in {args.articles} articles; unanswerable: {listed}")
    return 0


def _split(args: argparse.Namespace) -> int:
    shares = _shares(args.parts)
    questions = open_passages(args.data, on_error=args.on_error)
    for problem in questions.skipped:
        print(f"left out: {problem}", file=sys.stderr)
    parts = by_article(questions, shares, args.seed)
    texts = {Path(args.out) / f"{name}.json": json_text(write(part), None) for name, part in parts.items()}
    for path, text in texts.items():
        _require_free(path, text)
    for (path, text), part in zip(texts.items(), parts.values(), strict=True):
        write_atomic(path, text)
        unanswerable = sum(not example.answerable for example in part.examples)
        articles = f"{len(part.titles)} articles"
        print(f"{path}: {len(part)} questions in {articles}, {unanswerable} of them unanswerable")
    return 0


def _require_free(path: Path, text: str) -> None:
    """ConfigError for a file of other content, which may be the input; a part of a killed split is equal."""
    if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
        raise ConfigError(f"{path}: exists and was not changed; choose another --out")


def _shares(parts: Sequence[str]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in parts:
        match = re.fullmatch(r"([\w-]+)=(\d*\.?\d+)", part)
        if match is None or match[1] in shares:
            raise ConfigError(f"--parts {part}: write NAME=SHARE, such as dev=0.2, with different names")
        shares[match[1]] = float(match[2])
    return shares

"""``qa-arch data`` writes question sets as SQuAD JSON; ``qa-arch stats`` describes them, a column per set."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import add_on_error, add_questions
from qa_arch.config.files import json_text, write_atomic, write_json
from qa_arch.data.question_sets import Lengths, Statistics, statistics
from qa_arch.data.sources import counts, holds, open_passages, usage
from qa_arch.data.splits import by_article
from qa_arch.data.squad import write
from qa_arch.data.synthetic import LEVELS, SPLITS, generate
from qa_arch.errors import ConfigError
from qa_arch.system import terminal
from qa_arch.types.text import QuestionSet

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


_COUNTS = ("examples", "negatives", "articles", "articles_with_negatives", "paragraphs")
_LENGTHS = ("context_words", "question_words", "answer_words")


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="SOURCE",
        help="a set per source: " + "; or ".join(filter(None, (usage(), usage("candidates", "classes")))),
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: an object, or for several sets an object by source"
    )
    add_on_error(parser)
    parser.add_argument(
        "--encoder",
        metavar="NAME",
        help="also score the gold answers widened to tokens of this encoder (a hub id, a folder or minilm):"
        " the best that a model on it can reach",
    )


def run_stats(args: argparse.Namespace) -> int:
    """Print the statistics of the sets; faulty records that were left out are listed on stderr."""
    if without := [source for source in args.data if holds(source) != "passages"]:
        if args.encoder:
            raise ConfigError(f"--encoder: {without[0]} has no passages to tokenise")
        return _count_questions(args.data, without, as_json=args.json)
    figures: dict[str, Statistics] = {}
    ceilings: dict[str, dict[str, Any]] = {}
    for source in args.data:
        questions = open_passages(source, on_error=args.on_error)
        figures[source] = statistics(questions)
        for problem in questions.skipped:
            print(f"left out: {problem}", file=sys.stderr)
        if args.encoder:
            ceilings[source] = {"ceiling": _ceiling(questions, args.encoder)}
    if args.json:
        _print_json(
            {source: {**counted.as_dict(), **ceilings.get(source, {})} for source, counted in figures.items()}
        )
    else:
        _print_table(figures, [entry["ceiling"] for entry in ceilings.values()])
    return 0


def _ceiling(questions: QuestionSet, encoder: str) -> dict[str, Any]:
    """Scores of gold answers widened to whole tokens, over the answerable questions."""
    from qa_arch.features.windows import ceiling, prepare
    from qa_arch.models.build import load_tokenizer

    # The windows of conf/features/windows.yaml; segment ids do not matter here.
    reached = ceiling(questions, prepare(questions, load_tokenizer(encoder), segments=False))
    inexact, lost = len(reached.inexact), len(reached.lost)
    return {
        "encoder": encoder,
        "exact": reached.exact,
        "f1": reached.f1,
        "inexact": inexact,
        "in_no_window": lost,
    }


def _count_questions(sources: Sequence[str], without: Sequence[str], *, as_json: bool) -> int:
    """Print the counts of sets ``without`` passages, whose table has other columns."""
    if other := next((source for source in sources if source not in without), None):
        raise ConfigError(f"--data: {other} has passages and {without[0]} has none; count it separately")
    counted = {source: counts(source) for source in sources}
    if as_json:
        _print_json(counted)
        return 0
    from qa_arch.results.tables import Table, number, print_table, text

    rows = [{"set": source.rpartition(":")[2].rpartition("/")[2], **row} for source, row in counted.items()]
    figures = [number(key, key.replace("_", " ")) for key in next(iter(counted.values()))]
    print_table(Table("Questions without passages", [text("set", "set"), *figures], rows))
    return 0


def _print_json(by_source: dict[str, Any]) -> None:
    """Print an object per set by its source, or the object itself for a single set."""
    printed = by_source if len(by_source) > 1 else by_source.popitem()[1]
    print(json.dumps(printed, indent=2, ensure_ascii=False))


def _print_table(figures: Mapping[str, Statistics], ceilings: Sequence[Mapping[str, Any]] = ()) -> None:
    from rich.table import Table

    table = Table("", title="Question sets", caption="lengths: mean / median / 95% / max")
    for source in figures:
        table.add_column(Path(source).name.removesuffix(".json"), justify="right", overflow="fold")
    for label, *cells in _rows(list(figures.values())):
        table.add_row(label, *cells)
    if ceilings:
        reached = (f"{ceiling['exact']:.2f} / {ceiling['f1']:.2f}" for ceiling in ceilings)
        table.add_row(f"best EM / F1 with {ceilings[0]['encoder']}", *reached)
    terminal.console().print(table)


def _rows(figures: list[Statistics]) -> list[list[str]]:
    rows = [["protocol", *(item.protocol for item in figures)]]
    rows += [[name.replace("_", " "), *(f"{getattr(item, name):,}" for item in figures)] for name in _COUNTS]
    rows.append(["answers per answerable", *(f"{item.answers_per_question:.2f}" for item in figures)])
    for name in _LENGTHS:
        rows.append([name.replace("_", " "), *(_lengths(getattr(item, name)) for item in figures)])
    for kind in sorted({kind for item in figures for kind, _ in item.kinds}):
        rows.append([f"kind: {kind}", *(f"{dict(item.kinds).get(kind, 0):,}" for item in figures)])
    if any(item.skipped for item in figures):
        rows.append(["left out", *(f"{item.skipped:,}" for item in figures)])
    return rows


def _lengths(lengths: Lengths) -> str:
    return f"{lengths.mean:.1f} / {lengths.median:g} / {lengths.p95} / {lengths.max}"

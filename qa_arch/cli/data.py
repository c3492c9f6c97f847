"""``qa-arch data`` writes question sets as SQuAD JSON; ``qa-arch stats`` prints a column for each set."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qa_arch import terminal
from qa_arch.cli.runs import add_options, add_questions, file_named, refuse_options
from qa_arch.data.files import PASSAGES
from qa_arch.data.question_sets import statistics
from qa_arch.data.sources import format_of, open_listed, split_scheme, usage
from qa_arch.data.splits import by_article
from qa_arch.data.squad import write
from qa_arch.data.synthetic import LEVELS, SPLITS, generate
from qa_arch.errors import ConfigError
from qa_arch.files import json_text, write_atomic
from qa_arch.terminal import counted

PARTS = ("train=0.64", "calibration=0.16", "dev=0.2")
"""80/20 by article, with a fifth of the 80% for calibration."""
LABELS = {
    "examples": "questions",
    "negatives": "unanswerable questions",
    "articles_with_negatives": "articles with unanswerable",
    "paragraphs": "passages",
    "protocol": "scored as SQuAD",
    "skipped": "faulty, left out",
}
"""Labels in the table of statistics that do not follow from their keys in JSON."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sets = parser.add_subparsers(dest="set", metavar="SET", required=True)
    synthetic = sets.add_parser("synthetic", help="generated questions about invented entities")
    add = synthetic.add_argument
    articles = "number of articles, of at most 15 questions each"
    add("--articles", type=int, required=True, metavar="N", help=articles)
    add("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
    levels = "1: relation word shared, 2: paraphrased (default: 1)"
    add("--level", type=int, choices=LEVELS, default=1, help=levels)
    names = "split to generate; no name occurs in two splits (default: train)"
    add("--split", choices=SPLITS, default="train", help=names)
    add("--out", required=True, type=file_named(".json"), metavar="F.json", help="file to write")
    split = sets.add_parser("split", help="split a set by article")
    add_questions(split)
    add = split.add_argument
    shares = f"shares of the questions, summing to 1 (default: {' '.join(PARTS)})"
    add("--parts", nargs="+", default=list(PARTS), metavar="NAME=SHARE", help=shares)
    add("--seed", type=int, default=13, metavar="S", help="seed of the random split (default: 13)")
    add("--out", required=True, metavar="DIR", help="folder for the parts, written as NAME.json")
    add_options(split, "--on-error")


def run(args: argparse.Namespace) -> int:
    """Write the sets as JSON, atomically, and print their sizes."""
    if args.set == "synthetic":
        sets = {Path(args.out): generate(args.articles, args.seed, args.level, args.split)}
    else:
        shares = _shares(args.parts)
        parts = by_article(open_listed(args.data, on_error=args.on_error), shares, args.seed)
        sets = {Path(args.out) / f"{name}.json": part for name, part in parts.items()}
    texts = {path: json_text(write(questions), None) for path, questions in sets.items()}
    for path, text in texts.items():
        # It may be the input; what a killed command left has the same content.
        if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
            raise ConfigError(f"{path}: already exists and was not changed; choose another --out")
    for path, questions in sets.items():
        unanswerable = sum(not example.answerable for example in questions.examples)
        size = f"{counted(len(questions), 'question')} in {counted(len(questions.titles), 'article')}"
        print(f"{write_atomic(path, texts[path])}: {size}, {unanswerable:,} of them unanswerable")
    return 0


def _shares(parts: Sequence[str]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in parts:
        match = re.fullmatch(r"([\w-]+)=(\d*\.?\d+)", part)
        if match is None or match[1] in shares:
            raise ConfigError(f"--parts {part}: write NAME=SHARE, such as dev=0.2, with different names")
        shares[match[1]] = float(match[2])
    return shares


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    sources = "; or ".join(filter(None, (usage(), usage(passages=False))))
    add("--data", nargs="+", required=True, metavar="SOURCE", help=f"one set per source: {sources}")
    add("--json", action="store_true", help="print the statistics as JSON, for several sets by source")
    add_options(parser, "--on-error", "--language")
    parser.set_defaults(on_error=None)  # tells whether it was given
    ceiling = (
        "also print this encoder's score ceiling: the score of gold answers widened to whole tokens, without"
        " those beyond decode.max_answer_tokens"
    )
    add("--encoder", metavar="NAME", help=ceiling)


def run_stats(args: argparse.Namespace) -> int:
    """Print statistics of the sets; faulty records that were left out are listed on stderr."""
    by_source = {source: _statistics(source, args) for source in args.data}
    if args.json:
        printed = by_source if len(args.data) > 1 else next(iter(by_source.values()))
        print(json.dumps(printed, indent=2, ensure_ascii=False))
        return 0
    from rich.table import Table

    table = Table("", title="Question sets", caption="lengths: mean / median / 95% / max")
    columns = [dict(_cells(values)) for values in by_source.values()]
    for source in by_source:
        table.add_column(Path(source).name.removesuffix(".json"), justify="right", overflow="fold")
    for label in dict.fromkeys(label for column in columns for label in column):
        table.add_row(label, *(column.get(label, "–") for column in columns))
    terminal.console().print(table)
    return 0


def _statistics(source: str, args: argparse.Namespace) -> dict[str, Any]:
    """Statistics of one set; with ``--encoder`` also the scores of gold answers that decoding could find."""
    form = format_of(source)
    if form.holds != PASSAGES:
        reason = f"is for sets with {PASSAGES}, and {source} has none; leave it out"
        refuse_options(args, ("encoder", "language", "on_error"), reason)
        if form.counts is None:
            raise ConfigError(f"{source}: its format has no statistics; name a set with {PASSAGES}")
        return dict(form.counts(split_scheme(source)[1]))
    questions = open_listed(source, on_error=args.on_error or "raise", language=args.language)
    values = statistics(questions)
    if args.encoder:
        from qa_arch.config.find import choice
        from qa_arch.features.windows import ceiling, prepare
        from qa_arch.models.store import open_tokenizer

        # Windows as in conf/features/windows.yaml; segment ids do not matter here.
        table = prepare(questions, open_tokenizer(args.encoder), segments=False)
        longest = choice("decode/band")["max_answer_tokens"]
        best = ceiling(questions, table, longest)
        values["ceiling"] = {
            "encoder": args.encoder,
            "exact": best.exact,
            "f1": best.f1,
            "inexact": len(best.inexact),
            "in_no_window": len(best.lost),
            "max_answer_tokens": longest,
            "too_long": table.long_answers(longest),
        }
    return values


def _cells(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, text) of the statistics of one set."""
    cells = []
    for key, value in values.items():
        if key == "kinds":
            cells += [(f"kind: {kind}", f"{count:,}") for kind, count in value.items()]
        elif key == "ceiling":
            cells.append(
                (f"best EM / F1 with {value['encoder']}", f"{value['exact']:.2f} / {value['f1']:.2f}")
            )
            cells.append((f"answers above {value['max_answer_tokens']} tokens", f"{value['too_long']:,}"))
        elif key.endswith("_words") and isinstance(value, Mapping):
            lengths = f"{value['mean']:.1f} / {value['median']:g} / {value['p95']} / {value['max']}"
            cells.append((key.replace("_", " "), lengths))
        elif key != "fingerprint":
            spec = {float: ".2f", int: ","}.get(type(value), "")
            cells.append((LABELS.get(key, key.replace("_", " ")), format(value, spec)))
    return cells

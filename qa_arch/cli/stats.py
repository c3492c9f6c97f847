"""``qa-arch stats``: statistics of question sets, a column per set."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import add_on_error
from qa_arch.data.sources import counts, holds, open_passages, usage
from qa_arch.data.stats import Lengths, Statistics, statistics
from qa_arch.errors import ConfigError
from qa_arch.types.text import QuestionSet

_COUNTS = ("examples", "negatives", "articles", "articles_with_negatives", "paragraphs")
_LENGTHS = ("context_words", "question_words", "answer_words")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="SOURCE",
        help=f"a set per source: {usage()}; or {usage('candidates', 'classes')}",
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


def run(args: argparse.Namespace) -> int:
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
    from qa_arch.features.ceiling import ceiling
    from qa_arch.features.joint import prepare
    from qa_arch.models.encoders import load_tokenizer

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
    from qa_arch.results.columns import Table, number, text
    from qa_arch.results.render import print_table

    rows = [{"set": source.rpartition(":")[2].rpartition("/")[2], **row} for source, row in counted.items()]
    figures = [number(key, key.replace("_", " ")) for key in next(iter(counted.values()))]
    print_table(Table("Questions without passages", [text("set", "set"), *figures], rows))
    return 0


def _print_json(by_source: dict[str, Any]) -> None:
    """Print an object per set by its source, or the object itself for a single set."""
    printed = by_source if len(by_source) > 1 else by_source.popitem()[1]
    print(json.dumps(printed, indent=2, ensure_ascii=False))


def _print_table(figures: Mapping[str, Statistics], ceilings: Sequence[Mapping[str, Any]] = ()) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", title="Question sets", caption="lengths: mean / median / 95% / max")
    for source in figures:
        table.add_column(Path(source).name.removesuffix(".json"), justify="right", overflow="fold")
    for label, *cells in _rows(list(figures.values())):
        table.add_row(label, *cells)
    if ceilings:
        reached = (f"{ceiling['exact']:.2f} / {ceiling['f1']:.2f}" for ceiling in ceilings)
        table.add_row(f"best EM / F1 with {ceilings[0]['encoder']}", *reached)
    Console().print(table)


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

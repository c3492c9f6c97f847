"""``qa-arch stats``: what is in a question set, one column a set."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import add_on_error, open_source
from qa_arch.data import insuranceqa
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
        metavar="F",
        help="SQuAD JSON: a file, a folder or a quoted glob (one set each), hub:NAME:SPLIT or"
        " synthetic:SPLIT; or insuranceqa:FOLDER:SPLIT",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: an object, or one a set by its name")
    add_on_error(parser)
    parser.add_argument(
        "--encoder",
        metavar="NAME",
        help="also score the gold answers cut at the tokens of this encoder (a hub id, a folder or minilm):"
        " the best that a model on it can reach",
    )


def run(args: argparse.Namespace) -> int:
    """Print the statistics of every set named; records left out are listed on stderr."""
    if any(source.startswith(insuranceqa.PREFIX) for source in args.data):
        if args.encoder:
            raise ConfigError("--encoder: InsuranceQA has words and no passages that are cut into tokens")
        return _insuranceqa(args.data, as_json=args.json)
    found: dict[str, Statistics] = {}
    best: dict[str, dict[str, Any]] = {}
    for source in args.data:
        questions = open_source(source, on_error=args.on_error)
        found[source] = statistics(questions)
        for problem in questions.skipped:
            print(f"left out: {problem}", file=sys.stderr)
        if args.encoder:
            best[source] = {"ceiling": _ceiling(questions, args.encoder)}
    if args.json:
        _print_json(
            {source: {**figures.as_dict(), **best.get(source, {})} for source, figures in found.items()}
        )
    else:
        _print_table(found, [one["ceiling"] for one in best.values()])
    return 0


def _ceiling(questions: QuestionSet, encoder: str) -> dict[str, Any]:
    """What gold answers score that are widened to whole tokens, over the answerable questions."""
    from qa_arch.features.ceiling import ceiling
    from qa_arch.features.joint import prepare
    from qa_arch.training.assemble import load_tokenizer

    # The windows of conf/features/windows.yaml; segment ids have no part in it.
    reached = ceiling(questions, prepare(questions, load_tokenizer(encoder), segments=False))
    inexact, lost = len(reached.inexact), len(reached.lost)
    return {
        "encoder": encoder,
        "exact": reached.exact,
        "f1": reached.f1,
        "inexact": inexact,
        "in_no_window": lost,
    }


def _insuranceqa(sources: Sequence[str], *, as_json: bool) -> int:
    """The counts of answer-selection splits; they have no passages, so they make a table of their own."""
    if other := next((source for source in sources if not source.startswith(insuranceqa.PREFIX)), None):
        raise ConfigError(f"--data: {other}: is no split of InsuranceQA, as others are; count it by itself")
    splits = {source: insuranceqa.parse(source) for source in sources}
    counts = {s: insuranceqa.statistics(insuranceqa.read(split)).as_dict() for s, split in splits.items()}
    if as_json:
        _print_json(counts)
        return 0
    from qa_arch.results.columns import Table, number, text
    from qa_arch.results.render import print_table

    rows = [{"set": f"{splits[source].name}", **found} for source, found in counts.items()]
    figures = [number(key, key.replace("_", " ")) for key in next(iter(counts.values()))]
    print_table(Table("InsuranceQA", [text("set", "set"), *figures], rows))
    return 0


def _print_json(found: dict[str, Any]) -> None:
    """An object a set by its source, or the object itself where there is one set."""
    print(json.dumps(found if len(found) > 1 else found.popitem()[1], indent=2, ensure_ascii=False))


def _print_table(found: Mapping[str, Statistics], ceilings: Sequence[Mapping[str, Any]] = ()) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", title="Question sets", caption="lengths: mean / median / 95% / max")
    for source in found:
        table.add_column(Path(source).name.removesuffix(".json"), justify="right", overflow="fold")
    for label, *cells in _rows(list(found.values())):
        table.add_row(label, *cells)
    if ceilings:
        reached = (f"{one['exact']:.2f} / {one['f1']:.2f}" for one in ceilings)
        table.add_row(f"best EM / F1 with {ceilings[0]['encoder']}", *reached)
    Console().print(table)


def _rows(figures: list[Statistics]) -> list[list[str]]:
    rows = [["protocol", *(one.protocol for one in figures)]]
    rows += [[name.replace("_", " "), *(f"{getattr(one, name):,}" for one in figures)] for name in _COUNTS]
    rows.append(["answers per answerable", *(f"{one.answers_per_question:.2f}" for one in figures)])
    for name in _LENGTHS:
        rows.append([name.replace("_", " "), *(_lengths(getattr(one, name)) for one in figures)])
    for kind in sorted({kind for one in figures for kind, _ in one.kinds}):
        rows.append([f"kind: {kind}", *(f"{dict(one.kinds).get(kind, 0):,}" for one in figures)])
    if any(one.skipped for one in figures):
        rows.append(["left out", *(f"{one.skipped:,}" for one in figures)])
    return rows


def _lengths(lengths: Lengths) -> str:
    return f"{lengths.mean:.1f} / {lengths.median:g} / {lengths.p95} / {lengths.max}"

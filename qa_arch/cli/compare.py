"""``qa-arch compare``: is B better than A, by how much, how sure, and on which questions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from qa_arch.data.sources import usage
from qa_arch.errors import ConfigError
from qa_arch.metrics.significance import RESAMPLES
from qa_arch.results.columns import Table, number, text, two_decimals
from qa_arch.results.notebooks import compare as compare_with
from qa_arch.results.pairwise import Changed, Comparison, compare, kinds_table, measures_table, settings_table
from qa_arch.results.question_rows import open_scored
from qa_arch.results.record import find_runs
from qa_arch.results.render import FORMATS, render
from qa_arch.results.systems import apart, one_system
from qa_arch.results.width import terminal_width
from qa_arch.types.records import DEV
from qa_arch.types.text import Example

_SHOWN = 60
"""Characters of a text in a table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="A and B, one run each; with --baseline all runs to compare")
    add("--a", nargs="+", default=[], metavar="RUN", help="several seeds of A: run folders or globs")
    add("--b", nargs="+", default=[], metavar="RUN", help="several seeds of B")
    add("--baseline", metavar="NAME", help="compare every system below RUN with the one of this name")
    add("--split", default=DEV, help="the scored set (default: dev)")
    add(
        "--spans",
        action="store_true",
        help='with --baseline: F1 on the answerable questions where "no answer" is never allowed',
    )
    add(
        "--data",
        nargs="+",
        metavar="FILE",
        help=f"the questions, for texts, and to sort untagged ones by question word: {usage()}",
    )
    add(
        "--unit",
        choices=("question", "article"),
        default="question",
        help="what intervals and tests are over, beside seeds (default: question); article: what is drawn"
        " is articles, and few of them or few seeds count as few (Student's t)",
    )
    add("--top", type=int, default=20, metavar="N", help="how many questions to show (default: 20)")
    add("--resamples", type=int, default=RESAMPLES, metavar="N", help=f"default: {RESAMPLES:,}")
    add("--seed", type=int, default=0, help="of the resampling (default: 0)")
    add("--format", choices=FORMATS, default="text", help="default: text")
    add("--json", action="store_true", help="everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the comparison of two systems, or of every system with a baseline."""
    if args.resamples < 1 or args.top < 0 or args.seed < 0:
        raise ConfigError("--resamples must be at least 1, --top and --seed at least 0")
    if args.baseline is not None:
        return _against_baseline(args)
    if args.spans:
        raise ConfigError("--spans goes with --baseline; a comparison of two shows that figure without it")
    a, b = (
        one_system(find_runs(patterns), name)
        for name, patterns in zip("AB", _run_patterns(args), strict=True)
    )
    a, b = apart(a, b)
    questions = open_scored(args.data, a.record, args.split) if args.data else None
    examples = {example.id: example for example in questions.examples} if questions else {}
    resampling = {"resamples": args.resamples, "seed": args.seed, "unit": args.unit}
    comparison = compare(a, b, split=args.split, top=args.top, questions=questions, **resampling)
    if args.json:
        page = comparison.as_dict()
        page["changed"] = [
            {**plain, **_texts(change, examples)}
            for plain, change in zip(page["changed"], comparison.changed, strict=True)
        ]
        print(json.dumps(page, indent=2, ensure_ascii=False))
        return 0
    sys.stdout.write(render(_tables(comparison, args, examples), args.format, terminal_width()))
    return 0


def _run_patterns(args: argparse.Namespace) -> tuple[Sequence[str], Sequence[str]]:
    if args.runs and (args.a or args.b):
        raise ConfigError("name the runs as A B, or as --a RUN... --b RUN..., not both")
    if args.a and args.b:
        return args.a, args.b
    if len(args.runs) != 2:
        raise ConfigError(
            "give two runs (qa-arch compare A B), seeds of two systems (--a RUN... --b RUN...), or"
            " --baseline NAME with a folder of runs"
        )
    return [args.runs[0]], [args.runs[1]]


def _against_baseline(args: argparse.Namespace) -> int:
    if args.a or args.b or args.data:
        raise ConfigError("--baseline compares the systems below RUN...; leave out --a, --b and --data")
    resampling = {"resamples": args.resamples, "seed": args.seed, "unit": args.unit}
    table = compare_with(args.runs or "runs", args.baseline, split=args.split, spans=args.spans, **resampling)
    sys.stdout.write(render([table], "json" if args.json else args.format, terminal_width()))
    return 0


def _tables(comparison: Comparison, args: argparse.Namespace, examples: Mapping[str, Example]) -> list[Table]:
    tables = [
        measures_table(comparison, args.resamples),
        settings_table(comparison),
        kinds_table(comparison),
        _changed(comparison, examples),
    ]
    return [table for table in tables if table.rows]


def _changed(comparison: Comparison, examples: Mapping[str, Example]) -> Table:
    scores = {side: number(side, f"F1 {side.upper()}", two_decimals) for side in "ab"}
    columns = [text("model", "question"), text("kind", "kind"), *scores.values()]
    if examples:
        answers = {side: text(f"{side}_answer", side.upper(), weight=1) for side in "ab"}
        columns = [text("run", "question"), text("kind", "kind", weight=-1), text("gold", "gold", weight=-1)]
        columns += [column for side in "ab" for column in (scores[side], answers[side])]
    rows = []
    for change in comparison.changed:
        kind = change.kind or ("answerable" if change.answerable else "unanswerable")
        row: dict[str, Any] = {"model": change.id, "kind": kind, "a": change.a, "b": change.b}
        if examples:
            texts = _texts(change, examples)
            row |= {"run": _cut(texts["question"]), "gold": _cut(" | ".join(texts["gold"]) or "no answer")}
            row |= {f"{side}_answer": _cut(" | ".join(texts[f"{side}_answers"])) for side in "ab"}
        rows.append(row)
    notes = [] if examples else ["texts come with --data FILE, the file that the runs were scored on"]
    return Table(f"The {len(rows)} questions that changed most", columns, rows, notes)


def _texts(change: Changed, examples: Mapping[str, Example]) -> dict[str, Any]:
    """Question, gold answers and each side's distinct answers; nothing without the data."""
    if not examples:
        return {}
    example = examples[change.id]
    a, b = (
        list(dict.fromkeys(example.context[s[0] : s[1]] if s else "no answer" for s in side))
        for side in change.spans
    )
    gold = list(dict.fromkeys(answer.text for answer in example.answers))
    return {"question": example.question, "gold": gold, "a_answers": a, "b_answers": b}


def _cut(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _SHOWN else f"{plain[: _SHOWN - 1]}…"

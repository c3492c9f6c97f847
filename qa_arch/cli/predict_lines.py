"""``qa-arch predict --out FILE.jsonl``: a question a line in, an answer a line out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from qa_arch.cli.runs import open_reader, require_runs
from qa_arch.config import extras
from qa_arch.errors import ConfigError
from qa_arch.serving.json_lines import STANDARD, AnsweredPart, Part, answer_part
from qa_arch.serving.query import Query

if TYPE_CHECKING:
    from qa_arch.serving.bulk import Answering

SUFFIXES = (".jsonl", ".ndjson")
SETTINGS = ("precision", "engine", "batch_size")
"""Options that answers depend on, beside those of a query."""


def is_lines(out: str) -> bool:
    """Whether ``--out`` names a file of JSON lines or standard output, not a folder."""
    return out == STANDARD or out.endswith(SUFFIXES)


def run_lines(args: argparse.Namespace) -> int:
    """Answer a file or stream of JSON lines, here or on a Ray cluster."""
    if len(args.data) > 1:
        raise ConfigError("--data: name one file of JSON lines; join several: cat A B | ... --data -")
    if args.actors is not None and args.on != "ray":
        raise ConfigError("--actors is for --on ray")
    options = {
        "top_k": 1 if args.top_k is None else args.top_k,
        "max_answer_tokens": args.max_answer_tokens,
        "null_threshold": args.margin,
    }
    Query("", ("",), **options)  # refuses what is out of range before anything is read
    if args.on == "ray":
        extras.require("ray", "--on ray")
    require_runs(args.run_folder)
    from qa_arch.cli.watch import watching_file
    from qa_arch.serving.bulk import answer_file

    load = partial(load_answering, args, options)
    with watching_file("predicting", "questions") as watch:
        summary = answer_file(
            args.data[0],
            args.out,
            partial(_on_ray, load, args.actors) if args.on == "ray" else partial(_here, load),
            models=args.run_folder,
            settings={**options, **{name: getattr(args, name) for name in SETTINGS}},
            on_error=args.on_error,
            if_exists=args.if_exists or "resume",
            watch=watch,
        )
    if summary is None:
        print(f"{args.out}: all questions are answered already; --if-exists replace starts again")
        return 0
    parts = [f"{args.out}: {summary.lines:,} lines"]
    parts += [f"{summary.before:,} of them from before"] if summary.before else []
    parts += [f'{summary.problems:,} left out (see their "error")'] if summary.problems else []
    print(", ".join(parts), file=sys.stderr if args.out == STANDARD else sys.stdout)
    return 0


def load_answering(args: argparse.Namespace, options: dict[str, Any]) -> Callable[[Part], AnsweredPart]:
    """Load the model in this process, and return what answers a part with it."""
    reader = open_reader(args.run_folder, args)
    if args.batch_size is not None:
        config = reader.predictor.config
        trainer = replace(config.trainer, eval_batch_size=args.batch_size)
        reader.predictor.config = replace(config, trainer=trainer)
    return partial(answer_part, reading=reader.answer, file=args.data[0], options=options)


@contextmanager
def _here(load: Callable[[], Callable[[Part], AnsweredPart]]) -> Iterator[Answering]:
    answering = load()
    yield lambda parts: map(answering, parts)


def _on_ray(load: Callable[[], Callable[[Part], AnsweredPart]], count: int | None):
    from qa_arch.serving.on_ray import actors

    return actors(load, count)

"""``qa-arch ask``: answer a question about a text, with candidates and null odds."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import add_run_options, open_span_predictor
from qa_arch.errors import ConfigError, DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run folder")
    parser.add_argument("--question", required=True, metavar="TEXT")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--context", metavar="TEXT", help="the text to read (default: standard input)")
    source.add_argument("--file", metavar="FILE", help="a UTF-8 text file to read")
    parser.add_argument(
        "--n-best", type=int, default=3, metavar="N", help="how many candidates to show (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer and the best candidates; ``null_odds`` above ``margin`` mean "no answer"."""
    if args.n_best < 0:
        raise ConfigError(f"--n-best: {args.n_best} is out of range, it must be >= 0")
    context = _context(args)
    predictor = open_span_predictor([args.run_folder], args)
    answer = predictor(args.question, context)
    threshold = predictor.null_threshold if args.margin is None else args.margin
    chosen = answer.at(threshold)
    result: dict[str, Any] = {
        "answer": chosen.text if chosen else "",
        "start": chosen.start if chosen else None,
        "end": chosen.end if chosen else None,
        "null_odds": answer.null_odds if math.isfinite(answer.null_odds) else None,
        "margin": threshold if math.isfinite(threshold) else None,
        "windows": answer.windows,
        "candidates": [
            {"text": c.text, "start": c.start, "end": c.end, "probability": c.probability}
            for c in answer.candidates[: args.n_best]
        ],
    }
    if args.json:
        print(json.dumps(result, ensure_ascii=False))
        return 0
    print(chosen.text if chosen else "(no answer in this text)")
    for candidate in result["candidates"]:
        print(f"  {candidate['probability']:6.1%}  {candidate['text'] or '(no answer)'}")
    return 0


def _context(args: argparse.Namespace) -> str:
    """The exact text; line ends are kept, else the offsets would differ from those of the file."""
    if args.context is not None:
        return args.context
    source = args.file or "standard input"
    try:
        raw = Path(args.file).read_bytes() if args.file else sys.stdin.buffer.read()
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: cannot be read as UTF-8 text ({error})") from error

"""``qa-arch predict``: the official prediction files of a trained run for a question file."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="FILE",
        help="SQuAD-shaped files, folders, globs or hub:NAME:SPLIT",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder for predictions, n-best and null odds"
    )
    parser.add_argument(
        "--margin", type=float, help="null margin (default: the run's, fitted on calibration)"
    )
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    parser.add_argument("--batch-size", type=int, help="windows in one forward pass")
    parser.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise", help="what to do with faulty records"
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PREFIX",
        help="a package whose classes the run may name",
    )


def run(args: argparse.Namespace) -> int:
    from qa_arch.cli.watch import watching
    from qa_arch.data.squad import open_set
    from qa_arch.decode import formats
    from qa_arch.predict import load

    questions = open_set(args.data, on_error=args.on_error)
    for problem in questions.skipped:
        print(f"left out: {problem}", file=sys.stderr)
    predictor = load(args.run_folder, device=args.device, precision=args.precision, trust=args.trust)
    with watching("predicting", "windows") as watch:
        ranking = predictor.read(questions, batch_size=args.batch_size, watch=watch)
    margin = predictor.margin if args.margin is None else args.margin
    formats.write(args.out, ranking, margin)
    print(f"{len(questions)} questions answered at null margin {margin:g}: {args.out}/predictions.json")
    return 0

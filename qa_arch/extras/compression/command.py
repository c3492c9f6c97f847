"""``qa-arch compress``: a finished span run made smaller, as a run of its own."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from qa_arch.cli.runs import add_trust
from qa_arch.config.check import read
from qa_arch.config.compression_steps import METHODS, Step
from qa_arch.data.sources import usage
from qa_arch.errors import ConfigError
from qa_arch.records import CALIBRATION, DEV, RECORD, RunRecord, read_record
from qa_arch.results.columns import comparison
from qa_arch.system.garbage import gc_disabled

SHOWN = ("model", "exact", "f1", "parameters", "nonzero", "weights_mb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: qa-arch compress RUN --out SMALLER --method magnitude --sparsity 0.6 --epochs 2 --lr 2e-5"
    )
    add = parser.add_argument
    add(
        "run_folder",
        metavar="RUN",
        help="a finished span run, or a downloaded checkpoint (a folder, OWNER/NAME)",
    )
    add("--out", required=True, metavar="OUT", help="the run folder to make; it must be new")
    add(
        "--method",
        required=True,
        choices=tuple(METHODS),
        help="smallest weights to zero; fewer attention heads, feed-forward units or layers; weights in int8",
    )
    group = parser.add_argument_group("what is left, by method")
    add = group.add_argument
    add(
        "--sparsity", type=float, metavar="S", help="magnitude: share of the weights that become zero, 0 to 1"
    )
    add(
        "--scope",
        choices=("global", "layer"),
        help="magnitude: of all weights together (default), or of each matrix",
    )
    add("--heads", type=int, metavar="N", help="heads: that each layer keeps")
    add("--width", type=int, metavar="N", help="widths: units that each feed-forward network keeps")
    add(
        "--windows", type=int, metavar="N", help="heads, widths: training windows to judge by (default: 1024)"
    )
    add("--layers", type=int, metavar="N", help="layers: that the encoder keeps")
    add("--choose", choices=("every_other", "first"), help="layers: which (default: every_other)")
    add("--embeddings", action="store_true", default=None, help="int8: the token embeddings too")
    group = parser.add_argument_group("training behind it (not for int8)")
    add = group.add_argument
    add("--epochs", type=int, metavar="N", help="with the run's own settings and data (default: 0, none)")
    add("--lr", type=float, metavar="X", help="learning rate (default: the run's)")
    add(
        "--ramp",
        type=float,
        metavar="S",
        help="magnitude: share of the steps in which zeros become more (default: 0.5)",
    )
    group = parser.add_argument_group("data of a checkpoint, which names none")
    add = group.add_argument
    add("--train", nargs="+", metavar="SOURCE", help=usage())
    add("--calibration", nargs="+", metavar="SOURCE", help="to fit the null threshold on")
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    """Make the run and print it beside the one that it was made of."""
    step = _step(args)
    with gc_disabled():
        from qa_arch.extras.compression.runs import Request, compress

    request = Request(args.run_folder, Path(args.out), step, args.train, args.calibration, args.trust)
    record = compress(request)
    _show(args.run_folder, Path(args.out), record)
    return 0


def _step(args: argparse.Namespace) -> Step:
    """The step that the options describe; ConfigError names an option of another method."""
    schema = METHODS[args.method]
    own = {field.name for field in fields(schema)}
    every = {field.name for other in METHODS.values() for field in fields(other)} - {"method"}
    given = {name: value for name in every if (value := getattr(args, name)) is not None}
    for name in sorted(given.keys() - own):
        takes = ", ".join(f"--{option}" for option in sorted(own - {"method"}))
        raise ConfigError(f"--{name} is not for --method {args.method}, which takes {takes}")
    return read(schema, given, "compress")


def _show(source: str, out: Path, record: RunRecord) -> None:
    """The run beside the one that it was made of, where that has a record."""
    from qa_arch.results.tables import print_table

    runs = [(out, record)]
    if (Path(source) / RECORD).is_file():
        runs.insert(0, (Path(source), read_record(source)))
    split = next((split for split in (DEV, CALIBRATION) if split in record.scores), DEV)
    print_table(comparison(runs, split=split, columns=SHOWN))
    print(f"record: {out / RECORD}")

"""``qa-arch compress``: a finished span run made smaller, as a run of its own."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import add_trust
from qa_arch.config.check import read
from qa_arch.config.compression_steps import METHODS, Step
from qa_arch.config.extras import require
from qa_arch.errors import ConfigError
from qa_arch.records import CALIBRATION, DEV, RECORD, read_record
from qa_arch.results.columns import comparison
from qa_arch.system.garbage import gc_disabled

SHOWN = ("model", "exact", "f1", "parameters", "nonzero", "weights_mb")
OPTIONS: dict[str, dict[str, Any]] = {
    "sparsity": {
        "type": float,
        "metavar": "X",
        "help": "magnitude: share of the weights that become zero, 0 to 1",
    },
    "scope": {
        "choices": ("global", "layer"),
        "help": "magnitude: rank all weights together (default), or each matrix by itself",
    },
    "ramp": {
        "type": float,
        "help": "magnitude: share of the training steps over which sparsity grows (default: 0.5)",
    },
    "heads": {"type": int, "metavar": "N", "help": "heads: how many each layer keeps"},
    "width": {"type": int, "metavar": "N", "help": "widths: units that each feed-forward network keeps"},
    "windows": {
        "type": int,
        "metavar": "N",
        "help": "heads, widths: training windows to judge by (default: 1024)",
    },
    "layers": {"type": int, "metavar": "N", "help": "layers: how many the encoder keeps"},
    "choose": {"choices": ("every_other", "first"), "help": "layers: which (default: every_other)"},
    "embeddings": {"action": "store_true", "default": None, "help": "int8: the token embeddings too"},
    "epochs": {
        "type": int,
        "metavar": "N",
        "help": "epochs of training afterwards, with the run's own settings and data (default: 0)",
    },
    "lr": {"type": float, "metavar": "X", "help": "learning rate of that training (default: the run's)"},
}
"""Settings of the steps as options: ``config.compression_steps`` says which method takes which."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: qa-arch compress RUN --out SMALLER --method magnitude --sparsity 0.6 --epochs 2 --lr 2e-5"
    )
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a finished span run")
    add("--out", required=True, metavar="OUT", help="the run folder to make; it must be new")
    add(
        "--method",
        required=True,
        choices=tuple(METHODS),
        help="smallest weights to zero; fewer attention heads, feed-forward units or layers; weights in int8",
    )
    group = parser.add_argument_group("options of the methods")
    for name, settings in OPTIONS.items():
        group.add_argument(f"--{name}", **settings)
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    """Make the run and print it beside the one that it was made of."""
    step = _step(args)
    if args.method in ("heads", "widths"):
        require("compress", f"--method {args.method}")
    with gc_disabled():
        from qa_arch.extras.compression.runs import Request, compress
        from qa_arch.results.tables import print_table

    source, out = Path(args.run_folder), Path(args.out)
    record = compress(Request(source, out, step, args.trust))
    split = next((split for split in (DEV, CALIBRATION) if split in record.scores), DEV)
    print_table(comparison([(source, read_record(source)), (out, record)], split=split, columns=SHOWN))
    print(f"record: {out / RECORD}")
    return 0


def _step(args: argparse.Namespace) -> Step:
    """The step that the options describe; ConfigError names an option of another method."""
    schema = METHODS[args.method]
    own = {field.name for field in fields(schema)}
    given = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    for name in given.keys() - own:
        takes = ", ".join(f"--{option}" for option in sorted(own - {"method"}))
        raise ConfigError(f"--{name} is not for --method {args.method}, which takes {takes}")
    return read(schema, given, "compress")

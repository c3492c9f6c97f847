"""``qa-arch compress``: make a finished span run smaller, as a new run."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import add_options
from qa_arch.config.check import from_mapping
from qa_arch.config.schema import METHODS, Step
from qa_arch.config.target import require_packages
from qa_arch.errors import ConfigError
from qa_arch.process import gc_disabled
from qa_arch.records import CALIBRATION, DEV, RECORD, read_record
from qa_arch.results.columns import runs_table

COLUMNS = ("model", "exact", "f1", "parameters", "nonzero", "weights_mb")
OPTIONS: dict[str, dict[str, Any]] = {
    "sparsity": {
        "type": float,
        "metavar": "X",
        "help": "magnitude: share of the weights set to zero, 0 to 1",
    },
    "scope": {
        "choices": ("global", "layer"),
        "help": "magnitude: rank all weights together (default) or per matrix",
    },
    "ramp": {
        "type": float,
        "help": "magnitude: share of the training steps over which sparsity grows (default: 0.5)",
    },
    "heads": {"type": int, "metavar": "N", "help": "heads: attention heads to keep per layer"},
    "width": {"type": int, "metavar": "N", "help": "widths: units to keep per feed-forward network"},
    "windows": {
        "type": int,
        "metavar": "N",
        "help": "heads, widths: training windows for estimating importance (default: 1024)",
    },
    "layers": {"type": int, "metavar": "N", "help": "layers: encoder layers to keep"},
    "choose": {"choices": ("every_other", "first"), "help": "layers: which to keep (default: every_other)"},
    "epochs": {
        "type": int,
        "metavar": "N",
        "help": "epochs of recovery training, with the run's own settings and data (default: 0)",
    },
    "lr": {"type": float, "metavar": "X", "help": "learning rate of that training (default: the run's)"},
}
"""Command-line options of all methods; ``config.schema.Step`` defines which method accepts which."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: qa-arch compress RUN --out SMALLER --method magnitude --sparsity 0.6 --epochs 2 --lr 2e-5"
    )
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a finished span run")
    add("--out", required=True, metavar="OUT", help="run folder to create; must not exist")
    add(
        "--method",
        required=True,
        choices=tuple(METHODS),
        help="zero the smallest weights; remove attention heads, feed-forward units or layers",
    )
    group = parser.add_argument_group("options of the methods")
    for name, options in OPTIONS.items():
        group.add_argument(f"--{name}", **options)
    add_options(parser, "--trust")


def run(args: argparse.Namespace) -> int:
    """Compress the run and print a comparison with the original."""
    step = _step(args)
    if args.method in ("heads", "widths"):
        require_packages("compress", f"--method {args.method}")
    with gc_disabled():
        from qa_arch.extras.compression.runs import compress
        from qa_arch.results.tables import print_table

    source, out = Path(args.run_folder), Path(args.out)
    record = compress(source, out, step, args.trust)
    split = next((split for split in (DEV, CALIBRATION) if split in record.scores), DEV)
    print_table(runs_table([(source, read_record(source)), (out, record)], split=split, columns=COLUMNS))
    print(f"record: {out / RECORD}")
    return 0


def _step(args: argparse.Namespace) -> Step:
    """Build the step from the options. Raises ConfigError for one of another method or without effect."""
    schema = METHODS[args.method]
    accepted = {field.name for field in fields(schema)}
    settings = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    for name in settings.keys() - accepted:
        options = ", ".join(f"--{option}" for option in sorted(accepted - {"method"}))
        raise ConfigError(f"--{name} is not an option of --method {args.method}, which accepts {options}")
    if not settings.get("epochs"):
        for name in settings.keys() & {"lr", "ramp"}:
            raise ConfigError(
                f"--{name} has no effect without recovery training; add --epochs N or leave it out"
            )
    return from_mapping(schema, settings, "compress")

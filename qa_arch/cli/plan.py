"""``qa-arch plan``: predict memory and time of a run before it starts."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

from qa_arch.cli.runs import add_config_dir, add_trust, use_config_dir
from qa_arch.errors import ConfigError

if TYPE_CHECKING:
    from qa_arch.training.plan.predict import Plan

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
ROWS = {
    "weights": "weights",
    "vectors": "word vectors, fixed tensors",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "exchange": "exchange of gradients",
    "activations": "activations",
    "process": "the process itself; cuBLAS on a GPU",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: qa-arch plan model=bert experiment=squad2 trainer=8gb --memory 8GB. Nothing is trained and"
        " no weights are loaded: memory is measured in passes of a randomly initialised model on the CPU, and"
        " a few steps are timed on the device of the run."
    )
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as for train")
    add("--memory", metavar="8GB", help="memory to fit the batch into (default: that of the device)")
    add("--no-time", action="store_true", help="do not time any step")
    add("--json", action="store_true", help="print one JSON object")
    add_config_dir(parser)
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan; exit code 2 if the run does not fit."""
    from qa_arch.cli.compose import compose
    from qa_arch.cli.required_files import require_files
    from qa_arch.config.schema import validate
    from qa_arch.config.target import TRUSTED

    available = None if args.memory is None else read_size(args.memory)
    config = validate(compose(args.overrides, use_config_dir(args.config_dir, args.trust)))
    require_files(config)
    from dataclasses import asdict

    from qa_arch.training.plan.predict import plan

    result = plan(config, available=available, timed=not args.no_time, trusted=(*TRUSTED, *args.trust))
    if args.json:
        print(json.dumps(asdict(result), indent=2))
        return 0
    encoder = config.encoder.name or config.encoder.family
    _print(result, f"{config.model.get('name')} on {encoder}, one {result.device}")
    return 0


def read_size(text: str) -> int:
    """Bytes of ``8GB``, ``8G``, ``512 MiB``: units are powers of 1024."""
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT])(?:i?B)?\s*", text, re.IGNORECASE)
    size = float(parts[1]) * UNITS[parts[2].upper()] if parts else 0
    if size < 1:
        raise ConfigError(f"--memory {text}: is not a size; write it like 8GB or 512MiB")
    return int(size)


def _print(plan: Plan, title: str) -> None:
    from qa_arch.results.columns import Table, number, text
    from qa_arch.results.render import print_table

    rows: list[dict[str, Any]] = [{"model": ROWS[name], "mib": size} for name, size in plan.memory.items()]
    rows.append({"model": "peak", "mib": plan.total})
    print_table(Table(title, [text("model", "memory"), number("mib", "MiB")], rows))
    batch = plan.batch
    print(f"parameters: {plan.parameters:,}, of them {plan.trainable:,} trained")
    parts = f"{batch['micro']} x {batch['accumulate']}"
    print(f"batch: {parts} on a device, windows of up to {plan.longest} tokens")
    ladder = ", ".join(
        f"{cut['micro']:.0f} x {cut['accumulate']:.0f}: {cut['total']:,.0f} MiB" for cut in plan.cuts
    )
    print(f"the same batch in parts: {ladder}")
    if plan.proposal:
        print(f"for {plan.room:,.0f} MiB: {' '.join(plan.proposal)}")
    if plan.epoch:
        epoch = plan.epoch
        print(
            f"an epoch: {epoch['seconds']:,.0f} s of training for {epoch['windows']:,} windows in"
            f" {epoch['steps']:,} steps, from {epoch['timed']} timed batches"
        )
    for note in plan.notes:
        print(f"note: {note}")

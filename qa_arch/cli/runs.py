"""What ``predict``, ``ask`` and ``evaluate --run`` share: the options for a trained run, and loading it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qa_arch.errors import UnavailableError
from qa_arch.results.record import read_record

if TYPE_CHECKING:
    from qa_arch.predict import Predictor

PRECISIONS = ("fp32", "bf16", "fp16")


def add_trust(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PREFIX",
        help="a package whose classes a config may name",
    )


def add_run_options(parser: argparse._ActionsContainer) -> None:
    """``--device --precision --margin --trust``, as ``open_run`` takes them."""
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: what the run was trained in")
    parser.add_argument(
        "--margin", type=float, metavar="M", help="null margin (default: the run's, fitted on calibration)"
    )
    add_trust(parser)


def open_run(folder: str, args: argparse.Namespace) -> Predictor:
    """The predictor of a finished run on the device and in the precision that ``args`` asks for."""
    record = read_record(folder)
    import torch

    from qa_arch.predict import load

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    precision = args.precision or record.config["trainer"]["precision"]
    if precision == "fp16" and device == "cpu" and not args.precision:
        precision = "fp32"  # a run of a GPU in half precision is read in full where there is none
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).strip().splitlines()[0]
        raise UnavailableError(f"--device {device}: cannot be used ({said}); try --device cpu") from error
    return load(folder, device=device, precision=precision, trust=args.trust)

"""What commands that take runs share: finding and loading runs, opening the set they were scored on."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qa_arch.errors import DataError, RunError, UnavailableError
from qa_arch.results.record import read_record
from qa_arch.system.collector import uncollected
from qa_arch.types.records import RunRecord

if TYPE_CHECKING:
    from qa_arch.predict import Predictor, SelectionPredictor
    from qa_arch.predict.precision import Precision
    from qa_arch.types.text import QuestionSet

PRECISIONS = ("fp32", "bf16", "fp16", "int8")


def add_trust(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PREFIX",
        help="a package whose classes a config may name",
    )


def add_questions(parser: argparse._ActionsContainer) -> None:
    """``--data``, as ``open_source`` takes it."""
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="FILE",
        help="SQuAD-shaped files, folders, globs, hub:NAME:SPLIT or synthetic:SPLIT",
    )


def add_on_error(parser: argparse._ActionsContainer) -> None:
    """``--on-error``, as ``open_source`` takes it."""
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="stop at the first faulty record, or leave such records out and list them (default: raise)",
    )


def add_run_options(parser: argparse._ActionsContainer) -> None:
    """``--device --precision --margin --trust``, as ``open_run`` takes them."""
    parser.add_argument(
        "--margin", type=margin, metavar="M", help="null margin (default: the run's, fitted on calibration)"
    )
    add_device_options(parser)


def margin(text: str) -> float:
    """A null margin as it is written on the command line; ValueError for what is no number, NaN too."""
    value = float(text)
    if math.isnan(value):
        raise ValueError("no null odds lie above NaN or below it")
    return value


def add_device_options(parser: argparse._ActionsContainer) -> None:
    """``--device --precision --trust``, as ``open_selection`` takes them."""
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="default: what the run was trained in; int8 is for CPUs without bf16",
    )
    add_trust(parser)


def open_run(folders: Sequence[str], args: argparse.Namespace) -> Predictor:
    """The predictor of a finished run, or of several as one, as ``args`` asks for device and precision.

    Raises RunError for a run that selects answers.
    """
    with uncollected():
        from qa_arch.predict import load_ensemble

    device, precision = _device_and_precision(folders[0], args)
    return load_ensemble(folders, device=device, precision=precision, trust=args.trust)


def open_selection(folders: Sequence[str], args: argparse.Namespace) -> SelectionPredictor:
    """The predictor of a finished run that selects answers or classes; of several no one is made."""
    with uncollected():
        from qa_arch.predict import SelectionPredictor, load

    if len(folders) > 1:
        raise RunError(f"{folders[1]}: runs that select answers make no ensemble; name one of them")
    device, precision = _device_and_precision(folders[0], args)
    predictor = load(folders[0], device=device, precision=precision, trust=args.trust)
    if not isinstance(predictor, SelectionPredictor):
        raise RunError(f"{folders[0]}: finds spans and selects nothing; name a run of task selection")
    return predictor


def _device_and_precision(folder: str, args: argparse.Namespace) -> tuple[str, Precision]:
    record = read_record(folder)
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() and args.precision != "int8" else "cpu")
    precision = args.precision or record.precision or record.config["trainer"]["precision"]
    if precision == "fp16" and device == "cpu" and not args.precision:
        precision = "fp32"  # a run of a GPU in half precision is read in full where there is none
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).strip().splitlines()[0]
        raise UnavailableError(f"--device {device}: cannot be used ({said}); try --device cpu") from error
    return device, precision  # type: ignore[return-value]


def open_source(source: str | list[str], name: str = "", on_error: Any = "raise") -> QuestionSet:
    """A question set as settings and ``--data`` name it: ``synthetic:SPLIT``, ``hub:...`` or files."""
    from qa_arch.data.squad import open_set

    sources = [source] if isinstance(source, str) else source
    embedded = next((one for one in sources if one.startswith("synthetic:")), None)
    if embedded is None:
        return open_set(source, name=name, on_error=on_error)
    if len(sources) > 1:
        raise DataError(f"{embedded}: the embedded set cannot be joined with others; name it alone")
    from qa_arch.data import synthetic

    return synthetic.named(embedded.removeprefix("synthetic:"))


def open_scored(source: list[str], record: RunRecord, split: str) -> QuestionSet:
    """The set that the run's ``split`` was scored on; DataError where ``source`` holds another."""
    about = record.facts(split)
    questions = open_source(source, on_error=record.setting("data", "on_error") or "raise")
    if questions.fingerprint != about.fingerprint:
        raise DataError(
            f"{' '.join(source)}: not the questions that the runs were scored on ({split} is"
            f" {about.name or 'unknown'}, {about.questions or 0:,} questions, hash"
            f" {str(about.fingerprint)[:12]}; this has {len(questions):,}, hash"
            f" {questions.fingerprint[:12]}); name that file, or leave --data out and do without texts"
        )
    return questions


def split_columns(text: str) -> list[str]:
    """``--columns model,f1,auroc``: keys of ``results.columns``, which says what is unknown."""
    return [key.strip() for key in text.split(",") if key.strip()]

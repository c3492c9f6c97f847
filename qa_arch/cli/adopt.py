"""``qa-arch adopt``: make a run of a downloaded checkpoint, an ensemble, another decoding or calibration of a
run, or another system's answers, for tables, tests and reports."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.cli import runs
from qa_arch.cli.runs import DEVICE, add_options
from qa_arch.data.answer_files import FORMATS, read_answers
from qa_arch.data.sources import open_listed, usage
from qa_arch.errors import ConfigError
from qa_arch.models.checkpoint_files import names_checkpoint
from qa_arch.process import gc_disabled
from qa_arch.records import ADOPTED, CALIBRATION, DEV, read_trained
from qa_arch.terminal import counted, watching

_MODEL_OPTIONS = ("decode", "set", "device", "precision", "trust", "config_dir")
_ANSWER_OPTIONS = ("na_prob", "data", "seed", "missing", "calibration_predictions", "calibration_na_prob")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch adopt runs/squad2/bert-s13 runs/squad2/bert-s14 --folder runs/both"
    add = parser.add_argument
    sources = (
        "a downloaded checkpoint (a folder or OWNER/NAME), several runs as an ensemble (the mean of their"
        " probabilities), or one with --decode or --calibration"
    )
    add("sources", nargs="*", metavar="SOURCE", help=sources)
    add("--predictions", metavar="P", help=f"instead of SOURCE, answers of another system: {FORMATS}")
    add("--name", metavar="X", help="name of the system in tables; required for answers")
    folder = f"run folder (default: runs/{ADOPTED}/NAME-sSEED; of a checkpoint, below runs/checkpoints)"
    add("--folder", metavar="RUN", help=folder)
    calibration = "fit null threshold and confidence on this set, of other articles than are scored"
    add("--calibration", nargs="+", metavar="SOURCE", help=calibration)
    add_options(parser, "--on-error", "--language")
    parser.set_defaults(on_error=None)  # tells whether it was given
    group = parser.add_argument_group("models")
    add = group.add_argument
    add("--decode", metavar="NAME", help="decode as in conf/decode/NAME.yaml")
    changes = "change windows or decoding of a downloaded checkpoint, such as features.max_length=512"
    add("--set", action="append", default=[], metavar="KEY=VALUE", help=changes)
    add_options(group, *DEVICE)
    group = parser.add_argument_group(
        "answers",
        "to be calibrated, files need the best span and the null odds of every question (an empty text"
        " abstains at any threshold)",
    )
    add = group.add_argument
    add("--data", nargs="+", metavar="SOURCE", help=f"the questions: {usage()}")
    add("--na-prob", metavar="N", help="JSON object: question id -> no-answer probability or null odds (2.0)")
    seed = "seed, to distinguish runs of the same system (default: 0)"
    add("--seed", type=int, metavar="S", help=seed)
    missing = "treat questions missing from the file as an error (default), or as empty answers"
    add("--missing", choices=("error", "empty"), help=missing)
    add("--calibration-predictions", metavar="P", help="answers to the calibration set")
    add("--calibration-na-prob", metavar="N", help="like --na-prob, for these answers")


def run(args: argparse.Namespace) -> int:
    """Write the run folder, and print scores and counts of answers, or how to score a model."""
    if bool(args.sources) == bool(args.predictions):
        raise ConfigError("give either SOURCE, a checkpoint or runs, or the --predictions of another system")
    if args.sources:
        runs.refuse_options(args, _ANSWER_OPTIONS, "is for --predictions; qa-arch evaluate scores models")
        return _adopt_model(args)
    runs.refuse_options(args, _MODEL_OPTIONS, "is for a checkpoint or for runs, not for --predictions")
    if not args.data or not args.name:
        raise ConfigError("--predictions: needs the --data that was answered, and a --name for tables")
    return _adopt_answers(args)


def _adopt_model(args: argparse.Namespace) -> int:
    runs.require_runs(args.sources)
    first, *others = args.sources
    checkpoint = next(filter(names_checkpoint, args.sources), None)
    if checkpoint is not None and others:
        raise ConfigError(f"{checkpoint}: is a downloaded checkpoint; adopt it alone, then name its folder")
    if checkpoint is None:
        runs.refuse_options(args, ("set",), f"is for a downloaded checkpoint, and {first} is a run")
    if not args.calibration:
        runs.refuse_options(args, ("language",), "is that of --calibration, which is missing")
        runs.refuse_options(args, ("on_error",), "is for --calibration, which is missing")
    from qa_arch.config.compose import compose, parse_sections

    changes = parse_sections(args.set)
    decode = (args.decode, compose([f"decode={args.decode}"])["decode"]) if args.decode else None
    if checkpoint is not None and decode:  # a change like those of --set
        changes, decode = {**changes, "decode": {**decode[1], **changes.get("decode", {})}}, None
    with gc_disabled():
        from qa_arch.adopt import adopt_model, label
    if args.folder:
        folder = Path(args.folder)
    elif checkpoint is not None:
        folder = runs.checkpoint_folder(checkpoint)
    else:
        name = args.name or label(args.sources, args.decode)
        folder = runs.system_folder(name, read_trained(first).seed)
    record, _ = adopt_model(
        args.sources,
        folder,
        partial(runs.open_predictor, args.sources, args, changes),
        partial(watching, "fitting the null threshold", "rows"),
        name=args.name,
        decode=decode,
        calibration=args.calibration,
        language=args.language,
        on_error=args.on_error,
    )
    assert record.threshold is not None
    fitted = f"null threshold {record.null_threshold:.4g}, fitted on {record.threshold.fitted_on}"
    print(f"{record.model}: {folder} ({fitted})")
    print(f"next:   qa-arch evaluate --run {shlex.quote(str(folder))} --data SOURCE")
    return 0


def _adopt_answers(args: argparse.Namespace) -> int:
    file = Path(args.predictions)
    seed = args.seed or 0
    default_folder = runs.system_folder(args.name, seed)  # also checks the name
    folder = Path(args.folder or default_folder)
    options: Any = {"on_error": args.on_error or "raise", "language": args.language}
    questions = open_listed(args.data, name=DEV, use="scoring", **options)
    if questions.protocol == "1.1" and args.na_prob and not args.calibration:
        raise ConfigError("--na-prob: SQuAD 1.1 has no unanswerable questions; leave it out")
    if bool(args.calibration) != bool(args.calibration_predictions):
        raise ConfigError("--calibration and --calibration-predictions must be given together")
    if args.calibration_na_prob and not args.calibration:
        raise ConfigError("--calibration-na-prob needs --calibration")
    answers = read_answers(file, questions, na_prob=args.na_prob, empty=args.missing == "empty")
    calibration = None
    if args.calibration:
        fitted_on = open_listed(args.calibration, name=CALIBRATION, use="scoring", **options)
        path = Path(args.calibration_predictions)
        calibration = fitted_on, read_answers(path, fitted_on, na_prob=args.calibration_na_prob)
    with gc_disabled():
        from qa_arch.adopt import adopt

    system = {"name": args.name, "seed": seed, "file": file.name}
    record = adopt(questions, answers, folder, **system, calibration=calibration)
    point = record.compared_point(DEV)
    assert point is not None
    counts = [f"{count:,} {key.replace('_', ' ')}" for key, count in record.facts(DEV).counts.items()]
    if args.calibration:
        empty = sum(not text for text in answers.texts.values())
        counts += [f"{counted(empty, 'empty answer')}, which abstain at any threshold"] if empty else []
        counts.append(
            f"null threshold {record.null_threshold:.4g}, fitted on {counted(len(fitted_on), 'question')}"
        )
    others = [f"{counted(answers.others, 'answer')} to other questions left out"] if answers.others else []
    summary = "; ".join([counted(len(questions), "question"), *counts, *others, answers.form])
    print(f"EM {point.exact:.2f} F1 {point.f1:.2f}: {folder} ({summary})")
    return 0

"""Shared parts of commands about runs: options, loading, and suggestions of what to run next.

Commands on files import this too: what only runs need is imported where it is used.
"""

from __future__ import annotations

import argparse
import logging
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.config.find import CONFIG, use_config_dir
from qa_arch.data.files import as_list
from qa_arch.data.sources import files, usage
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.files import finite, plain_json, write_json
from qa_arch.metrics.squad import LANGUAGES
from qa_arch.process import gc_disabled
from qa_arch.results.tables import FORMATS, print_table

if TYPE_CHECKING:
    from qa_arch.models.checkpoint_files import Settings
    from qa_arch.qa.reader import Reader
    from qa_arch.records import RunRecord, Runs

log = logging.getLogger(__name__)
PRECISIONS = ("fp32", "bf16", "fp16", "int8")


def null_threshold(text: str) -> float:
    """Parse ``--null-threshold``: a number other than NaN, possibly infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def file_named(*endings: str) -> Callable[[str], str]:
    """Parser of the name of a file to write, which must end as what is written."""

    def parse(text: str) -> str:
        if Path(text).suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(f"{text!r} does not end in {endings[0]}")
        return text

    return parse


page_file = file_named(".html", ".htm")
"""The name of a page, which is that of no record and hardly of data (``keep_inputs``)."""


OPTIONS: dict[str, dict[str, Any]] = {
    "--trust": {
        "action": "append",
        "default": [],
        "metavar": "PREFIX",
        "help": "package whose classes a config may name",
    },
    "--config-dir": {
        "metavar": "DIR",
        "help": "folder with your own choices for the config groups, such as DIR/model/mine.yaml; with"
        " --trust PACKAGE it may also contain that package",
    },
    "--device": {"help": "cpu, cuda, cuda:1 (default: a GPU if available)"},
    "--precision": {
        "choices": PRECISIONS,
        "help": "default: as in training (fp32 on a CPU if faster); int8 is that of a graph made with it",
    },
    "--null-threshold": {
        "type": null_threshold,
        "metavar": "T",
        "help": "null threshold (default: the run's, fitted on the calibration split)",
    },
    "--max-question": {
        "type": int,
        "metavar": "N",
        "help": "read questions of up to N tokens whole, if the encoder can (default: the run's limit, beyond"
        " which they are cut)",
    },
    "--on-error": {
        "choices": ("raise", "skip"),
        "default": "raise",
        "help": "stop at the first faulty record, or skip and list such records (default: raise, or that of"
        " the run)",
    },
    "--language": {
        "choices": LANGUAGES,
        "help": "language of the answers, whose rules normalise them (default: en, or that of the run)",
    },
    "--final": {
        "action": "store_true",
        "help": "score a held-out dev set (data.open_dev: false), and log the access",
    },
    "--experiments": {
        "metavar": "DIR",
        "help": "folder of experiments, with registrations and logs for --final (default: the checkout's)",
    },
    "--allow-overlap": {
        "action": "store_true",
        "help": "score a set that shares articles with the run's training data, and mark the scores",
    },
    "--unit": {
        "choices": ("question", "article"),
        "help": "unit of intervals and tests, besides seeds (default: article, if the set has several)",
    },
    "--format": {"choices": FORMATS, "default": "text", "help": "default: text"},
    "--json": {
        "dest": "format",
        "action": "store_const",
        "const": "json",
        "help": "the same as --format json",
    },
}
"""Options of several commands, as arguments of ``add_argument``."""
DEVICE = ("--device", "--precision", "--trust", "--config-dir")
"""Options of ``open_predictor``."""
PERMISSION = ("--final", "--experiments", "--allow-overlap")
"""Options of a command that scores a run, on which it depends whether a set may be scored."""


def add_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add the named ``OPTIONS`` in this order."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])


RUN_HELP = "a run folder, an exported folder or graph, or a downloaded checkpoint (a folder or OWNER/NAME)"


def add_questions(parser: argparse._ActionsContainer) -> None:
    """``--data``: a source, or several files, for ``data.sources``."""
    parser.add_argument("--data", nargs="+", required=True, metavar="SOURCE", help=usage())


def add_answer_options(parser: argparse._ActionsContainer, top_k: int = 1) -> None:
    """``--top-k --max-answer-tokens`` of ``qa.answers.Query``; None if not given."""
    parser.add_argument("--top-k", type=int, metavar="K", help=f"maximum spans to return (default: {top_k})")
    longest = "longest answer, in tokens (default: the run's)"
    parser.add_argument("--max-answer-tokens", type=int, metavar="N", help=longest)


def refuse_options(args: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Raise ConfigError for the first option of ``names`` that is given on the command line."""
    for name in names:
        value = getattr(args, name, None)
        if value is not None and value is not False and value != []:  # 0 is a value
            raise ConfigError(f"--{name.replace('_', '-')} {reason}")


def keep_inputs(args: argparse.Namespace, *paths: str | None) -> None:
    """Raise ConfigError if ``--out`` is a file that exists and that the command reads: one of ``paths``, of
    ``--data``, or of what a run consists of."""
    out, data = Path(args.out or ""), getattr(args, "data", None)
    if not out.is_file():
        return
    from qa_arch.qa.files import PREDICTIONS
    from qa_arch.records import RECORD

    own = (RECORD, CONFIG, PREDICTIONS)
    read = [Path(run) / name for run in as_list(getattr(args, "run_folder", None) or ()) for name in own]
    read += [*map(Path, filter(None, paths)), *(files(data) if data else ())]
    if any(path.exists() and out.samefile(path) for path in read):  # also through a link
        raise ConfigError(f"--out {out}: writing it would overwrite what is read; name another file")


def require_runs(sources: Sequence[str]) -> None:
    """Raise RunError for the first source that is neither a trained run nor named like a checkpoint.

    Does not import torch.
    """
    from qa_arch.models.checkpoint_files import names_checkpoint
    from qa_arch.records import read_trained, require_folder

    for source in sources:
        require_folder(source)
        if not names_checkpoint(source):
            read_trained(source)


def open_predictor(folders: Sequence[str], args: argparse.Namespace, settings: Settings | None = None) -> Any:
    """Load a finished run, or several as an ensemble, with the device and precision of ``args``.

    ``settings`` override windows and decoding of a downloaded checkpoint.
    """
    require_runs(folders)
    use_config_dir(args.config_dir, args.trust)
    with gc_disabled():
        from qa_arch.qa.loading import load_predictor
    predictor = load_predictor(
        folders, device=args.device, precision=args.precision, trust=args.trust, settings=settings
    )
    if args.precision not in (None, predictor.precision):  # fp32, which Python does not tell from its default
        raise ConfigError(
            f"{folders[0]}: was exported in {predictor.precision}, which is fixed; leave out --precision"
            f" {args.precision}, or export the run again with it"
        )
    return predictor


def open_reader(folders: Sequence[str], args: argparse.Namespace) -> Reader:
    """``open_predictor`` for commands on spans; raises RunError for a run of another task."""
    predictor = open_predictor(folders, args)
    from qa_arch.qa.loading import require_spans

    reader = require_spans(folders[0], predictor)
    if getattr(args, "max_question", None) is not None:
        reader.raise_question_limit(args.max_question)
    return reader


def checkpoint_folder(source: str) -> Path:
    """Folder of the run that a downloaded checkpoint becomes."""
    from qa_arch.models.checkpoint_files import record_folder
    from qa_arch.records import CHECKPOINTS

    return Path("runs") / CHECKPOINTS / record_folder(source)


def system_folder(name: str, seed: int) -> Path:
    """Folder of an adopted system; ConfigError if ``name`` has neither letters nor digits."""
    from qa_arch.records import ADOPTED

    stem = re.sub(r"[^\w.+-]+", "_", name).strip("._")
    if not stem:
        raise ConfigError("--name: needs a letter or a digit, as it names the system and its folder")
    return Path(f"runs/{ADOPTED}/{stem}-s{seed}")


def print_next_steps(runs: Runs, options: Sequence[str] = ()) -> None:
    """Print suggested commands for runs of one experiment: show and ask the best of them, compare all.

    ``options`` are those needed to load a run: ``--config-dir``, ``--trust``.
    """
    for number, command in enumerate(next_steps(runs, options)):
        print(f"{'' if number else 'next:':<8}{command}")


def next_steps(runs: Runs, options: Sequence[str] = ()) -> list[str]:
    """At most three commands for runs of one experiment; none if no run has scores."""
    scored = {folder: record for folder, record in runs if record.status == "ok" and record.scores}
    if not scored:
        return []
    from qa_arch.records import CALIBRATION, DEV
    from qa_arch.results.systems import group_by_system

    split = DEV if all(DEV in record.scores for record in scored.values()) else CALIBRATION  # else held out
    split_option = [] if split == DEV else ["--split", split]
    points = {folder: record.compared_point(split) for folder, record in scored.items()}
    best = max(scored, key=lambda folder: float((point.f1 if (point := points[folder]) else 0.0) or 0.0))
    commands = [["show", str(best), *split_option]]
    if scored[best].finds_spans:
        commands.append(["ask", str(best), *options])
        systems = group_by_system(list(scored.items()))
        if len(systems) > 1:
            labels = [system.label for system in systems]
            baseline = "bert" if "bert" in labels else labels[0]
            commands.append(["compare", str(best.parent), "--baseline", baseline, *split_option])
    return [shlex.join(["qa-arch", *words]) for words in commands]


def print_scores(record: RunRecord, split: str, args: argparse.Namespace) -> None:
    """Print the scores of ``split``, as JSON with ``--json``, and write them to the file of ``--out``."""
    from qa_arch.results.errors import scores_table

    points = record.scores[split]
    flat = {name: point.flat() for name, point in points.items()}
    if args.out:
        write_json(args.out, finite(flat))
    if args.json:
        print(plain_json(flat))
    else:
        print_table(scores_table(replace(record, scores={split: points})))


def report_missing(missing: Sequence[QaArchError]) -> int:
    """Log what this machine lacks for training, and return the exit code of the first."""
    for problem in dict.fromkeys(map(str, missing)):
        log.warning("training on this machine would fail: %s", problem)
    return missing[0].exit_code if missing else 0

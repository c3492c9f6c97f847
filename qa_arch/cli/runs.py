"""Shared parts of commands about runs: options, loading, and suggestions of what to run next."""

from __future__ import annotations

import argparse
import logging
import math
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.config.files import user_path
from qa_arch.data.formats import OnError, Use
from qa_arch.data.formats.hub import split_source
from qa_arch.data.input_files import as_list, packaged_files
from qa_arch.data.sources import open_passages, require, usage
from qa_arch.errors import ConfigError, DataError, QaArchError, UnavailableError
from qa_arch.models.checkpoint_files import names_checkpoint
from qa_arch.records import CALIBRATION, DEV, Runs, read_record, read_trained, require_folder
from qa_arch.results.tables import FORMATS
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import QuestionSet

if TYPE_CHECKING:
    from qa_arch.config.schema import Config
    from qa_arch.models.checkpoint_files import Settings
    from qa_arch.serving.reader import Reader
    from qa_arch.spans.predictor import SpanPredictor
    from qa_arch.tasks import Predictor

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
        "help": "stop at the first faulty record, or skip and list such records (default: raise)",
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


def add_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add the named ``OPTIONS`` in this order."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])


def use_config_dir(config_dir: str | None, trusted: Sequence[str]) -> str | None:
    """Return the absolute path of the folder; with trusted packages, make them importable from it, in this
    process and its children (see ``lifeline.start``)."""
    if config_dir is None:
        return None
    folder = str(user_path(config_dir).resolve())
    if trusted and folder not in sys.path:
        sys.path.insert(0, folder)
    return folder


RUN_HELP = "a run folder, an exported folder or graph, or a downloaded checkpoint (a folder or OWNER/NAME)"


def add_questions(parser: argparse._ActionsContainer) -> None:
    """``--data``: a source, or several files, for ``data.sources``."""
    parser.add_argument("--data", nargs="+", required=True, metavar="SOURCE", help=usage())


def open_questions(
    source: str | Sequence[str], on_error: OnError, name: str = "", use: Use = "training"
) -> QuestionSet:
    """Read a set with passages; faulty records that are left out are listed on stderr."""
    questions = open_passages(source, name=name, on_error=on_error, use=use)
    for problem in questions.skipped:
        print(f"left out: {problem}", file=sys.stderr)
    return questions


def add_answer_options(parser: argparse._ActionsContainer, top_k: int = 1) -> None:
    """``--top-k --max-answer-tokens`` of ``serving.answers.Query``; None if not given."""
    parser.add_argument("--top-k", type=int, metavar="K", help=f"maximum spans to return (default: {top_k})")
    longest = "longest answer, in tokens (default: the run's)"
    parser.add_argument("--max-answer-tokens", type=int, metavar="N", help=longest)


def refuse_options(args: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Raise ConfigError for the first option of ``names`` that is given on the command line."""
    for name in names:
        value = getattr(args, name, None)
        if value is not None and value is not False and value not in ("auto", []):
            raise ConfigError(f"--{name.replace('_', '-')} {reason}")


def require_runs(sources: Sequence[str]) -> None:
    """Raise RunError for the first source that is neither a trained run nor named like a checkpoint.

    Does not import torch.
    """
    for source in sources:
        require_folder(source)
        if not names_checkpoint(source):
            read_trained(source)


def open_predictor(
    folders: Sequence[str], args: argparse.Namespace, settings: Settings | None = None
) -> Predictor:
    """Load a finished run, or several as an ensemble, with the device and precision of ``args``.

    A downloaded checkpoint counts as a run; ``settings`` override its windows and decoding.
    """
    require_runs(folders)
    use_config_dir(args.config_dir, args.trust)
    with gc_disabled():
        import torch

        from qa_arch.nn.processor import bf16_is_faster
        from qa_arch.spans.loading import load_ensemble, load_predictor
    record = None if names_checkpoint(folders[0]) else read_record(folders[0])
    precision: Any = args.precision or "fp32"
    if not args.precision and record is not None:  # a checkpoint does not record it
        precision = record.precision or record.config["trainer"]["precision"]
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu" and not args.precision and record is not None:
        emulated = precision == "bf16" and record.device.kind == "cuda" and not bf16_is_faster()
        if emulated or precision == "fp16":  # trained on a GPU; a CPU is faster in fp32
            precision = "fp32"
    options = {"device": device, "precision": precision, "trust": args.trust}
    if len(folders) > 1:
        return load_ensemble(folders, **options)
    return load_predictor(folders[0], settings=settings, **options)


def open_span_predictor(folders: Sequence[str], args: argparse.Namespace) -> SpanPredictor:
    """``open_predictor`` for commands on spans; raises RunError for a run of another task."""
    predictor = open_predictor(folders, args)
    from qa_arch.spans.loading import require_spans

    spans = require_spans(folders[0], predictor)
    if getattr(args, "max_question", None) is not None:
        spans.raise_question_limit(args.max_question)
    return spans


def open_reader(folders: Sequence[str], args: argparse.Namespace) -> Reader:
    """``open_span_predictor``, wrapped in the interface for serving."""
    predictor = open_span_predictor(folders, args)
    from qa_arch.serving.reader import Reader

    return Reader(predictor)


def system_folder(parent: str, name: str, seed: int) -> Path:
    """``runs/PARENT/NAME-sSEED``, for a system that was not trained here.

    Raises ConfigError if ``name`` has neither letters nor digits.
    """
    stem = re.sub(r"[^\w.+-]+", "_", name).strip("._")
    if not stem:
        raise ConfigError("--name: needs a letter or a digit, as it names the system and its folder")
    return Path(f"runs/{parent}/{stem}-s{seed}")


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
    from qa_arch.results.systems import group_by_system

    split = DEV if all(DEV in record.scores for record in scored.values()) else CALIBRATION
    split_option = [] if split == DEV else ["--split", split]
    points = {folder: record.compared_point(split) for folder, record in scored.items()}
    best = max(scored, key=lambda folder: float((point.f1 if (point := points[folder]) else 0.0) or 0.0))
    commands = [["show", str(best), *split_option]]
    if not (scored[best].selects or scored[best].pretrains):
        commands.append(["ask", str(best), *options])
        systems = group_by_system(list(scored.items()))
        if len(systems) > 1:
            labels = [system.label for system in systems]
            baseline = "bert" if "bert" in labels else labels[0]
            commands.append(["compare", str(best.parent), "--baseline", baseline, *split_option])
    return [shlex.join(["qa-arch", *words]) for words in commands]


def report_missing(missing: Sequence[QaArchError]) -> int:
    """Log what this machine lacks for training, and return the exit code of the first."""
    for problem in dict.fromkeys(map(str, missing)):
        log.warning("training on this machine would fail: %s", problem)
    return missing[0].exit_code if missing else 0


def require_files(config: Config) -> None:
    """Raise an error for the first that is missing: data, word vectors, a local encoder, a classifier's run.

    DataError for data and vectors, and for data that does not fit the model's task, UnavailableError for
    vectors of a package that is not installed, ConfigError for the encoder, RunError for the run.
    """
    from qa_arch.config.schema import task_entry
    from qa_arch.nn.encoder_configs import resolve

    task = task_entry(config.model["task"])
    if task.reads != "corpus":  # first the kind of data, as another model could read these files
        require(config.data.train, task.reads, "data.train")
    require_present = import_module(task.sources).require_present
    for setting, source in config.data.opened.items():
        require_present(source, setting)
    path = config.glove.path if config.glove.use else None
    if path and packaged_files(path) is None:
        if not Path(path).exists():
            raise DataError(f"glove.path: {path} does not exist; check the path, or set glove=none")
        from qa_arch.features.vectors import check_vectors

        check_vectors(config.glove)
    name = str(config.encoder.name if config.encoder.init == "pretrained" else "")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not Path(resolve(name)).is_dir():
        raise ConfigError(f"encoder.name: {name} is not a folder; give one with a config.json and weights")


def require_hub(configs: Sequence[Config]) -> None:
    """Raise UnavailableError for encoders and data sets that are neither local, cached nor on the hub.

    The hub is asked once whether it answers, and once for each that is not cached. If it does not answer but
    everything is cached, its clients are switched to offline mode: they would retry for a minute.
    """
    from qa_arch.config.schema import task_entry
    from qa_arch.nn.encoder_configs import WITHOUT_HUB, resolve
    from qa_arch.system import hub

    needed: dict[tuple[hub.Kind, str, str | None], bool] = {}
    for config in configs:
        encoder = config.encoder
        name = encoder.name if encoder.init == "pretrained" else encoder.tokenizer
        if "encoder" not in task_entry(config.model["task"]).inputs:
            name = None
        names = [] if name is None else [resolve(name)]
        names += [place for place in config.distillation.teachers if names_checkpoint(place)]
        for source in names:
            if not Path(source).is_dir():
                repository, version = hub.split_revision(source)
                needed["models", repository, version] = hub.cached("models", repository, version)
        for part in (part for source in config.data.opened.values() for part in as_list(source)):
            match = re.search(r"(?:^|:)hub:(.+)", part)  # also within language:, typos: and squad:
            if match and not Path((data_set := split_source(match[1]))[0]).is_dir():
                repository, version = data_set[0], data_set[1] or None
                needed["datasets", repository, version] = hub.cached("datasets", repository, version)
    problem = hub.state() if needed else ""
    absent = [key for key, is_cached in needed.items() if not is_cached]
    if problem and absent:
        missing = ", ".join(name for _, name, _ in absent)
        raise UnavailableError(
            f"{missing}: no such folder, not downloaded before, and {problem}. Download once while online, or"
            " train from files: data=files data.train=FILE data.dev=FILE encoder.name=FOLDER (for"
            f" encoder=minilm: {WITHOUT_HUB['minilm']}; data=demo needs no download)"
        )
    if faults := list(filter(None, (hub.missing(*key) for key in absent))):
        raise UnavailableError("; ".join(faults))
    if problem and not hub.offline():
        log.info("%s: reading %s from the cache", problem, ", ".join(name for _, name, _ in needed))
        hub.go_offline()

"""``qa-arch evaluate``: score official prediction files of any system, or a run with ``--run``; and
``qa-arch EXTRA evaluate RUN``, which scores a run of a recipe on another set.

Scoring prediction files must start fast: modules that only runs need are imported when a run is scored.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.cli import runs
from qa_arch.cli.runs import DEVICE, PERMISSION, add_options
from qa_arch.data.answer_files import read_nbest, read_null_scores, read_predictions, shown_id
from qa_arch.data.sources import open_passages, usage
from qa_arch.errors import ConfigError, RunError, named
from qa_arch.files import finite, plain_json, write_json
from qa_arch.manifest import Metrics, from_extras
from qa_arch.metrics.squad import (
    OFFICIAL_THRESHOLD,
    abstention_warning,
    aggregate,
    final_texts,
    missing_ids,
    score_questions,
)
from qa_arch.process import gc_disabled
from qa_arch.terminal import watching
from qa_arch.types import rules_of

if TYPE_CHECKING:
    from qa_arch.records import Points

EXIT_MISSING = 3
"""Exit code if questions have no prediction."""
_SHOWN_IDS = 20
"""Maximum ids in a message: predictions for a whole set, scored on a part, have thousands of further ids."""
METRICS: Mapping[str, Metrics] = from_extras("metrics")
_FILE_OPTIONS = ("predictions", "na_prob", "nbest", *(name.replace("-", "_") for name in METRICS))
_RUN_OPTIONS = (
    *("train", "final", "experiments", "allow_overlap"),
    *("precision", "device", "trust", "config_dir"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch evaluate --run runs/squad2/bert-s13 --data dev-v2.0.json"
    add = parser.add_argument
    questions = f"questions with gold answers: {usage()} (default with --run: its dev set)"
    add("--data", nargs="+", metavar="D", help=questions)
    add_options(parser, "--language")
    threshold = (
        "abstain if null odds or no-answer probability exceed T (default for files: the official"
        f" {OFFICIAL_THRESHOLD}; with --run: also score at T)"
    )
    add("--null-threshold", type=runs.null_threshold, metavar="T", help=threshold)
    add("--out", metavar="O", help="also write the scores to this file, as JSON")
    add = parser.add_argument_group("scoring prediction files").add_argument
    add("--predictions", metavar="P", help='JSON object: question id -> answer, "" = no answer')
    add("--na-prob", metavar="N", help="JSON object: question id -> no-answer probability or null odds (2.0)")
    for name, family in METRICS.items():
        add(f"--{name}", action="store_true", help=family.summary)
    if METRICS:
        nbest = f"nbest_predictions.json; with --{', --'.join(METRICS)}, adds the perplexity"
        add("--nbest", metavar="B", help=nbest)
    group = parser.add_argument_group("scoring a trained run")
    add = group.add_argument
    source = (
        "instead of --predictions: a run folder, or a downloaded checkpoint (a folder or OWNER/NAME), which"
        " becomes a run below runs/checkpoints; ensembles, other decodings and calibrations: qa-arch adopt"
    )
    add("--run", dest="run_folder", nargs="+", metavar="RUN", help=source)
    add("--json", action="store_true", help="print the scores as JSON, not as a table")
    add("--train", action="store_true", help="score the questions that the run was trained on")
    add_options(group, *PERMISSION, *DEVICE)


def run(args: argparse.Namespace) -> int:
    """Print the scores to stdout, of files as JSON and of runs as a table, and messages to stderr.

    Exit code 3 if predictions are missing; they are scored as by the official script.
    """
    return _score_run(args) if args.run_folder else _score_files(args)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


# Files --------------------------------------------------------------------------------------------


def _score_files(args: argparse.Namespace) -> int:
    reason = "is for a trained run: give --run RUN with it (or see qa-arch adopt)"
    runs.refuse_options(args, _RUN_OPTIONS, reason)
    if not args.data or not args.predictions:
        raise ConfigError("give --data and --predictions, or --run RUN to score a trained run")
    families = {name: family for name, family in METRICS.items() if getattr(args, name.replace("-", "_"))}
    if METRICS and args.nbest and not families:
        raise ConfigError(f"--nbest is only used for perplexity: add --{', --'.join(METRICS)}")
    runs.keep_inputs(args, args.predictions, args.na_prob, args.nbest)
    questions = open_passages(args.data, use="scoring", language=args.language)
    protocol = questions.protocol
    _say(f"protocol: SQuAD {protocol} (from the data){rules_of(questions.language)}")
    if protocol == "1.1" and (args.na_prob or args.null_threshold is not None):
        raise ConfigError(
            "protocol 1.1 has no unanswerable questions: leave out --na-prob and --null-threshold"
        )
    if args.null_threshold is not None and not args.na_prob:
        raise ConfigError("--null-threshold has no effect without --na-prob; give both")
    predictions = read_predictions(args.predictions)
    null_scores = read_null_scores(args.na_prob) if args.na_prob else None
    known = {example.id for example in questions.examples}
    for file in filter(None, (predictions, null_scores)):
        _print_ids(f"{file.path}: duplicate ids, the last value counts", file.duplicates)
        unknown = [id_ for id_ in file.values if id_ not in known]
        _print_ids(f"{file.path}: ids that are not in the data, ignored", unknown)
    missing = missing_ids(questions, predictions.values)
    _print_ids(f"{predictions.path}: questions without a prediction (of {len(questions)})", missing)
    odds = null_scores.values if null_scores else {}
    threshold = OFFICIAL_THRESHOLD if args.null_threshold is None else args.null_threshold
    if args.null_threshold is None and any(not 0 <= value <= 1 for value in odds.values()):
        _say(
            f"warning: {args.na_prob}: values outside 0..1 look like odds, and the official threshold"
            f" {OFFICIAL_THRESHOLD} is applied to them; give --null-threshold (0 is neutral for odds)"
        )
    scored = score_questions(questions, predictions.values)
    with named(args.na_prob if scored and null_scores else ""):  # which may lack a question
        scores = aggregate(
            scored,
            protocol,
            null_scores=odds if null_scores else None,
            threshold=threshold,
            missing=len(missing),
        )
    values = scores.flat()
    texts = final_texts(questions, predictions.values, odds, threshold)
    # A question without a prediction is no abstention.
    answered = [(e.answerable, not texts[e.id]) for e in questions.examples if e.id in texts]
    if fact := abstention_warning(*zip(*answered, strict=True)):
        _say(f"warning: {fact}; has the system learned to answer?")
    if families:
        candidates = read_nbest(args.nbest) if args.nbest else None
        for name, family in families.items():
            score = import_module(family.module).score
            values[name.replace("-", "_")] = score(questions, texts, candidates)
    if args.out:
        write_json(args.out, finite(values))
    print(plain_json(values))
    return EXIT_MISSING if missing else 0


def _print_ids(message: str, ids: Collection[str]) -> None:
    if ids:
        shown = [shown_id(id_) for id_ in list(ids)[:_SHOWN_IDS]]
        rest = f" and {len(ids) - len(shown)} more" if len(shown) < len(ids) else ""
        _say(f"{message}: {len(ids)}: {' '.join(shown)}{rest}")


# Runs ---------------------------------------------------------------------------------------------


def _score_run(args: argparse.Namespace) -> int:
    """Score a run, write predictions and record into its folder, and print the scores."""
    from qa_arch.models.checkpoint_files import names_checkpoint
    from qa_arch.records import DEV, RECORD, read_record

    reason = "is for prediction files; --run writes predictions.json, which --predictions reads"
    runs.refuse_options(args, _FILE_OPTIONS, reason)
    if args.train:
        reason = "cannot be combined with --train, which selects the set to score"
        runs.refuse_options(args, ("data", "final"), reason)
    if not args.data:
        runs.refuse_options(args, ("language",), "is that of --data; the run's own sets keep theirs")
    _refuse_unused_experiments(args)
    runs.require_runs(args.run_folder)
    runs.keep_inputs(args)
    source, *others = args.run_folder
    if others:
        raise ConfigError("--run: several runs are an ensemble; make it a run: qa-arch adopt RUN RUN")
    checkpoint = names_checkpoint(source)
    folder = runs.checkpoint_folder(source) if checkpoint else Path(source)
    scored_on = read_record(folder).scores if (folder / RECORD).is_file() else {}
    if checkpoint and (args.train or (not args.data and DEV not in scored_on)):
        raise ConfigError(
            f"--data: {source} has no dev set of its own, nor training data; name the set to score"
        )
    # These import torch: what is wrong so far is told without it.
    with gc_disabled():
        from qa_arch.adopt import adopt_model
        from qa_arch.evaluation import Permission, evaluate_run

    load, loaded = partial(runs.open_predictor, [source], args), None
    if checkpoint:
        _, loaded = adopt_model([source], folder, load, partial(watching, "fitting", "rows"))
    scored, split = evaluate_run(
        folder,
        lambda: loaded or load(),  # adopting a checkpoint may have loaded it
        partial(watching, "predicting", "rows"),
        data=args.data,
        language=args.language,
        train=args.train,
        permission=Permission(args.final, args.experiments, args.allow_overlap),
        null_threshold=args.null_threshold,
        trust=args.trust,
    )
    runs.print_scores(scored, split, args)
    return 0


def _refuse_unused_experiments(args: argparse.Namespace) -> None:
    if not args.final:
        runs.refuse_options(args, ("experiments",), "is for --final, which registration and log belong to")


# Runs of recipes ----------------------------------------------------------------------------------


def add_evaluate(commands: Any, run_help: str, data_help: str) -> None:
    """Add the command ``evaluate`` to the subcommands of an extra."""
    parser = commands.add_parser("evaluate", help="score a run on another set, and add that to its record")
    parser.set_defaults(action=_score_recipe)
    add = parser.add_argument
    add("run_folder", metavar="RUN", help=run_help)
    add("--data", nargs="+", metavar="SOURCE", help=f"{data_help} (default: the run's dev set)")
    add("--json", action="store_true", help="print the scores as JSON, not as a table")
    add("--out", metavar="F", help="also write the scores to this file, as JSON")
    add_options(parser, *PERMISSION, *DEVICE)


def _score_recipe(args: argparse.Namespace) -> int:
    """Check that the set may be scored; score it, write rows and record, and print the scores."""
    from qa_arch.config.schema import recipe_of
    from qa_arch.config.target import TRUSTED
    from qa_arch.models.checkpoint_files import run_config
    from qa_arch.records import DEV, read_trained

    _refuse_unused_experiments(args)
    runs.keep_inputs(args)
    folder, record = Path(args.run_folder), read_trained(args.run_folder)
    config = run_config(record.config)
    if (entry := recipe_of(config.model)) is None:
        raise RunError(f"{folder}: finds spans; score it with qa-arch evaluate --run")
    with gc_disabled():
        from qa_arch.evaluation import Permission, open_permitted, score_opened

        recipe, source = entry.load(), import_module(entry.data)
    permission = Permission(args.final, args.experiments, args.allow_overlap)
    opened = open_permitted(
        record,
        config,
        permission,
        dev=lambda dev: source.open_set(config, dev, DEV),
        data=partial(source.open_set, config, args.data) if args.data else None,
    )

    def heuristics() -> Points | None:
        trusted = (*TRUSTED, *args.trust)
        return recipe.heuristics(config, opened.questions, trusted) if config.references else None

    scored, split = score_opened(
        folder,
        record,
        opened,
        partial(runs.open_predictor, [args.run_folder], args),
        partial(watching, "predicting", "rows"),
        permission=permission,
        data=args.data,
        score=recipe.score,
        heuristics=heuristics,
        facts_of=recipe.facts_of,
    )
    runs.print_scores(scored, split, args)
    return 0

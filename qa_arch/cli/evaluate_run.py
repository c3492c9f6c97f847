"""``qa-arch evaluate --run``: score a trained run on a set, and add what came out to its record.

A config with ``data.open_dev: false`` keeps its dev set closed: only ``--final`` scores on it, and
each time a line in ``experiments/<name>/dev_openings.jsonl`` says so.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qa_arch.cli import derived, evaluate_selection
from qa_arch.cli.evaluate_options import OF_FILES, first_given
from qa_arch.cli.evaluate_selection import Found
from qa_arch.cli.runs import open_run, open_source
from qa_arch.config.files import write_json
from qa_arch.config.schema import SELECTING
from qa_arch.data.insuranceqa import PREFIX as INSURANCEQA
from qa_arch.data.question_types import open_types
from qa_arch.data.selection import from_squad, open_insuranceqa
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.results import provenance
from qa_arch.results.dev_access_log import EXPERIMENTS, DevAccess, log_dev_access
from qa_arch.results.questions import questions_folder
from qa_arch.results.record import RECORD, read_record, write_questions, write_record
from qa_arch.types.records import CALIBRATED, CALIBRATION, DEV, GIVEN, Point, RunRecord, SplitFacts
from qa_arch.types.text import Answer, QuestionSet, SelectionSet

if TYPE_CHECKING:
    from qa_arch.config.schema import Config
    from qa_arch.decode.answers import Ranking
    from qa_arch.predict import Predictor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """The set to be scored and what is known of it."""

    questions: QuestionSet | SelectionSet
    split: str
    """``dev`` for the config's own dev set, else the set's name: where the record keeps the scores."""
    closed: bool
    """Whether it is the dev set that the config keeps closed, or shares articles with it."""
    overlap: tuple[str, ...]
    """Titles that it shares with the run's training and calibration articles."""


def run(args: argparse.Namespace) -> int:
    """Predict, score, write predictions and record into the run folder, print the scores as JSON."""
    if named := first_given(args, OF_FILES):
        raise ConfigError(
            f"{named} is for prediction files: a run scored with --run leaves its own (predictions.json) for"
            " --predictions; the null margin of --run is --margin"
        )
    folder = derived.place(args.run_folder, args.decode, args.record)
    record = derived.begin(args.run_folder, args.decode, folder) if args.record else read_record(folder)
    from qa_arch.config.schema import validate

    config = validate(record.config)
    if args.decode and config.model["task"] != "span":
        raise ConfigError(
            f"--decode: {args.run_folder[0]} is of task {config.model['task']}, and only spans are searched"
            " for; leave it out"
        )
    target = _target(record, config, args.data)
    _check_target(target, args)

    def log_opening() -> None:
        if args.final:
            _log_opening(folder, record, config, target.questions)

    out = questions_folder(folder, target.split)
    if config.model["task"] in SELECTING:
        found = evaluate_selection.score(target.questions, out, args, before=log_opening)
    else:
        found = _score_spans(target, out, record, config, args, before=log_opening)
    points = {name: replace(point, overlap=target.overlap) for name, point in found.points.items()}
    if (folder / RECORD).is_file():
        record = read_record(folder)  # another set may have been scored meanwhile
    references = {target.split: found.references} if found.references else {}
    seconds = record.seconds
    changed = replace(
        record,
        scores={**record.scores, target.split: points},
        data={**record.data, target.split: found.facts},
        references={**record.references, **references},
        seconds=replace(seconds, predict=round(found.seconds, 3)) if target.split == DEV else seconds,
    )
    write_record(folder, changed)
    flat = {name: point.flat() for name, point in points.items()}
    if args.out:
        write_json(args.out, flat)
    print(json.dumps(flat, indent=2, ensure_ascii=False))
    return 0


def _score_spans(
    target: Target,
    out: Path,
    record: RunRecord,
    config: Config,
    args: argparse.Namespace,
    before: Callable[[], None],
) -> Found:
    """Answer every question, write predictions and scores of single questions into ``out``."""
    predictor = open_run(args.run_folder, args)
    predictor.config = replace(predictor.config, decode=config.decode)
    from qa_arch.decode import formats
    from qa_arch.decode.answers import answers
    from qa_arch.predict.scoring import question_rows

    before()
    questions = target.questions
    assert isinstance(questions, QuestionSet)
    facts, ranking, seconds = _predict(predictor, questions)
    answered = answers(ranking, candidates=False)
    points = _score(questions, answered, predictor.margin, args.margin)
    formats.write(out, ranking, predictor.margin)
    write_questions(out, question_rows(questions, answered, predictor.margin))
    return Found(facts, points, _references(record, config, questions, args.trust), seconds)


def _target(record: RunRecord, config: Config, data: Sequence[str] | None) -> Target:
    if not data and config.data.dev is None:
        raise ConfigError("data.dev: the run's config names no dev set; give one with --data")
    dev = None
    if config.data.dev is not None and (not data or not config.data.open_dev):
        dev = _open_for(config, config.data.dev, DEV)
    questions = _open_for(config, list(data), "") if data else dev
    assert questions is not None
    recorded = record.fingerprint(DEV)
    is_dev = questions.fingerprint == (dev.fingerprint if dev else recorded)
    trained = {title for facts in record.data.values() for title in facts.titles}
    return Target(
        questions,
        DEV if is_dev else _folder_name(questions.name),
        closed=not config.data.open_dev
        and dev is not None
        and (is_dev or bool(dev.titles & questions.titles)),
        overlap=tuple(sorted(trained & questions.titles)),
    )


def _folder_name(name: str) -> str:
    """The name of another set as a key of the record and a folder; never that of one of the run's own."""
    plain = re.sub(r"[^\w.+-]", "_", name).strip(".") or "set"
    return f"{plain}-set" if plain in ("train", "calibration", DEV) else plain


def _open_for(config: Config, source: str | list[str], name: str) -> QuestionSet | SelectionSet:
    """A set as the run's task reads it."""
    if config.model["task"] not in SELECTING:
        return open_source(source, name, config.data.on_error)
    first, *others = [source] if isinstance(source, str) else source
    classifies = config.model["task"] == "classification"
    if not classifies and not first.startswith(INSURANCEQA):
        return from_squad(open_source(source, name, config.data.on_error))
    if others:
        raise ConfigError(f"--data: {others[0]}: sets like {first} are scored one at a time; name one")
    return open_types(first, name=name) if classifies else open_insuranceqa(first, name=name)


def _check_target(target: Target, args: argparse.Namespace) -> None:
    name = target.questions.name
    if target.overlap and not args.allow_overlap:
        shown = ", ".join(map(repr, target.overlap[:5])) + (", ..." if len(target.overlap) > 5 else "")
        raise DataError(
            f"{name}: shares {len(target.overlap)} articles with the run's training and calibration data"
            f" ({shown}); score another set, or --allow-overlap, which the scores then say"
        )
    if target.closed and not args.final:
        raise ConfigError(
            f"{name}: the run's config keeps its dev set closed (data.open_dev: false);"
            " --final scores it once everything is decided, and logs that"
        )
    if args.margin is not None and target.questions.protocol == "selection":
        raise ConfigError("--margin: this run ranks candidates, it has no null margin; leave it out")
    if args.margin is not None and target.questions.protocol == "1.1":
        raise ConfigError(f"--margin: {name} is a SQuAD 1.1 set, where every question is answered")
    if args.final and not target.closed:
        raise ConfigError(f"--final: nothing keeps {name} closed for this run; leave it out")


def _log_opening(
    folder: Path, record: RunRecord, config: Config, questions: QuestionSet | SelectionSet
) -> None:
    path = log_dev_access(
        EXPERIMENTS / config.name,
        DevAccess(
            date=provenance.now(),
            commit=provenance.commit()[0],
            config_hash=record.config_hash,
            run=folder.resolve().name,
            data=questions.name,
            fingerprint=questions.fingerprint,
        ),
    )
    log.info("%s: one more opening", path)


def _predict(predictor: Predictor, questions: QuestionSet) -> tuple[SplitFacts, Ranking, float]:
    """What the record says of the set, the ranked answers, and the seconds that these took."""
    from qa_arch.cli.watch import watching
    from qa_arch.predict.scoring import set_facts

    table = predictor.features(questions)
    begun = time.perf_counter()
    with watching("predicting", "windows") as watch:
        ranking = predictor.read(questions, watch=watch)
    facts = set_facts(questions, table, titles=False)
    return facts, ranking, time.perf_counter() - begun


def _score(
    questions: QuestionSet, answered: Sequence[Answer], margin: float, given: float | None
) -> dict[str, Point]:
    """Every operating point by its name; ``given`` is the one of ``--margin``."""
    from qa_arch.predict.scoring import operating_points

    points = operating_points(questions, answered, margin)
    if given is not None:
        points[GIVEN] = operating_points(questions, answered, given)[CALIBRATED]
    return points


def _references(
    record: RunRecord, config: Config, questions: QuestionSet, trust: Sequence[str]
) -> dict[str, Point]:
    """The heuristics on the same questions, fitted on the run's calibration set where it is at hand."""
    from qa_arch.config.target import TRUSTED
    from qa_arch.training.references import reference_scores

    recorded = record.fingerprint(CALIBRATION)
    calibration = None
    if recorded is not None:
        try:
            calibration = _calibration(config)
        except (DataError, UnavailableError) as error:
            log.warning("the heuristics are not scored, as their calibration set is missing: %s", error)
            return {}
        if calibration is None or calibration.fingerprint != recorded:
            log.warning("the heuristics are not scored: the calibration set is not the one of the run")
            return {}
    return reference_scores(config.references, calibration, questions, (*TRUSTED, *trust))


def _calibration(config: Config) -> QuestionSet | None:
    """The set that the run was calibrated on; the training set is read only where it was held out of that."""
    if config.data.calibration is not None:
        return open_source(config.data.calibration, "calibration", config.data.on_error)
    from qa_arch.training.assemble import load_sets

    return load_sets(replace(config.data, dev=None)).get("calibration")

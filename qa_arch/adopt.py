"""Make a run of what is none: a downloaded checkpoint, an ensemble, a run that is decoded or calibrated in
another way (``adopt_model``), or the answers of any other system, as a run without weights (``adopt``).
"""

from __future__ import annotations

import logging
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qa_arch import provenance
from qa_arch.config.check import convert
from qa_arch.config.schema import refuse_recipe
from qa_arch.data.answer_files import Answers
from qa_arch.data.files import OnError
from qa_arch.data.sources import open_listed
from qa_arch.data.splits import closed_dev, require_disjoint, shared_articles
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.files import read_json, write_json
from qa_arch.metrics.squad import METRIC_VERSION, aggregate, score_questions
from qa_arch.models.checkpoint_files import names_checkpoint, run_config
from qa_arch.provenance import identify, json_hash, new_record
from qa_arch.qa.files import ALWAYS_ANSWER, PREDICTIONS, mass_abstention, question_rows, threshold_on
from qa_arch.qa.ranking import Ranking, with_null
from qa_arch.records import (
    ADOPTED,
    CALIBRATION,
    DEV,
    FORCED,
    GIVEN,
    MEMBERS,
    NO_SPANS,
    RECORD,
    SCORED_EMPTY,
    TRAIN,
    WRITING,
    CalibrationFits,
    Parameters,
    Point,
    RunRecord,
    Seconds,
    SplitFacts,
    SystemName,
    Threshold,
    changing,
    read_record,
    read_trained,
    training_data,
    write_questions,
    write_record,
)
from qa_arch.results.systems import systems_hash
from qa_arch.types import Candidate, Example, Prediction, QuestionSet

if TYPE_CHECKING:
    from qa_arch.evaluation import Reading, Watching
    from qa_arch.qa.reader import Reader

log = logging.getLogger(__name__)


# Models -------------------------------------------------------------------------------------------


def adopt_model(
    sources: Sequence[str],
    folder: Path,
    load: Callable[[], Reader],
    watching: Watching,
    *,
    name: str | None = None,
    decode: tuple[str, Mapping[str, Any]] | None = None,
    calibration: Sequence[str] | None = None,
    language: str | None = None,
    on_error: OnError | None = None,
) -> tuple[RunRecord, Reader]:
    """Make ``folder`` a run of a downloaded checkpoint, of an ensemble of runs, or of one run that is decoded
    or calibrated in another way, and return its record and predictor.

    ``decode`` is the name of another decoding of a run, with its settings. Null threshold and temperature are
    fitted on ``calibration``, which is read as ``language`` and ``on_error`` say or else as the run's own
    sets; with ``decode``, on the run's own calibration set if that is known; otherwise an ensemble takes the
    mean of its members, and a checkpoint keeps its own or 0. The same again keeps what was scored since;
    RunError if the folder holds another record, DataError if ``calibration`` has articles of the training
    data or of a closed dev set.
    """
    from qa_arch.qa.loading import as_recorded
    from qa_arch.qa.task import output_of
    from qa_arch.tensors import StepLogits

    predictor: Any = None
    if names_checkpoint(sources[0]):
        predictor = load()
        record = replace(predictor.record, model=name or predictor.record.model)
    else:
        record = _combined(sources, name, decode, calibration)
    convert(SystemName, record.model, "name")
    own = run_config(record.config)
    refuse_recipe(sources[0], own.model)
    if decode and output_of(own.model) is StepLogits:
        raise ConfigError("--decode: sequences have no search, only spans are searched for; leave it out")
    questions, config, hashes = None, record.config, {}
    if calibration:
        options: Any = {"on_error": on_error or own.data.on_error, "language": language or own.data.language}
        config = {**config, "data": {**config["data"], "calibration": list(calibration), **options}}
        questions = open_listed(list(calibration), name=CALIBRATION, use="scoring", **options)
        hidden: Any = [record.held_out] if record.held_out else closed_dev(own.data).values()
        if any(shared_articles(closed, questions) for closed in hidden):
            raise DataError(
                f"--calibration: {' '.join(calibration)} has articles of the dev set that the run holds out"
                " (data.open_dev: false); calibrate on others"
            )
        trained = {"the run's training data": record.facts(TRAIN).titles}
        require_disjoint(**{f"--calibration {' '.join(calibration)}": questions}, **trained)
        hashes = {CALIBRATION: questions.fingerprint}
    members = {"members": list(record.members)} if record.members else {}
    # The config is that of a single member: the others tell ensembles apart.
    record = replace(record, config=config, **identify({**config, **members}, hashes)._asdict())
    existing = read_record(folder) if (folder / RECORD).is_file() else None
    if existing is not None:
        _require_same(existing, record, folder, sources, name)
    predictor, reading = predictor or load(), None
    if existing is None:
        record, reading = _fitted(record, predictor, sources, questions, decode is not None, watching)
    with changing(folder, patience=WRITING) as existing:  # another command may have been faster
        if existing is None:
            record = _write(record, predictor, reading, folder, sources)
        else:
            _require_same(existing, record, folder, sources, name)
            record = existing
    return record, as_recorded(predictor, record)


def _fitted(
    record: RunRecord,
    predictor: Reader,
    sources: Sequence[str],
    questions: Any,
    decodes: bool,
    watching: Watching,
) -> tuple[RunRecord, Reading | None]:
    """The record with threshold and temperature, and what the model read of the set they are fitted on."""
    from qa_arch.evaluation import calibrate, read_set, recorded_calibration
    from qa_arch.qa.loading import as_recorded

    if questions is None and decodes:
        questions = recorded_calibration(record, run_config(record.config))
    if questions is not None:
        # Fitted from nothing: the null odds of another decoding are on another scale.
        as_recorded(predictor, replace(record, threshold=None, confidence=None))
        with watching() as watch:
            reading = read_set(predictor, questions, watch=watch)
        return replace(record, **vars(calibrate(predictor, reading))), reading
    if decodes:
        fits = CalibrationFits(threshold=Threshold(value=0.0, fitted_on="nothing"))
        return replace(record, **vars(fits)), None
    if len(sources) > 1:
        record = replace(record, **vars(_mean_fits(sources, predictor)))
    return record, None


def _write(
    record: RunRecord, predictor: Reader, reading: Reading | None, folder: Path, sources: Sequence[str]
) -> RunRecord:
    """Write the run, with the scores of its calibration set if that was read, and return its record."""
    if reading is not None:
        from qa_arch.evaluation import score

        points, rows_hash = score(predictor, reading, folder, split=CALIBRATION)
        # The articles of the run's own calibration set stay known: it was calibrated on both.
        titles = {*reading.questions.titles, *record.facts(CALIBRATION).titles}
        facts = replace(reading.facts, titles=tuple(sorted(titles)))
        record = replace(record, data={**record.data, CALIBRATION: facts})
        record = replace(record, scores={CALIBRATION: points}, rows={CALIBRATION: rows_hash})
    if record.members:
        write_json(folder / MEMBERS, _members(sources, folder))
    write_record(folder, record)
    return record


def _require_same(
    existing: RunRecord, record: RunRecord, folder: Path, sources: Sequence[str], name: str | None
) -> None:
    """Raise RunError if the folder holds another record, one of runs that were trained again since, or one
    with another name than the given one."""
    same = existing.run_hash == record.run_hash
    if same and record.members:
        same = (folder / MEMBERS).is_file() and read_json(folder / MEMBERS, "") == _members(sources, folder)
    if not same:
        raise RunError(
            f"{folder}: holds the record of {existing.model} with other files, settings or calibration; score"
            f" that with --run {shlex.quote(str(folder))}, or adopt this into another --folder"
        )
    if name not in (None, existing.model):
        raise RunError(
            f"{folder}: is called {existing.model}, not {name}; leave out --name, or adopt this into"
            " another --folder"
        )


def _leading(runs: Sequence[str], records: Sequence[RunRecord]) -> RunRecord:
    """The first member whose dev set is closed, as the config of an open one would open it; else the first.

    ConfigError if closed dev sets differ.
    """
    closed = [
        pair for pair in zip(runs, records, strict=True) if pair[1].setting("data", "open_dev") is False
    ]
    closed.sort(key=lambda pair: pair[1].held_out is None)  # those first that know which set it was
    first = closed[0][1] if closed else records[0]
    held_out, content = first.setting("data", "dev"), first.held_out and first.held_out.fingerprint
    for run, record in closed:
        same = record.held_out is None or record.held_out.fingerprint == content
        if (dev := record.setting("data", "dev")) != held_out or not same:
            raise ConfigError(
                f"{run}: holds out another dev set ({dev}) than another run ({held_out}); leave one out"
            )
    return first


def _combined(
    runs: Sequence[str],
    name: str | None,
    decode: tuple[str, Mapping[str, Any]] | None,
    calibration: Sequence[str] | None,
) -> RunRecord:
    """A record combined from those of the runs.

    An ensemble sums the parameters, weights and training time of its members; its training articles are those
    of all members, their teachers and their parents. Its config is that of ``_leading``.
    """
    records = [read_trained(run) for run in runs]
    several = len(records) > 1
    if not (several or decode or calibration):
        raise ConfigError(f"{runs[0]}: is a run already; add --decode or --calibration, or score it as it is")
    for run, record in zip(runs, records, strict=True):
        if record.members:
            raise ConfigError(f"{run}: was itself adopted from {', '.join(record.members)}; name those")
    first = _leading(runs, records)
    config = {**first.config, **({"decode": decode[1]} if decode else {})}
    commit, dirty = provenance.commit()
    combined = replace(
        first,
        model=name or label(runs, decode and decode[0]),
        config=config,
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        data=training_data(records),
        scores={},
        rows={},
        references={},
        members=tuple(
            f"{Path(run).resolve().name} ({record.run_hash[:8]})"
            for run, record in zip(runs, records, strict=True)
        ),
        cost=None,
        dev_accesses=(),
    )
    if not several:
        return combined
    weights = [record.weights_bytes for record in records]
    return replace(
        combined,
        members_hash=systems_hash(records),
        precision=" + ".join(sorted({r.precision or r.setting("trainer", "precision") for r in records})),
        parameters=Parameters(total=sum(record.parameters.total or 0 for record in records)),
        seconds=Seconds(fit=round(sum(record.seconds.fit or 0.0 for record in records), 3)),
        weights_bytes=None if None in weights else sum(filter(None, weights)),
        examples_per_second=None,
        peak_memory_mb=None,
        epochs=(),
        best_epoch=None,
    )


def label(runs: Sequence[str], decode: str | None) -> str:
    """Name in tables of an ensemble, by the models of its members, or of a run that is decoded or calibrated
    in another way."""
    models = dict.fromkeys(read_trained(run).model for run in runs)
    changes = [f"ensemble-{len(runs)}"] * (len(runs) > 1) + ([decode] if decode else [])
    return "-".join(["+".join(models), *(changes or ["recalibrated"])])


def _members(runs: Sequence[str], folder: Path) -> list[dict[str, str]]:
    """Where the runs are, relative to ``folder``, and when each was made."""
    places = [os.path.relpath(Path(run).resolve(), folder.resolve()) for run in runs]
    return [
        {"run": place, "created": read_record(run).created} for run, place in zip(runs, places, strict=True)
    ]


def _mean_fits(runs: Sequence[str], predictor: Reader) -> CalibrationFits:
    """The means of the members' null thresholds and temperatures; None if no member has one."""
    members = [read_record(run) for run in runs]
    thresholds = [member.threshold for member in members if member.threshold]
    confidences = [member.confidence for member in members if member.confidence]
    value = predictor.null_threshold  # the mean of all members
    priors, widths = ({getattr(fit, name) for fit in thresholds} for name in ("prior", "width"))
    threshold = confidence = None
    if thresholds:
        threshold = Threshold(
            value=value if math.isfinite(value) else None,
            fitted_on=" and ".join(sorted({fit.fitted_on for fit in thresholds})),
            prior=priors.pop() if len(priors) == 1 else None,
            width=widths.pop() if len(widths) == 1 else None,
        )
    if confidences:
        fitted_on = " and ".join(sorted({fit.fitted_on for fit in confidences}))
        confidence = replace(confidences[0], value=predictor.temperature, fitted_on=fitted_on)
    return CalibrationFits(threshold, confidence)


# Answers -----------------------------------------------------------------------------------------


def adopt(
    questions: QuestionSet,
    answers: Answers,
    folder: Path,
    *,
    name: str,
    seed: int,
    file: str,
    calibration: tuple[QuestionSet, Answers] | None = None,
) -> RunRecord:
    """Write record, rows of questions and predictions of the system ``name``, whose answers are in ``file``.

    With its answers to a ``calibration`` set, null threshold and confidence are fitted as for a trained
    model, and scores are at the same operating points. Without, answers are scored as they are. Raises
    DataError if the two sets share articles or null odds are missing, RunError if the folder holds another
    record.
    """
    convert(SystemName, name, "name")
    config = {"name": ADOPTED, "seed": seed, "model": {"task": "span", "name": name}, "predictions": file}
    hashes = {DEV: questions.fingerprint, "answers": _hash(answers)}
    if calibration is not None:
        require_disjoint(dev=questions, calibration=calibration[0])
        for scored_set, system_answers in ((questions, answers), calibration):
            if system_answers.null_odds is None:
                raise DataError(
                    f"{scored_set.name}: the answers have no null odds, which the fit of the threshold needs;"
                    " add them to the file, or give --na-prob and --calibration-na-prob"
                )
        hashes |= {CALIBRATION: calibration[0].fingerprint, "calibration_answers": _hash(calibration[1])}
    record = new_record(config, hashes, status="ok", data={DEV: _facts(questions, answers)})
    with changing(folder) as existing:
        if existing is not None and existing.run_hash != record.run_hash:
            raise RunError(f"{folder}: holds another record; choose another --folder")
        if calibration is None:
            record = _score_as_given(record, questions, answers, folder)
        else:
            record = _calibrate(record, questions, answers, folder, *calibration)
        write_record(folder, record)
    return record


def _hash(answers: Answers) -> str:
    return json_hash([answers.texts, answers.null_odds])


def _facts(questions: QuestionSet, answers: Answers) -> SplitFacts:
    """Facts of the set, with the numbers of answers that are not in the passage and of missing ones."""
    elsewhere = sum(answers.texts[example.id] not in example.context for example in questions.examples)
    counts = {NO_SPANS: elsewhere, SCORED_EMPTY: answers.missing}
    facts = SplitFacts.of(questions)
    return replace(facts, details={**facts.details, **{key: count for key, count in counts.items() if count}})


def _score_as_given(record: RunRecord, questions: QuestionSet, answers: Answers, folder: Path) -> RunRecord:
    """Score the answers as they are: write rows and predictions, return the record with the scores."""
    odds, texts, protocol = answers.null_odds, answers.texts, questions.protocol
    predictions = [
        Prediction(e.id, _best(e, texts[e.id]), odds[e.id] if odds else math.nan, windows=0)
        for e in questions.examples
    ]
    scored, scores = score_questions(questions, texts), {}
    if protocol == "2.0":
        # The texts stay as they are, whatever the odds, from which average precisions are computed.
        scores[GIVEN] = aggregate(scored, protocol, null_scores=odds, threshold=ALWAYS_ANSWER)
    if protocol == "1.1" or all(texts.values()):  # else spans behind abstentions are unknown
        scores[FORCED] = aggregate(scored, protocol)
    unknown = {"windows", "probability", *(() if odds else ("null_odds",))}
    rows = question_rows(questions, predictions, ALWAYS_ANSWER)
    _warn(questions, predictions, ALWAYS_ANSWER)
    if protocol == "2.0":  # the span behind "no answer" is unknown
        for key in ("span_exact", "span_f1"):
            rows[key] = [
                score if answer.best else math.nan
                for score, answer in zip(rows[key], predictions, strict=True)
            ]
    rows_hash = write_questions(folder, {key: values for key, values in rows.items() if key not in unknown})
    write_json(folder / PREDICTIONS, texts)
    points = {
        point: Point(protocol=protocol, metric_version=METRIC_VERSION, metrics=score.flat())
        for point, score in scores.items()
    }
    threshold = Threshold(value=None, fitted_on="nothing") if protocol == "1.1" else None
    return replace(record, threshold=threshold, scores={DEV: points}, rows={DEV: rows_hash})


def _calibrate(
    record: RunRecord,
    questions: QuestionSet,
    answers: Answers,
    folder: Path,
    calibration: QuestionSet,
    calibration_answers: Answers,
) -> RunRecord:
    """Fit on ``calibration`` and score both sets: write rows and, for ``questions``, predictions; return the
    record with fits and scores."""
    from qa_arch.evaluation import write_scored
    from qa_arch.qa import task

    outputs = {CALIBRATION: ranking(calibration, calibration_answers), DEV: ranking(questions, answers)}
    fits, scores, hashes = task.fit_calibration(calibration, outputs[CALIBRATION]), {}, {}
    fitted = replace(record, **vars(fits))
    for split, scored in ((CALIBRATION, calibration), (DEV, questions)):
        threshold, ranked = threshold_on(scored, fitted.null_threshold), outputs[split]
        _warn(scored, ranked.best_predictions, threshold)
        scores[split], hashes[split] = write_scored(
            folder, split, scored, ranked, threshold, fitted.temperature, without=("windows", "probability")
        )
    facts = replace(_facts(calibration, calibration_answers), titles=tuple(sorted(calibration.titles)))
    return replace(fitted, data={**record.data, CALIBRATION: facts}, scores=scores, rows=hashes)


def _warn(questions: QuestionSet, predictions: Sequence[Prediction], threshold: float) -> None:
    if fact := mass_abstention(questions, predictions, threshold):
        log.warning("%s: %s; do the answers belong to these questions?", questions.name, fact)


def ranking(questions: QuestionSet, answers: Answers) -> Ranking:
    """Rank each answer as a span of score 0 against "no answer", whose score is the null odds.

    With an empty text the system abstains at any threshold, like a model without any span: "no answer" is the
    only candidate, and the null odds are +inf.
    """
    assert answers.null_odds is not None
    best = [_best(example, answers.texts[example.id]) for example in questions.examples]
    odds = np.array([answers.null_odds[example.id] for example in questions.examples], np.float64)
    question = np.flatnonzero([span is not None for span in best])
    spans = [span for span in best if span is not None]
    start, end = (np.array([getattr(s, name) for s in spans], np.int64) for name in ("start", "end"))
    zeros, nothing = np.zeros((2, len(spans)), np.float32), np.zeros(len(odds), np.float32)
    null, windows = (odds.astype(np.float32), nothing), nothing.astype(np.int64)
    ranked = with_null(questions.examples, question, (start, end, *zeros), null, windows, n_best=1)
    texts = zip(ranked.best[question].tolist(), spans, strict=True)
    return replace(
        ranked,
        null_odds=np.where(ranked.best >= 0, odds, np.inf),  # in full precision
        texts={row: span.text for row, span in texts if span.start < 0},
    )


def _best(example: Example, text: str) -> Candidate | None:
    """The answer at a gold position, else at its first occurrence in the passage; None for no answer."""
    places = (gold.start for gold in example.answers if example.context.startswith(text, gold.start))
    start = next(places, example.context.find(text))
    return Candidate(text, start, start + len(text) if start >= 0 else -1, 0.0, 0.0) if text else None

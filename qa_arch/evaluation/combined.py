"""The record of an ensemble of runs, or of a run under another decoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qa_arch.config.identity import config_hash
from qa_arch.errors import ConfigError, RunError
from qa_arch.results import provenance
from qa_arch.results.record import RECORD, read_record
from qa_arch.tasks.base import Predictor
from qa_arch.types.records import (
    CALIBRATION,
    TRAIN,
    Confidence,
    Parameters,
    RunRecord,
    Seconds,
    SplitFacts,
    Threshold,
)


def record_folder(runs: Sequence[str], decode: str | None, folder: str | None) -> Path:
    """Folder of the record: the run's own, or ``folder`` for an ensemble or another decoding."""
    combined = len(runs) > 1 or decode is not None
    if combined == (folder is None):
        raise ConfigError(
            "--record: several runs, or another --decode, need a folder of their own for what comes out"
            if combined
            else "--record: a single run, decoded as its config says, has its scores in its own folder"
        )
    return Path(folder or runs[0])


def combined_record(
    runs: Sequence[str], decode: str | None, settings: Mapping[str, Any] | None, folder: Path
) -> RunRecord:
    """The record in ``folder``, or a new record made of those of ``runs``; it is not written yet.

    ``decode`` names ``settings``, those of another decoding; None leaves the first run's own.
    An ensemble has the parameters, the weights, the training time and the training articles of all members;
    ``with_fits`` adds its threshold and confidence. RunError where the folder holds the record of something
    else.
    """
    records = [read_record(run) for run in runs]
    first = records[0]
    config = {**first.config, "decode": settings or first.config["decode"]}
    named = zip(runs, records, strict=True)
    members = [f"{Path(run).resolve().name} ({record.config_hash[:8]})" for run, record in named]
    labels = [
        first.model,
        *([f"ensemble-{len(runs)}"] if len(runs) > 1 else []),
        *([decode] if decode else []),
    ]
    commit, dirty = provenance.commit()
    made = replace(
        first,
        model="-".join(labels),
        config=config,
        config_hash=config_hash({**config, "members": members}),
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        data=_data(records),
        scores={},
        references={},
        members=tuple(members),
        answerability=None,  # fitted on other null odds than these
        cost=None,
    )
    if len(runs) > 1:
        made = replace(
            made,
            parameters=Parameters(total=sum(record.parameters.total or 0 for record in records)),
            seconds=Seconds(fit=round(sum(record.seconds.fit or 0.0 for record in records), 3)),
            weights_bytes=_sum(record.weights_bytes for record in records),
            examples_per_second=None,
            peak_memory_mb=None,
            epochs=(),
            best_epoch=None,
            threshold=None,
            confidence=None,
        )
    if not (folder / RECORD).is_file():
        return made
    there = read_record(folder)
    if there.config_hash != made.config_hash:
        raise RunError(f"{folder}: holds the record of something else; choose another --record")
    return there


def with_fits(record: RunRecord, runs: Sequence[str], predictor: Predictor) -> RunRecord:
    """``record`` of the ensemble of ``runs`` with the null threshold and the temperature that ``predictor``
    applies; None where no member has such."""
    members = [read_record(run) for run in runs]
    thresholds = [member.threshold for member in members if member.threshold]
    temperatures = [member.confidence for member in members if member.confidence]
    priors = {threshold.prior for threshold in thresholds}
    value = predictor.null_threshold
    return replace(
        record,
        threshold=Threshold(
            value=value if math.isfinite(value) else None,
            fitted_on=_fitted_on(thresholds),
            prior=priors.pop() if len(priors) == 1 else None,
        )
        if thresholds
        else None,
        confidence=replace(temperatures[0], value=predictor.temperature, fitted_on=_fitted_on(temperatures))
        if temperatures
        else None,
    )


def _fitted_on(fits: Sequence[Threshold | Confidence]) -> str:
    return " and ".join(sorted({fit.fitted_on for fit in fits}))


def _sum(values: Iterable[int | None]) -> int | None:
    """None where a value is not known."""
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def _data(records: Sequence[RunRecord]) -> dict[str, SplitFacts]:
    """Train and calibration of the first run, with the titles of all and of their teachers."""
    data = {}
    for split in (TRAIN, CALIBRATION):
        facts = [record.data[split] for record in records if split in record.data]
        if facts:
            titles = {title for about in facts for title in about.titles}
            if split == TRAIN:
                titles.update(title for r in records if r.teacher for title in r.teacher.titles)
            data[split] = replace(facts[0], titles=tuple(sorted(titles)))
    return data

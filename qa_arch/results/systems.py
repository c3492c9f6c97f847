"""Systems: runs that differ only in the seed, and their labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_arch.config.schema import defaults
from qa_arch.errors import RunError
from qa_arch.provenance import NEUTRAL, PLACES
from qa_arch.records import CALIBRATION, TRAIN, Measure, RunRecord, Runs
from qa_arch.results.tables import Table

_IGNORED = {*NEUTRAL, *PLACES, "predictions", "seed"}
"""Settings that do not distinguish systems; data is compared by its fingerprint."""
_IGNORED_SECTIONS = ("logger.", "references.")
WEIGHTS = "encoder.name (hash)"
"""Hash of the initial weights of a pretrained encoder."""
MISSING = ""
"""Value in labels of a setting that a system lacks, such as one of another head."""
MOST_NAMES = 6
"""Maximum number of names that a message lists."""
MOST_SETTINGS = 3
"""Number of settings above which labels show only as many as needed."""


@dataclass(frozen=True)
class System:
    """A labelled system and its runs, one per seed."""

    label: str
    runs: tuple[tuple[Path, RunRecord], ...]

    @property
    def record(self) -> RunRecord:
        return self.runs[0][1]


def find_system(systems: Sequence[System], name: str) -> System:
    """Find a system by its label, or else the only one whose model has that name.

    Raises RunError listing the candidates if there is none, or several of the model.
    """
    matches = [system for system in systems if system.label == name]
    matches = matches or [system for system in systems if system.record.model == name]
    if not matches:
        raise RunError(f"no system is called '{name}' (known: {listed([g.label for g in systems])})")
    if len(matches) > 1:
        labels = listed([system.label for system in matches])
        raise RunError(
            f"'{name}' is the model of {len(matches)} systems ({labels}); name one of them in full"
        )
    return matches[0]


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return "; ".join(names[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")


def settings(record: RunRecord) -> dict[str, Any]:
    """Dotted setting -> value of everything that identifies a system: all but the seed and paths.

    Settings that were added after the record was made have their default.
    """
    flat = whole_config(record)
    prefixes = (*_IGNORED_SECTIONS, *(f"{key}." for key in _IGNORED))
    relevant = {k: value for k, value in flat.items() if k not in _IGNORED and not k.startswith(prefixes)}
    relevant["model"] = record.model
    if flat.get("glove.use") and flat.get("glove.path"):
        relevant["glove.path"] = Path(str(flat["glove.path"])).name  # the vectors, regardless of folder
    if pretrained := record.encoder:  # seeds of a system may start from seeds of another
        relevant["encoder.name"] = f"{pretrained.model} ({pretrained.system[:8]})"
    if record.initial:
        relevant[WEIGHTS] = record.initial.weights[:8]
    if place := flat.get("distillation.teacher"):  # by name and config, or by folder if it was never read
        teacher = record.teacher
        known = f"{teacher.name} ({teacher.run_hash[:8]})" if teacher else Path(str(place)).name
        relevant["distillation.teacher"] = known
    return relevant | fingerprints(record)


def whole_config(record: RunRecord) -> dict[str, Any]:
    """Dotted setting -> value of the whole config, with defaults filled in unless the run is adopted."""
    flat = {**({} if record.adopted else defaults()), **dict(_flatten(record.config))}
    if flat.get("encoder.init") == "random":  # a checkpoint of that name was not loaded
        flat["encoder.name"] = None
    return flat


def fingerprints(record: RunRecord) -> dict[str, str]:
    """Hash prefixes of the sets that a run was trained and calibrated on."""
    hashes = {split: record.fingerprint(split) for split in (TRAIN, CALIBRATION)}
    return {f"data.{split} (hash)": value[:8] for split, value in hashes.items() if value}


def _all_settings(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """Settings of each record; what it lacks, the others have if they agree.

    A run that ended before it read data gets theirs, one without the weights of its encoder those.
    """
    known = [(record, settings(record), fingerprints(record)) for record in records]
    weights: dict[Any, set[str]] = {}
    for _, own, _ in known:
        weights.setdefault(own.get("encoder.name"), set()).update(filter(None, [own.get(WEIGHTS)]))
    for _, own, _ in known:
        if len(same := weights[own.get("encoder.name")]) == 1 and own.get("encoder.init") == "pretrained":
            own.setdefault(WEIGHTS, *same)
    first = next((data for *_, data in known if data), {})
    unread = first if all(data in ({}, first) for *_, data in known) else {}
    return [own | (data or ({} if record.scores else unread)) for record, own, data in known]


def differing(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Setting -> its value in each record, for the settings in which they differ."""
    return _differing(_all_settings(records))


def _differing(per_record: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for own in per_record for key in own)
    columns = {key: [own.get(key) for own in per_record] for key in keys}
    return {key: values for key, values in columns.items() if any(value != values[0] for value in values)}


def group_by_system(runs: Runs) -> list[System]:
    """Systems in order of their first run, labelled by the model and its distinguishing settings."""
    systems: list[tuple[Mapping[str, Any], list[tuple[Path, RunRecord]]]] = []
    for run, own in zip(runs, _all_settings(record for _, record in runs), strict=True):
        known = {key: value for key, value in own.items() if value is not None}  # as in differing
        system = next((system for other, system in systems if other == known), [])
        if not system:
            systems.append((known, system))
        system.append(run)
    members = [system for _, system in systems]
    return [System(label, tuple(system)) for label, system in zip(_labels(members), members, strict=True)]


def two_systems(a: Runs, b: Runs) -> tuple[System, System]:
    """Both sides of a comparison, labelled by the settings that distinguish them, else by their seeds.

    Raises RunError if the runs of a side differ in more than the seed.
    """
    labels = {folder: system.label for system in group_by_system([*a, *b]) for folder, _ in system.runs}
    systems = []
    for name, runs in (("A", a), ("B", b)):
        if unlike := differing([record for _, record in runs]):
            named = list(unlike.items())[:4]
            shown = "; ".join(f"{key}: {' / '.join(map(str, values))}" for key, values in named)
            raise RunError(
                f"{name}: these runs differ in more than the seed ({shown}); they are not averaged, name the"
                " seeds of one system"
            )
        systems.append(System(labels[runs[0][0]], tuple(runs)))
    if systems[0].label == systems[1].label:
        seeds = (",".join(str(record.seed) for _, record in system.runs) for system in systems)
        systems = [
            replace(system, label=f"{system.label} seed={seed}")
            for system, seed in zip(systems, seeds, strict=True)
        ]
    return systems[0], systems[1]


def repeated(system: System, split: str | None = None) -> list[tuple[Path, Path, int]]:
    """Runs that repeat a seed on the same questions: folder, folder of the first, seed.

    The questions are those of ``split``, by default those of every scored set but calibration, which runs
    adopted on several sets share. Repeated runs are no further evidence about their system, and counting them
    would understate its spread.
    """
    firsts: dict[tuple[int, str | None], Path] = {}
    matches = []
    for folder, record in system.runs:
        scored = [split] if split else [key for key in record.scores if key != CALIBRATION] or [CALIBRATION]
        keys = [(record.seed, record.fingerprint(key)) for key in scored if key in record.scores]
        if first := next((firsts[key] for key in keys if key in firsts), None):
            matches.append((folder, first, record.seed))
        else:
            firsts |= dict.fromkeys(keys, folder)
    return matches


def require_distinct_seeds(system: System, split: str | None = None) -> None:
    """Raise RunError if a seed occurs twice on the same questions (``repeated``)."""
    for folder, first, seed in repeated(system, split):
        raise RunError(f"{system.label}: seed {seed} occurs twice ({first}, {folder}); name each run once")


def require_same_measure(runs: Runs, split: str) -> None:
    """Raise RunError unless all runs were scored on the same data, protocol and metric version."""
    seen: dict[Measure, Path] = {}
    for folder, record in runs:
        measure = record.measure(split)
        if measure is None:
            known = ", ".join(record.scores) or "nothing"
            raise RunError(
                f"{folder}: has no scores of {split} (status {record.status}, scored: {known});"
                f" finish or score it first"
            )
        seen.setdefault(measure, folder)
    if len(seen) > 1:
        written = "; ".join(
            f"{folder}: set {of.fingerprint[:8]}, SQuAD {of.protocol}, metric {of.metric_version}"
            for of, folder in seen.items()
        )
        raise RunError(
            f"scores on different sets, protocols or metric versions are not comparable ({written})"
        )


def labelled(table: Table, runs: Runs) -> Table:
    """The table with runs named and grouped by system; references come first."""
    labels = {str(folder): system.label for system in group_by_system(runs) for folder, _ in system.runs}
    order = {label: place for place, label in enumerate(dict.fromkeys(labels.values()))}
    rows = [{**row, "model": labels.get(row.get("run", ""), row["model"])} for row in table.rows]
    return replace(table, rows=sorted(rows, key=lambda row: order.get(row["model"], -1)))


def _labels(members: Sequence[Sequence[tuple[Path, RunRecord]]]) -> list[str]:
    """Model names, each with the settings in which it differs from most systems of the same model.

    If more than ``MOST_SETTINGS`` differ, as when experiments are mixed, only as many as needed to make all
    labels distinct, chosen greedily by how many systems they separate, those that all have first.
    """
    records = [system[0][1] for system in members]
    labels = [record.model for record in records]
    for model in dict.fromkeys(labels):
        same = [index for index, record in enumerate(records) if record.model == model]
        own = _all_settings(records[index] for index in same)
        unlike = chosen = {key: [settings.get(key, MISSING) for settings in own] for key in _differing(own)}
        if len(unlike) > MOST_SETTINGS:
            chosen = {}
            while (count := _distinct_rows(chosen.values())) < _distinct_rows(unlike.values()):
                rows = {key: _distinct_rows([*chosen.values(), values]) for key, values in unlike.items()}
                useful = [key for key in rows if rows[key] > count]
                best = max(useful, key=lambda key: (MISSING not in unlike[key], rows[key]))
                chosen[best] = unlike[best]
        for shown, values in zip(_short_names(chosen), chosen.values(), strict=True):
            usual = [value for value in values if 2 * values.count(value) > len(values)]
            omitted = [MISSING] if MISSING in values else usual
            for index, value, written in zip(same, values, _shortened(values), strict=True):
                labels[index] += "" if value in omitted else f" {shown}={written}"
    return labels


def _distinct_rows(columns: Iterable[Sequence[Any]]) -> int:
    return len(set(zip(*(map(values.index, values) for values in columns), strict=True)))


def _short_names(settings: Iterable[str]) -> list[str]:
    """Last parts of dotted settings, whole if several share it; ``_target_`` is named by its section."""
    whole = [key.removesuffix("._target_") for key in settings]
    short = [key.rpartition(".")[2] for key in whole]
    return [last if short.count(last) == 1 else key for key, last in zip(whole, short, strict=True)]


def _shortened(values: Sequence[Any]) -> list[str]:
    """Values with the last part of paths and classes and six digits of numbers, unless that merges some."""
    short = [f"{v:g}" if isinstance(v, float) else re.split(r"/|^qa_arch\..*\.", str(v))[-1] for v in values]
    whole = [str(value) for value in values]
    return short if len(set(short)) == len(set(whole)) else whole


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            numbered = {str(number): item for number, item in enumerate(value, 1)}
            yield from _flatten(numbered, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

"""Systems: runs that differ in nothing but the seed, and what to call them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_arch.config.identity import NEUTRAL, PLACES
from qa_arch.config.retired import upgrade
from qa_arch.config.schema import defaults
from qa_arch.errors import RunError
from qa_arch.records import CALIBRATION, TRAIN, Measure, RunRecord, Runs
from qa_arch.results.tables import Table

_ASIDE = {*NEUTRAL, *PLACES, "predictions", "seed"}
"""Settings that do not make another system; the data counts by its fingerprint."""
_PREFIXES = ("logger.", "references.")
MOST_NAMES = 6
"""Names that a message lists."""
MOST_SETTINGS = 3
"""Settings in the label of one of two systems."""


@dataclass(frozen=True)
class System:
    """Seeds of one system."""

    label: str
    runs: tuple[tuple[Path, RunRecord], ...]

    @property
    def record(self) -> RunRecord:
        return self.runs[0][1]


def find_system(systems: Sequence[System], name: str) -> System:
    """The system of that label, or else the only one of the model of that name.

    RunError where there is none, or several of the model; it lists those that could be meant.
    """
    matches = [system for system in systems if system.label == name]
    matches = matches or [system for system in systems if system.record.model == name]
    if not matches:
        raise RunError(f"no system is called '{name}' (there are: {listed([g.label for g in systems])})")
    if len(matches) > 1:
        labels = listed([system.label for system in matches])
        raise RunError(
            f"'{name}' is the model of {len(matches)} systems ({labels}); name one of them in full"
        )
    return matches[0]


def listed(names: Sequence[str]) -> str:
    """A few of the names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return "; ".join(names[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")


def settings(record: RunRecord) -> dict[str, Any]:
    """Dotted setting -> value of everything that makes a system what it is, seed and places aside.

    A setting that the record is too old to name has the value that it is read with.
    """
    flat = whole_config(record)
    aside = (*_PREFIXES, *(f"{place}." for place in _ASIDE))
    relevant = {k: value for k, value in flat.items() if k not in _ASIDE and not k.startswith(aside)}
    relevant["model"] = record.model
    if flat.get("glove.use") and flat.get("glove.path"):
        relevant["glove.path"] = Path(str(flat["glove.path"])).name  # which vectors, wherever they lie
    if pretrained := record.encoder:  # seeds of a system may start from seeds of another
        relevant["encoder.name"] = f"{pretrained.model} ({pretrained.system[:8]})"
    if place := flat.get("distillation.teacher"):  # by its name and config; never read, by its place
        teacher = record.teacher
        known = f"{teacher.name} ({teacher.config_hash[:8]})" if teacher else Path(str(place)).name
        relevant["distillation.teacher"] = known
    return relevant | fingerprints(record)


def whole_config(record: RunRecord) -> dict[str, Any]:
    """Dotted setting -> value of the whole config, as ``settings`` reads it; of adopted runs nothing else is
    known."""
    flat = {**({} if record.adopted else defaults()), **dict(_flatten(upgrade(record.config)))}
    if flat.get("encoder.init") == "random":  # a checkpoint of that name was not loaded
        flat["encoder.name"] = None
    return flat


def fingerprints(record: RunRecord) -> dict[str, str]:
    """The first digits of the hashes of what a run was trained and calibrated on."""
    hashes = {split: record.fingerprint(split) for split in (TRAIN, CALIBRATION)}
    return {f"data.{split} (hash)": value[:8] for split, value in hashes.items() if value}


def differing(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Setting -> its value in each record, for the settings in which they differ."""
    of_records = [settings(record) for record in records]
    keys = dict.fromkeys(key for own in of_records for key in own)
    values = {key: [own.get(key) for own in of_records] for key in keys}
    return {key: seen for key, seen in values.items() if any(value != seen[0] for value in seen)}


def group_by_system(runs: Runs) -> list[System]:
    """Systems in the order of their first run, labelled by the model and where it differs from namesakes."""
    systems: dict[str, list[tuple[Path, RunRecord]]] = {}
    for folder, record in runs:
        systems.setdefault(repr(sorted(settings(record).items(), key=str)), []).append((folder, record))
    members = list(systems.values())
    return [System(label, tuple(system)) for label, system in zip(_labels(members), members, strict=True)]


def two_systems(a: Runs, b: Runs) -> tuple[System, System]:
    """Both sides of a comparison, labelled by what sets them apart; by their seeds where nothing does.

    RunError where the runs of a side differ in more than the seed, or a seed comes twice.
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
        distinct_seeds(systems[-1], name)
    if systems[0].label == systems[1].label:
        seeds = (",".join(str(record.seed) for _, record in system.runs) for system in systems)
        systems = [
            replace(system, label=f"{system.label} seed={seed}")
            for system, seed in zip(systems, seeds, strict=True)
        ]
    return systems[0], systems[1]


def repeated(system: System) -> list[tuple[Path, Path, int]]:
    """Scored runs that are another's again: folder, folder of the first, seed.

    They are no further evidence of their system, and counted as such would make its spread too small.
    """
    firsts: dict[int, Path] = {}
    scored = [(folder, record.seed) for folder, record in system.runs if record.scores]
    seen = [(folder, firsts.setdefault(seed, folder), seed) for folder, seed in scored]
    return [(folder, first, seed) for folder, first, seed in seen if folder != first]


def distinct_seeds(system: System, name: str = "") -> None:
    """RunError where a seed comes twice."""
    for folder, first, seed in repeated(system):
        raise RunError(
            f"{name or system.label}: seed {seed} comes twice ({first}, {folder}); name each run once"
        )


def same_measure(runs: Runs, split: str) -> None:
    """RunError where runs were scored on other data, by another protocol or metric version, or not at all."""
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
        raise RunError(f"figures of different sets, protocols or metric versions do not compare ({written})")


def labelled(table: Table, runs: Runs) -> Table:
    """The table with runs named by their system, the seeds of one below each other; references come first."""
    labels = {str(folder): system.label for system in group_by_system(runs) for folder, _ in system.runs}
    order = {label: place for place, label in enumerate(dict.fromkeys(labels.values()))}
    rows = [{**row, "model": labels.get(row.get("run", ""), row["model"])} for row in table.rows]
    return replace(table, rows=sorted(rows, key=lambda row: order.get(row["model"], -1)))


def _labels(members: Sequence[Sequence[tuple[Path, RunRecord]]]) -> list[str]:
    """The models' names, each with the settings in which it differs from most models of the same name.

    Of more than ``MOST_SETTINGS``, as where experiments are mixed, only as many as are needed to make all
    distinct, in turn the one that separates most of them.
    """
    records = [system[0][1] for system in members]
    labels = [record.model for record in records]
    for model in dict.fromkeys(labels):
        same = [index for index, record in enumerate(records) if record.model == model]
        unlike = chosen = differing([records[index] for index in same])
        if len(unlike) > MOST_SETTINGS:
            chosen = {}
            while _different(chosen.values()) < _different(unlike.values()):
                best = max(unlike, key=lambda key: _different([*chosen.values(), unlike[key]]))
                chosen[best] = unlike[best]
        for shown, values in zip(_short_names(chosen), chosen.values(), strict=True):
            usual = [value for value in values if 2 * values.count(value) > len(values)]
            for index, value, written in zip(same, values, _shortened(values), strict=True):
                labels[index] += "" if usual and value == usual[0] else f" {shown}={written}"
    return labels


def _different(columns: Iterable[Sequence[Any]]) -> int:
    """How many rows differ."""
    return len(set(zip(*(map(str, values) for values in columns), strict=True)))


def _short_names(settings: Iterable[str]) -> list[str]:
    """The last parts of dotted settings, of those that share it the whole; of a class its section."""
    whole = [key.removesuffix("._target_") for key in settings]
    short = [key.rpartition(".")[2] for key in whole]
    return [last if short.count(last) == 1 else key for key, last in zip(whole, short, strict=True)]


def _shortened(values: Sequence[Any]) -> list[str]:
    """The values, where they still differ with only the last part of paths and classes and six digits of
    numbers."""
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

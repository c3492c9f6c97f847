"""Systems: runs that differ only in the seed, their labels, and the rows of the questions they answered.

Tests, curves, breakdowns and error tables are computed from these rows.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.config.schema import defaults
from qa_arch.data.files import OnError
from qa_arch.data.sources import open_passages
from qa_arch.errors import DataError, FaultyRecordError, RunError
from qa_arch.metrics.abstention import Bools, Floats, Ints
from qa_arch.provenance import NEUTRAL, PLACES, flat, json_hash
from qa_arch.records import (
    CALIBRATION,
    DEV,
    QUESTIONS,
    TRAIN,
    Measure,
    RunRecord,
    Runs,
    is_squad,
    questions_folder,
    read_questions,
    require_rows,
    score_again,
)
from qa_arch.results.tables import Table, text
from qa_arch.types import QuestionSet, question_word

_IGNORED = {*NEUTRAL, *PLACES, "predictions", "seed"}
"""Settings that do not distinguish systems; data is compared by its fingerprint."""
_IGNORED_SECTIONS = ("logger.", "references.")
WEIGHTS = "encoder.name (hash)"
"""Hash of the initial weights of a pretrained encoder."""
MISSING = ""
"""Value in labels of a setting that a system lacks, such as one of another head."""
MOST_NAMES = 6
"""Maximum number of names that a message lists."""


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
    config = whole_config(record)
    prefixes = (*_IGNORED_SECTIONS, *(f"{key}." for key in _IGNORED))
    relevant = {k: value for k, value in config.items() if k not in _IGNORED and not k.startswith(prefixes)}
    relevant["model"] = record.model
    if config.get("glove.use") and (config.get("glove.name") or config.get("glove.path")):
        name = config.get("glove.name")  # the vectors, regardless of folder
        relevant["glove.path"] = f"glove.{name}.txt" if name else Path(str(config["glove.path"])).name
    if pretrained := record.encoder:  # seeds of a system may start from seeds of another
        relevant["encoder.name"] = f"{pretrained.model} ({pretrained.system[:8]})"
    if (parent := record.parent) and parent.system:
        relevant["init_from"] = parent.system[:8]
    if record.initial:
        relevant[WEIGHTS] = record.initial.weights[:8]
    if place := config.get("distillation.teacher"):  # by name and config, or by folder if it was never read
        teacher = record.teacher
        known = f"{teacher.name} ({teacher.run_hash[:8]})" if teacher else Path(str(place)).name
        relevant["distillation.teacher"] = known
    if record.precision == "int8":  # a graph has the config of the run that it was exported from
        relevant["precision"] = record.precision
    if len(record.members) > 1:  # the config is that of a single one
        relevant["members"] = (record.members_hash or "")[:8] or " + ".join(record.members)
    return relevant | fingerprints(record)


def systems_hash(records: Iterable[RunRecord]) -> str:
    """Joint hash of the systems of several runs, in any order.

    Defaults are left out, so that a new setting changes no hash.
    """
    own = ({k: v for k, v in settings(r).items() if (k, v) not in defaults().items()} for r in records)
    return json_hash(sorted(map(json_hash, own)))


def whole_config(record: RunRecord) -> dict[str, Any]:
    """Dotted setting -> value of the whole config, with defaults filled in unless the run is adopted."""
    config = {**({} if record.adopted else defaults()), **dict(flat(record.config))}
    if config.get("encoder.init") == "random":  # a checkpoint of that name was not loaded
        config["encoder.name"] = None
    return config


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

    Raises RunError if the runs of a side differ in more than the seed, or a run is on both sides.
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
    on_a = {folder.resolve() for folder, _ in a}
    if both := [folder for folder, _ in b if folder.resolve() in on_a]:
        raise RunError(f"{both[0]}: is on both sides of the comparison; name it on one of them")
    if systems[0].label == systems[1].label:
        seeds = (",".join(str(record.seed) for _, record in system.runs) for system in systems)
        systems = [
            replace(system, label=f"{system.label} seed={seed}")
            for system, seed in zip(systems, seeds, strict=True)
        ]
    return systems[0], systems[1]


def repeated(system: System, split: str | None = None) -> list[tuple[Path, Path, str]]:
    """Runs that repeat a seed, or a member of an ensemble, on the same questions: folder, folder of the
    first, and which: ``seed 13``.

    The questions are those of ``split``, by default those of every scored set but calibration, which runs
    adopted on several sets share. Repeated runs are no further evidence about their system, and counting them
    would understate its spread.
    """
    firsts: dict[tuple[str, str | None], Path] = {}
    matches = []
    for folder, record in system.runs:
        scored = [split] if split else [key for key in record.scores if key != CALIBRATION] or [CALIBRATION]
        sets = [record.fingerprint(key) for key in scored if key in record.scores]
        parts = (f"seed {record.seed}", *(f"member {member}" for member in record.members))
        keys = list(product(parts, sets))
        if again := next((key for key in keys if key in firsts), None):
            matches.append((folder, firsts[again], again[0]))
        else:
            firsts |= dict.fromkeys(keys, folder)
    return matches


def require_distinct_seeds(system: System, split: str | None = None) -> None:
    """Raise RunError if a seed or a member occurs twice on the same questions (``repeated``)."""
    for folder, first, part in repeated(system, split):
        raise RunError(f"{system.label}: {part} occurs twice ({first}, {folder}); name only one of the two")


def require_same_measure(runs: Runs, split: str) -> None:
    """Raise RunError unless all runs were scored on the same data, protocol and metric version."""
    measures = {}
    for folder, record in runs:
        measure = record.measure(split)
        if measure is None:
            known = ", ".join(record.scores) or "nothing"
            raise RunError(
                f"{folder}: has no scores of {split} (status {record.status}, scored: {known});"
                f" finish or score it first"
            )
        measures[folder] = measure
    require_one_measure(measures)


def require_one_measure(measures: Mapping[Path, Measure]) -> None:
    """Raise RunError if runs, by folder, were scored in different ways."""
    seen: dict[Measure, Path] = {}
    for folder, measure in measures.items():
        seen.setdefault(measure, folder)
    if len(seen) > 1:
        written = "; ".join(
            f"{folder}: set {of.fingerprint[:8]}, {'SQuAD ' * is_squad(of.protocol)}{of.protocol},"
            f" metric {of.metric_version}"
            for of, folder in seen.items()
        )
        raise RunError(
            f"scores on different sets, protocols or metric versions are not comparable ({written}); compare"
            " one kind at a time"
        )


def labelled(table: Table, systems: Sequence[System]) -> Table:
    """The table with runs named and grouped by system; references come first.

    Their folders have a column where a system has a seed twice.
    """
    labels = {str(folder): system.label for system in systems for folder, _ in system.runs}
    order = {label: place for place, label in enumerate(dict.fromkeys(labels.values()))}
    rows = [{**row, "model": labels.get(row.get("run", ""), row["model"])} for row in table.rows]
    columns = list(table.columns)
    if any(map(repeated, systems)) and "run" not in [column.key for column in columns]:
        columns.insert(1, text("run", "run"))
    return replace(table, columns=columns, rows=sorted(rows, key=lambda row: order.get(row["model"], -1)))


def _labels(members: Sequence[Sequence[tuple[Path, RunRecord]]]) -> list[str]:
    """Model names, each with the fewest settings that tell the system from the others of the same model.

    A value that most of them share, or a setting that some lack, goes without saying.
    """
    records = [system[0][1] for system in members]
    labels = [record.model for record in records]
    for model in dict.fromkeys(labels):
        same = [index for index, record in enumerate(records) if record.model == model]
        own = _all_settings(records[index] for index in same)
        chosen = _separating(
            {key: [settings.get(key, MISSING) for settings in own] for key in _differing(own)}
        )
        unusual: list[list[str]] = [[] for _ in same]
        for shown, values in zip(_short_names(chosen), chosen.values(), strict=True):
            usual = [value for value in values if 2 * values.count(value) > len(values)]
            omitted = [MISSING] if MISSING in values else usual
            for words, value, written in zip(unusual, values, _shortened(values), strict=True):
                words += [] if value in omitted else [f" {shown}={written}"]
        for place, index in enumerate(same):
            words, others = unusual[place], unusual[:place] + unusual[place + 1 :]
            # The fewest of a system's settings that none of the others has together.
            subsets = (part for size in range(1, len(words)) for part in combinations(words, size))
            telling = (part for part in subsets if not any({*part} <= {*other} for other in others))
            labels[index] += "".join(next(telling, words))
    return labels


def _separating(unlike: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Settings that make all systems distinct: chosen greedily by how many systems they separate, those that
    all have first."""
    chosen: dict[str, list[Any]] = {}
    while (count := _distinct_rows(chosen.values())) < _distinct_rows(unlike.values()):
        rows = {key: _distinct_rows([*chosen.values(), values]) for key, values in unlike.items()}
        useful = [key for key in rows if rows[key] > count]
        # Never empty: if no setting divided a group of equal systems, all of them together would not either.
        best = max(useful, key=lambda key: (MISSING not in unlike[key], rows[key]))
        chosen[best] = unlike[best]
    return chosen


def _distinct_rows(columns: Iterable[Sequence[Any]]) -> int:
    # The place of an equal value stands for each: settings may be lists, which no set takes.
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


UNTYPED = "not classified"
"""Class of a question that a file of classes lacks."""
_NEEDED = ["id", "start", "end", "answerable", "abstained", "exact", "f1", "span_exact", "span_f1", "kind"]
_DTYPES = {
    **dict.fromkeys(("answerable", "abstained"), np.bool_),
    **dict.fromkeys(("start", "end", "article"), np.int64),
    **dict.fromkeys(
        ("exact", "f1", "null_odds", "span_exact", "span_f1", "probability", "confidence"), np.float64
    ),
}

_SHARES = frozenset(("exact", "f1", "span_exact", "span_f1", "probability", "confidence"))


@dataclass(frozen=True, eq=False)
class Questions:
    """Columns of the questions of one scored set, shape (N,) each, in the order of the set.

    What an older record or an adopted run lacks is NaN or None.
    """

    folder: Path
    ids: tuple[str, ...]
    kind: tuple[str | None, ...]
    answerable: Bools
    abstained: Bools
    """At the run's own null threshold, as are ``exact`` and ``f1``, 0..1; on SQuAD 1.1 not at all."""
    exact: Floats
    f1: Floats
    start: Ints
    """Character offsets of the best span at any threshold; -1 if there is none."""
    end: Ints
    null_odds: Floats
    """NaN if the system gives none."""
    span_exact: Floats
    """Scores of the best span, 0..1; NaN if an adopted system abstained and its span is unknown."""
    span_f1: Floats
    probability: Floats
    """Softmax of the best span's score over all candidates, "no answer" included."""
    confidence: Floats
    """Calibrated probability that the answer given is right."""
    word: tuple[str, ...] | None = None
    """The question word (``types.question_word``)."""
    article: Ints | None = None
    """Number of the question's article."""

    @classmethod
    def of(cls, folder: Path, columns: Mapping[str, Sequence[Any]]) -> Questions:
        """Convert columns to arrays; TypeError or ValueError for other types and scores outside 0..1."""
        arrays: dict[str, Any] = {
            name: np.asarray(columns[name], dtype) for name, dtype in _DTYPES.items() if name in columns
        }
        for name in _SHARES & arrays.keys():
            fits = (arrays[name] >= 0) & (arrays[name] <= 1 + 1e-6)
            if name not in ("exact", "f1"):  # of an answer given they are known
                fits |= np.isnan(arrays[name])
            if not fits.all():
                raise ValueError(f"{name} is not between 0 and 1")
        for name in ("null_odds", "probability", "confidence"):
            arrays.setdefault(name, np.full(len(columns["id"]), np.nan))
        word = tuple(columns["word"]) if "word" in columns else None
        return cls(folder=folder, ids=tuple(columns["id"]), kind=tuple(columns["kind"]), word=word, **arrays)

    @cached_property
    def kinds(self) -> list[str]:
        """Tag of each question; without one, whether it is answerable."""
        tagged = zip(self.kind, self.answerable.tolist(), strict=True)
        return [tag or ("answerable" if answerable else "not tagged") for tag, answerable in tagged]

    def __len__(self) -> int:
        return len(self.ids)


def question_columns(run: Path, record: RunRecord, split: str = DEV) -> dict[str, list[Any]]:
    """Read the rows of ``split`` as written, for any task; RunError names file, fault and remedy."""
    folder = questions_folder(run, split)
    path = folder / QUESTIONS
    if not path.is_file():
        remedy = score_again(run, record, split)
        raise RunError(f"{path}: missing, so there are no question rows; {remedy}")
    require_rows(run, record, split)
    columns = read_questions(folder)
    rows, expected = len(next(iter(columns.values()), ())), record.facts(split).questions
    if expected is not None and expected != rows:
        raise RunError(
            f"{path}: holds {rows:,} questions where the record says {expected:,};"
            " the two do not belong together, score the run again"
        )
    return columns


def load_questions(run: Path, record: RunRecord, split: str = DEV) -> Questions:
    """Read the rows of ``split`` of a run that finds spans; RunError names file, fault and remedy."""
    path = questions_folder(run, split) / QUESTIONS
    measure = record.measure(split)
    if measure is not None and not is_squad(measure.protocol):
        raise RunError(
            f"{path}: rows of a run of protocol {measure.protocol}, which finds no spans; its scores are in"
            " qa-arch tables"
        )
    columns = question_columns(run, record, split)
    if missing := [name for name in _NEEDED if name not in columns]:
        raise RunError(f"{path}: lacks the columns {', '.join(missing)}; score the run again")
    try:
        return Questions.of(run, columns)
    except (TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{path}: a column has the wrong type ({error}); score the run again") from None


def load_aligned(runs: Runs, split: str) -> list[Questions]:
    """Read the rows of several runs on the same questions; RunError if the ids differ."""
    loaded = [load_questions(folder, record, split) for folder, record in runs]
    require_aligned(loaded, split)
    return loaded


def require_aligned(loaded: Sequence[Questions], split: str) -> None:
    """Raise RunError if the rows are of different questions."""
    for other in loaded[1:]:
        if other.ids != loaded[0].ids:
            shared = len(set(other.ids) & set(loaded[0].ids))
            raise RunError(
                f"{other.folder} and {loaded[0].folder}: {split} rows are of different questions, or in"
                f" another order ({shared:,} shared); score both on the same file"
            )


def stacked(rows: Sequence[Questions], column: str) -> Floats:
    """One column of several runs on the same questions, ``(R, N)``."""
    return np.stack([getattr(run, column) for run in rows])


def open_scored(source: Sequence[str], record: RunRecord, split: str) -> QuestionSet:
    """Open the set on which the run's ``split`` was scored; DataError if ``source`` is another set."""
    facts = record.facts(split)
    try:
        on_error: OnError = "skip" if facts.skipped else "raise"  # as when it was scored
        questions = open_passages(list(source), on_error=on_error, use="scoring", language=facts.language)
    except DataError as error:
        named = record.setting("data", split)
        raise DataError(f"{error}" + (f"; the run's {split} is {named}" if named else "")) from None
    if questions.fingerprint != facts.fingerprint:
        raise DataError(
            f"{' '.join(source)}: not the questions that the runs were scored on ({split} is"
            f" {facts.name or 'unknown'}, {facts.questions or 0:,} questions, hash"
            f" {str(facts.fingerprint)[:12]}; this has {len(questions):,}, hash"
            f" {questions.fingerprint[:12]}); name that file, or leave out --data for output without"
            " texts"
        )
    return questions


def open_to_score(
    source: Sequence[str], on_error: OnError, known: Collection[str | None] | None, **options: Any
) -> QuestionSet:
    """Open a set, with ``on_error="skip"`` if that gives one of the ``known`` fingerprints (None: any), else
    with every question that can be scored, unless some cannot.

    Raises as ``open_passages``. Skipping also leaves out what can be scored but not trained on.
    """
    questions = open_passages(list(source), on_error=on_error, use="scoring", **options)
    if questions.skipped and known is not None and questions.fingerprint not in known:
        with suppress(FaultyRecordError):
            return open_passages(list(source), use="scoring", **options)
    return questions


_MONTH = re.compile(r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b|\bcentury\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(1\d|20)\d\ds?\b")
_QUESTION = (7, 10, 13, 16)
_CONTEXT = (76, 126, 176, 251)
_ANSWER = (2, 3, 4, 6)
"""Lower bounds, in words, of every bin but the first."""
_LEVELS = 40
"""Maximum number of levels of a breakdown."""


@dataclass(frozen=True, eq=False)
class Breakdown:
    """One grouping of questions: ``level[q]`` is an index into ``names``."""

    key: str
    title: str
    names: tuple[str, ...]
    level: npt.NDArray[np.uint8]


def breakdowns(
    rows: Questions, questions: QuestionSet | None, types: Mapping[str, str] | None = None
) -> list[Breakdown]:
    """Breakdowns from the record alone, and from the texts if ``questions`` is given.

    ``types``: question id -> class (``MAIN:sub``) from a classifier.
    """
    answerable = ["yes" if yes else "no" for yes in rows.answerable.tolist()]
    result = [_by_name("answerable", "Answerable", answerable)]
    if any(rows.kind):
        result.append(_by_name("kind", "Kind, as tagged", rows.kinds))
    if types:
        labels = [types.get(id_, UNTYPED) for id_ in rows.ids]
        mains = [label.partition(":")[0] for label in labels]
        result.append(_by_name("class", "Predicted class", mains))
        result.append(_by_name("sub", "Predicted sub class", labels))
    if questions is None:
        return result
    examples = questions.examples
    answers = [example.answers[0].text if example.answers else None for example in examples]
    words = [None if answer is None else len(answer.split()) for answer in answers]
    contexts = {context: len(context.split()) for context in {example.context for example in examples}}
    return [
        *result,
        _by_name("word", "Question word", [question_word(e.question) for e in examples]),
        _by_name("type", "Answer type", ["no answer" if a is None else answer_type(a) for a in answers]),
        _by_bin("question", "Question length, words", _QUESTION, [len(e.question.split()) for e in examples]),
        _by_bin("context", "Passage length, words", _CONTEXT, [contexts[e.context] for e in examples]),
        _by_bin("answer", "Answer length, words", _ANSWER, words),
        _by_name("article", "Article", [e.title for e in examples]),
    ]


def answer_type(text: str) -> str:
    """Classify an answer as date, number, name, clause (6 words or more) or phrase, by its form alone.

    A coarse version of the types of Rajpurkar et al. 2016, Table 2, without a tagger: a name is capitalised
    throughout, except for short words.
    """
    words = text.split()
    if _YEAR.search(text) or (_MONTH.search(text) and any(c.isdigit() for c in text)):
        return "date"
    if any(c.isdigit() for c in text) and len(words) <= 4:
        return "number"
    if len(words) >= 6:
        return "clause"
    long = [word for word in words if len(word) > 3] or words
    return "name" if long and all(word.lstrip("\"'(“‘")[:1].isupper() for word in long) else "phrase"


def _by_name(key: str, title: str, values: Sequence[str]) -> Breakdown:
    """Breakdown with levels by descending frequency, at most ``_LEVELS``: rare ones share the last."""
    unique, inverse, counts = np.unique(
        np.array(values, dtype=object), return_inverse=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")  # ties stay in alphabetical order
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    names = [str(unique[index]) for index in order]
    if len(names) > _LEVELS:
        names, place = [*names[: _LEVELS - 1], "other"], np.minimum(place, _LEVELS - 1)
    return Breakdown(key, title, tuple(names), place[inverse].astype(np.uint8))


def _by_bin(key: str, title: str, begins: Sequence[int], values: Sequence[int | None]) -> Breakdown:
    """Breakdown into ascending bins without empty ones; questions without a value come last."""
    bounds = pairwise((1, *begins))
    names = [str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in bounds]
    names += [f"{begins[-1]}+", "no answer"]
    level = np.array([len(begins) + 1 if v is None else bisect_right(begins, v) for v in values], np.int64)
    used = np.unique(level)
    return Breakdown(key, title, tuple(names[i] for i in used), np.searchsorted(used, level).astype(np.uint8))

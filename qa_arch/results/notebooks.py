"""Runs in Python and in notebooks: a run folder as an object, runs and their questions as data frames.

pandas is imported only when a frame is built, so that commands never wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.data.files import as_list
from qa_arch.errors import RunError
from qa_arch.metrics.significance import Unit
from qa_arch.records import DEV, RECORD, RunRecord, find_runs, is_squad, read_scored, run_named
from qa_arch.results.columns import Scored, row_of, select_columns
from qa_arch.results.compare import comparable, effects_table
from qa_arch.results.effects import MeasureName, samples_of
from qa_arch.results.errors import OUTCOMES, mistakes, scores_table
from qa_arch.results.systems import (
    differing,
    find_system,
    group_by_system,
    load_questions,
    open_scored,
    question_columns,
)
from qa_arch.results.tables import Table

if TYPE_CHECKING:
    from pandas import DataFrame

SCORES = ("exact", "f1", "span_exact", "span_f1")
"""Columns of question rows that records keep as shares of 1."""
Place = str | PathLike[str]
"""A run folder, a folder of runs, or a glob."""


class Run:
    """A run folder with its record, accepted wherever the path of a run is (``qa_arch.load(run)``).

    ``folder`` may be the beginning of a run's name (``Run("bert-")``), if no other run's begins like this.
    Raises RunError if the folder has no readable record.
    """

    folder: Path
    record: RunRecord
    """``run.json``: settings, data, machine, cost and scores."""

    def __init__(self, folder: Place) -> None:
        path = Path(run_named(*as_list([folder], "folder")))
        self.record = read_scored(path)
        self.folder = path.parent if path.name == RECORD else path

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings, by section."""
        return self.record.config

    @cached_property
    def scores(self) -> DataFrame:
        """One row per set and operating point (``("dev", "calibrated")``): null threshold, and the scores by
        their official keys, rates in percent."""
        from pandas import DataFrame

        rows = {
            (split, name): {"threshold": point.threshold, **point.metrics}
            for split, points in self.record.scores.items()
            for name, point in points.items()
        }
        return DataFrame.from_dict(rows, orient="index")

    @cached_property
    def curves(self) -> DataFrame:
        """One row per epoch: losses, seconds, and the scores of the calibration split."""
        from pandas import DataFrame

        frame = DataFrame([{**asdict(epoch), **epoch.metrics} for epoch in self.record.epochs])
        return frame.drop(columns="metrics", errors="ignore").dropna(axis="columns", how="all")

    @cached_property
    def questions(self) -> DataFrame:
        """``questions_of()``: the dev set, without texts."""
        return self.questions_of()

    def questions_of(self, split: str = DEV, data: str | Sequence[str] | None = None) -> DataFrame:
        """One row per question of a scored set, indexed by id: kind, scores in percent, character offsets of
        the best span, null odds, whether the run abstained, confidence, outcome (named as in ``qa-arch
        show``).

        ``data`` is the file, or another source, that the set was read from. It adds the texts, which records
        do not contain: ``title``, ``question``, ``context``, ``gold`` (tuples, empty if there is no answer)
        and ``answer``, the run's answer ("" for no answer). Raises RunError if the run has no such rows,
        DataError if ``data`` is another set.
        """
        from pandas import DataFrame

        frame = DataFrame(question_columns(self.folder, self.record, split)).set_index("id")
        scores = [name for name in SCORES if name in frame]
        frame[scores] = 100 * frame[scores]
        measure = self.record.measure(split)
        if measure is not None and is_squad(measure.protocol):
            judged = mistakes(load_questions(self.folder, self.record, split))
            names = list(OUTCOMES.values())
            frame["outcome"] = [names[outcome] for outcome in judged.outcome]
        if data is None:
            return frame
        questions = open_scored(as_list(data, "data"), self.record, split)
        examples = {example.id: example for example in questions.examples}
        own = [examples[id_] for id_ in frame.index]
        for name in ("title", "question", "context"):
            frame[name] = [getattr(example, name) for example in own]
        frame["gold"] = [tuple(dict.fromkeys(answer.text for answer in example.answers)) for example in own]
        spans = zip(own, frame["start"], frame["end"], frame["abstained"], strict=True)
        frame["answer"] = [  # None for a sequence model's words that are not adjacent
            "" if abstained else example.context[start:end] if start >= 0 else None
            for example, start, end, abstained in spans
        ]
        return frame

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.record.brief})"

    def _repr_html_(self) -> str:
        head = f"<b>{escape(self.record.brief)}</b><br><code>{escape(str(self.folder))}</code>"
        error = f"<pre>{escape(self.record.error)}</pre>" if self.record.error else ""
        scores = scores_table(self.record)
        return f"<div>{head}{error}{scores._repr_html_() if scores.rows else ''}</div>"


def runs(
    folders: Place | Sequence[Place] = "runs", *, split: str | None = None, columns: Sequence[str] = ()
) -> DataFrame:
    """One row per run at or below ``folders`` (globs too), indexed by folder: system, scores, settings.

    ``system`` is equal for runs that differ only in the seed, and ``set`` for those that were scored on the
    same questions: average over the first and compare within the second. The columns are those of
    ``qa-arch tables``, under the keys of ``--columns``, scores in percent; ``columns`` adds some that need
    question rows, such as ``auroc`` and ``ece``. ``split`` defaults to dev, or to calibration for a run that
    was not scored on dev. The settings in which the runs differ follow under their dotted names; columns
    without any value are left out. Raises RunError if there is no run, or none was scored on ``split``,
    ConfigError for an unknown column.
    """
    from pandas import DataFrame

    requested = {column.key for column in select_columns(as_list(columns, "columns"))}
    matches = find_runs(as_list(folders, "folders"))
    known = sorted({name for _, record in matches for name in record.scores})
    if split is not None and split not in known:
        raise RunError(f"split: no run was scored on '{split}' (known: {', '.join(known)})")
    systems = {str(path): system.label for system in group_by_system(matches) for path, _ in system.runs}
    rows = []
    for path, record in matches:
        scored_on = split or record.shown_split
        scored = Scored(record.model, scored_on, record.compared_point(scored_on), record, path)
        measure, name = record.measure(scored_on), record.facts(scored_on).name or scored_on
        scored_set = None if measure is None else f"{name} ({measure.fingerprint[:8]})"
        facts = {"run": str(path), "system": systems[str(path)], "set": scored_set}
        rows.append(facts | row_of(scored, requested))
    frame = DataFrame(rows)
    for setting, values in differing([record for _, record in matches]).items():
        if setting not in frame:  # model is a column already
            frame[setting] = values
    return frame.set_index("run").dropna(axis="columns", how="all")


def effects(
    folders: Place | Sequence[Place],
    baseline: str,
    *,
    split: str = DEV,
    measure: MeasureName = "f1",
    unit: Unit | None = None,
    order: Sequence[str] = (),
    equivalence: float | None = None,
    components: bool = False,
) -> Table:
    """Test every system below ``folders`` against the one called ``baseline``, as ``qa-arch compare`` does.

    Differences in ``measure`` (exact, f1, forced_f1, auroc, aurc) come with 95% intervals and p-values over
    seeds and articles (or questions, if no article is known or ``unit="question"``), corrected for the number
    of systems (Holm 1979); ``order``, ``equivalence`` and ``components`` are those of
    ``results.compare.effects_table``.
    A notebook shows the table; ``.rows`` are its values. Raises RunError for runs that were not scored on the
    same set by the same protocol; a note names unfinished runs, which are left out.
    """
    systems, notes = comparable(find_runs(as_list(folders, "folders")), split)
    table = effects_table(
        samples_of(systems, split, unit),
        find_system(systems, baseline).label,
        measure,
        order=as_list(order, "order"),
        equivalence=equivalence,
        components=components,
    )
    return replace(table, notes=[*table.notes, *notes])

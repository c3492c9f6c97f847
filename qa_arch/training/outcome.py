"""Results of a finished run for its logger: scores, its row of the table, its predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qa_arch.decode.formats import PREDICTIONS
from qa_arch.results.comparison import comparison
from qa_arch.results.record import QUESTIONS, RunRecord, read_questions
from qa_arch.results.render import render
from qa_arch.types.records import DEV, MARGIN_0, NEVER_NULL, ORACLE, Point, is_of_spans
from qa_arch.types.text import QuestionSet

SUMMARY = 20
"""Values in the summary of a run; all of them are in an artifact."""
COMPARED_BY = (
    "exact",
    "f1",
    "HasAns_exact",
    "HasAns_f1",
    "NoAns_exact",
    "NoAns_f1",
    "answerable_precision",
    "answerable_recall",
    "threshold",
)
OTHER_POINTS = (f"{MARGIN_0}/f1", f"{NEVER_NULL}/HasAns_f1", f"{ORACLE}/f1")
COST = ("seconds/fit", "seconds/predict", "parameters", "peak_memory_mb")
COLUMNS = ("id", "kind", "question", "gold", "prediction", "exact", "f1", "null_odds", "article")
"""Of the table of predictions."""


@dataclass(frozen=True)
class Outcome:
    """The record of a finished run, its folder and the dev set."""

    record: RunRecord
    folder: Path
    questions: Any
    """The dev set, of which a set of SQuAD questions has texts to show; None where it was not opened."""

    def scalars(self) -> dict[str, float]:
        """Every score by split and operating point, and what the run cost."""
        cost = {f"seconds/{name}": value for name, value in asdict(self.record.seconds).items()}
        values: dict[str, Any] = {"parameters": self.record.parameters.total, **cost}
        values["peak_memory_mb"] = self.record.peak_memory_mb
        for split, points in self.record.scores.items():
            for name, point in points.items():
                values |= {f"{split}/{name}/{key}": value for key, value in point.flat().items()}
        return {key: value for key, value in values.items() if type(value) in (int, float)}

    def summary(self) -> dict[str, float]:
        """At most ``SUMMARY`` of ``scalars``: scores that runs are compared by, dev first, and the cost."""
        values, record = self.scalars(), self.record
        splits = sorted(record.scores, key=lambda split: split != DEV)
        compared = {split: record.compared_point(split) for split in splits}
        names = {split: f"{split}/{self._name(split, point)}" for split, point in compared.items() if point}
        wanted = [
            key
            for split, name in names.items()
            for key in (
                *(f"{name}/{key}" for key in COMPARED_BY),
                *(f"{split}/{key}" for key in OTHER_POINTS),
            )
        ]
        spans = any(point is not None and is_of_spans(point.protocol) for point in compared.values())
        if not spans:  # few scores, all of them read
            wanted = [key for key in values if key.startswith(tuple(names.values()))]
        shown = [key for key in wanted if key in values][: SUMMARY - len(COST)]
        return {key: values[key] for key in (*shown, *COST) if key in values}

    def _name(self, split: str, point: Point) -> str:
        return next(name for name, known in self.record.scores[split].items() if known is point)

    def tables(self, form: str) -> str:
        """The run's row and those of the heuristics, for each scored set."""
        runs = [(Path(self.folder.name), self.record)]
        return render([comparison(runs, split=split) for split in self.record.scores], form)

    def predictions(self) -> list[list[Any]]:
        """A row of ``COLUMNS`` for each question of dev; none where dev was not opened or has no texts."""
        if not isinstance(self.questions, QuestionSet) or not (self.folder / QUESTIONS).is_file():
            return []
        predicted = json.loads((self.folder / PREDICTIONS).read_text(encoding="utf-8"))
        rows = read_questions(self.folder)
        places = {id_: place for place, id_ in enumerate(rows["id"])}
        table = []
        for example in self.questions.examples:
            scored: Mapping[str, Any] = {name: rows[name][places[example.id]] for name in rows}
            gold = " | ".join(dict.fromkeys(answer.text for answer in example.answers))
            texts = [example.question, gold, predicted[example.id]]
            figures = [float(scored[name]) for name in ("exact", "f1", "null_odds")]
            table.append([example.id, example.kind or "", *texts, *figures, example.title])
        return table

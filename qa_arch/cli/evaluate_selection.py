"""``qa-arch evaluate --run`` for a run that selects answers: see ``evaluate_run``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qa_arch.cli.runs import open_selection
from qa_arch.results.record import write_questions
from qa_arch.types.records import Point, SplitFacts
from qa_arch.types.text import QuestionSet, SelectionSet


@dataclass(frozen=True)
class Found:
    """What scoring a set adds to the record of a run."""

    facts: SplitFacts
    points: dict[str, Point]
    references: dict[str, Point]
    seconds: float


def score(
    task: QuestionSet | SelectionSet, out: Path, args: argparse.Namespace, before: Callable[[], None]
) -> Found:
    """Rank the candidates of every question, write scores of single questions into ``out``."""
    predictor = open_selection(args.run_folder, args)
    from qa_arch.cli.watch import watching
    from qa_arch.predict import selection
    from qa_arch.predict.selection_references import reference_scores

    assert isinstance(task, SelectionSet)
    before()
    begun = time.perf_counter()
    with watching("ranking", "questions") as watch:
        scored = predictor.read(task, watch=watch)
    seconds = time.perf_counter() - begun
    selection.write_selections(out, task, scored)
    write_questions(out, selection.question_columns(task, scored))
    facts = selection.set_facts(task, titles=False)
    return Found(facts, selection.score_points(task, scored), reference_scores(task), seconds)

"""What needs no learning, scored on the same questions: the rows every model must be seen beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qa_arch.config.target import TRUSTED, locate
from qa_arch.metrics.squad import METRIC_VERSION, score
from qa_arch.types.records import Point
from qa_arch.types.text import QuestionSet


def reference_scores(
    settings: Mapping[str, Mapping[str, Any]],
    calibration: QuestionSet | None,
    questions: QuestionSet,
    trusted: Sequence[str] = TRUSTED,
) -> dict[str, Point]:
    """Scores of each heuristic in ``settings``; each is fitted on ``calibration`` first."""
    scores = {}
    for name, section in settings.items():
        arguments = {key: value for key, value in section.items() if key != "_target_"}
        heuristic = locate(section.get("_target_"), trusted)(**arguments)
        if calibration is not None:
            heuristic = heuristic.fit(calibration)
        found = score(questions, heuristic.predict(questions))
        scores[name] = Point(protocol=found.protocol, metric_version=METRIC_VERSION, metrics=found.flat())
    return scores

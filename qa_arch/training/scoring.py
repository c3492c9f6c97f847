"""Reading a split while training: every question once, whatever the number of ranks."""

from __future__ import annotations

import torch.distributed as dist

from qa_arch.decode.answers import Ranking, answers
from qa_arch.decode.readout import Part, Readout
from qa_arch.predict.scoring import fit_null_margin, operating_points
from qa_arch.types.records import CALIBRATED, MARGIN_0, NEVER_NULL
from qa_arch.types.text import QuestionSet


def gather(reading: Readout) -> Ranking:
    """Join what every rank read; each rank gets all of it, so that all decide alike."""
    if dist.is_available() and dist.is_initialized():
        everyone: list[list[Part]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, reading.parts)
        reading.merge(everyone)
    return reading.ranking()


def calibration_metrics(questions: QuestionSet, ranking: Ranking) -> dict[str, float]:
    """EM and F1 (percent) at the margin that fits the split best, at margin 0, and never null."""
    answered = answers(ranking, candidates=False)
    points = operating_points(questions, answered, fit_null_margin(questions, answered))
    spans = points[NEVER_NULL]
    if questions.protocol == "1.1":
        metrics = {"exact": spans.exact, "f1": spans.f1}
    else:
        fitted, plain = points[CALIBRATED], points[MARGIN_0]
        metrics = {"exact": fitted.exact, "f1": fitted.f1, "f1_at_0": plain.f1}
        metrics["spans_f1"] = spans.metric("HasAns_f1")
    return {f"calibration_{name}": value for name, value in metrics.items() if value is not None}

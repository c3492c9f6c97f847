"""After training: the margin is fitted on calibration, dev is scored at it, predictions are written."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from qa_arch.config.schema import Config
from qa_arch.decode import formats
from qa_arch.decode.answers import Ranking, answers
from qa_arch.features.glove import vector_rows
from qa_arch.predict.precision import lower
from qa_arch.predict.reading import read_out
from qa_arch.predict.scoring import fit_null_margin, operating_points, question_rows
from qa_arch.results.questions import questions_folder
from qa_arch.results.record import write_questions
from qa_arch.training.assemble import Parts
from qa_arch.types.records import Point, Threshold
from qa_arch.types.text import Answer, QuestionSet

log = logging.getLogger(__name__)
MUTE = 0.98
"""Share of "no answer" above which a model is taken to have learned nothing else."""


@dataclass(frozen=True)
class Final:
    threshold: Threshold | None
    scores: dict[str, dict[str, Point]]
    seconds: float
    """For reading and decoding dev, or calibration where dev stays closed."""
    references: dict[str, dict[str, Point]] = field(default_factory=dict)
    """By split, then by heuristic: what needs no learning scores on the same questions."""


def score_splits(config: Config, parts: Parts, folder: Path, *, gpu: bool) -> Final:
    """Score calibration, and dev where the config opens it, with the weights that were kept."""
    model = parts.model.to("cuda" if gpu else "cpu")
    lower(model, config.trainer.precision)  # type: ignore[arg-type]  # as ``load`` gives it later
    margin, scores, seconds = 0.0, {}, 0.0
    if "calibration" in parts.sets:
        ranking, seconds = _read(config, parts, "calibration")
        answered = answers(ranking, candidates=False)
        margin = fit_null_margin(parts.sets["calibration"], answered)
        scores["calibration"] = operating_points(parts.sets["calibration"], answered, margin)
        rows = question_rows(parts.sets["calibration"], answered, margin)
        write_questions(questions_folder(folder, "calibration"), rows)
        warn_if_mute("calibration", parts.sets["calibration"], answered, margin)
    if "dev" in parts.sets:
        ranking, seconds = _read(config, parts, "dev")
        answered = answers(ranking, candidates=False)
        scores["dev"] = operating_points(parts.sets["dev"], answered, margin)
        warn_if_mute("dev", parts.sets["dev"], answered, margin)
        formats.write(folder, ranking, margin)
        write_questions(folder, question_rows(parts.sets["dev"], answered, margin))
    fitted_on = "calibration" if "calibration" in parts.sets else "nothing"
    value = margin if math.isfinite(margin) else None
    return Final(Threshold(value=value, fitted_on=fitted_on), scores, seconds)


def warn_if_mute(split: str, questions: QuestionSet, answered: Sequence[Answer], margin: float) -> None:
    """Say so where nearly all answers are "no answer" and the questions' own are not.

    Encoders at times never get off the ground (google-research/albert#135), and half of a balanced
    set is then still scored as right.
    """
    mute = sum(answer.at(margin) is None for answer in answered)
    unanswerable = sum(not example.answerable for example in questions.examples)
    if mute > MUTE * len(answered) and unanswerable <= MUTE * len(questions):
        log.warning(
            "%s: %.1f%% of the predictions are 'no answer', which is right for %.1f%% of the questions: the"
            " model has learned nothing else; try a lower optim.lr, a longer optim.warmup or another seed",
            split,
            100 * mute / len(answered),
            100 * unanswerable / len(questions),
        )


def _read(config: Config, parts: Parts, split: str) -> tuple[Ranking, float]:
    begun = time.perf_counter()
    table = parts.tables[split]
    ranking = read_out(
        parts.model,
        parts.sets[split],
        table,
        config.decode,
        vectors=vector_rows(parts.vectors, table),
        batch_size=config.trainer.eval_batch_size,
        precision=config.trainer.precision,  # type: ignore[arg-type]
    )
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return ranking, time.perf_counter() - begun

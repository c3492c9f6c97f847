"""After training: the margin is fitted on calibration, dev is scored at it, predictions are written."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qa_arch.config.schema import Config
from qa_arch.decode import formats
from qa_arch.decode.answers import Ranking, answers
from qa_arch.predict.reading import read_out
from qa_arch.predict.scoring import fit_null_margin, operating_points, question_rows
from qa_arch.results.record import write_questions
from qa_arch.training.assemble import Parts


@dataclass(frozen=True)
class Final:
    margin: dict[str, Any]
    """``value`` (None: "no answer" is never given) and the split it was ``fitted_on``."""
    scores: dict[str, dict[str, Any]]
    seconds: float
    """For reading and decoding dev, or calibration where dev stays closed."""


def score_splits(config: Config, parts: Parts, folder: Path, *, gpu: bool) -> Final:
    """Score calibration, and dev where the config opens it, with the weights that were kept."""
    parts.model.to("cuda" if gpu else "cpu")
    margin, scores, seconds = 0.0, {}, 0.0
    if "calibration" in parts.sets:
        ranking, seconds = _read(config, parts, "calibration")
        answered = answers(ranking, candidates=False)
        margin = fit_null_margin(parts.sets["calibration"], answered)
        scores["calibration"] = operating_points(parts.sets["calibration"], answered, margin)
    if "dev" in parts.sets:
        ranking, seconds = _read(config, parts, "dev")
        answered = answers(ranking, candidates=False)
        scores["dev"] = operating_points(parts.sets["dev"], answered, margin)
        formats.write(folder, ranking, margin)
        write_questions(folder, question_rows(parts.sets["dev"], answered, margin))
    fitted_on = "calibration" if "calibration" in parts.sets else "nothing"
    value = margin if math.isfinite(margin) else None
    return Final({"value": value, "fitted_on": fitted_on}, scores, seconds)


def _read(config: Config, parts: Parts, split: str) -> tuple[Ranking, float]:
    begun = time.perf_counter()
    table = parts.tables[split]
    ranking = read_out(
        parts.model,
        parts.sets[split],
        table,
        config.decode,
        vectors=None if parts.vectors is None else parts.vectors.rows(table.vocabulary),
        batch_size=config.trainer.eval_batch_size,
        precision=config.trainer.precision,
    )
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return ranking, time.perf_counter() - begun

"""Row name -> function that measures it."""

from __future__ import annotations

from benchmarks import (
    decoding,
    end_to_end,
    gpu,
    growth,
    match_lstm,
    memory,
    prediction,
    preparation,
    scoring,
    startup,
    training,
)
from benchmarks.targets import Measure

MEASURES: dict[str, Measure] = {
    **preparation.ROWS,
    **training.ROWS,
    **decoding.ROWS,
    **scoring.ROWS,
    **match_lstm.ROWS,
    **startup.ROWS,
    **prediction.ROWS,
    **growth.ROWS,
    **memory.ROWS,
    **end_to_end.ROWS,
    **gpu.ROWS,
}

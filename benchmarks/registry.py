"""Which function measures which row, and why the others are not measured by this run."""

from __future__ import annotations

from benchmarks import decoding, gpu, match_lstm, preparation, sampler, scoring, startup, training
from benchmarks.targets import Measure

MEASURES: dict[str, Measure] = {
    **preparation.ROWS,
    **sampler.ROWS,
    **training.ROWS,
    **decoding.ROWS,
    **scoring.ROWS,
    **match_lstm.ROWS,
    **startup.ROWS,
    **gpu.ROWS,
}

_PIPELINE = "no benchmark of it exists yet; the peer needs its own environment with transformers 4.57"
_LONG = "no benchmark of it exists yet; it takes far longer than the rest of the table"
UNMEASURED: dict[str, str] = {
    "prepare-130k": _LONG,
    "predict-fp32": _PIPELINE,
    "predict-bf16": _PIPELINE,
    "predict-int8": f"{_PIPELINE}, and there is no int8 inference yet",
    "demo-first-step": "no benchmark of it exists yet",
    "slope-prepare": _LONG,
    "slope-predict": _LONG,
    "slope-evaluate": _LONG,
    "slope-report": _LONG,
    "memory-flat": _LONG,
    "sweep-overhead": "no benchmark of it exists yet",
}

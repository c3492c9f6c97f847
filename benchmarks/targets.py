"""Rows of the benchmark table with fixed names, their peers and target values. Rows are never dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.timing import Pairs, Timed, median_time


class NotMeasuredError(Exception):
    """Raised with the reason if a row cannot be measured on this machine."""


EMULATED = "this processor only emulates bf16, in several times the time of fp32"


@dataclass(frozen=True, slots=True)
class Target:
    """One row: ``least <= value <= most``; None is no bound."""

    name: str
    what: str
    peer: str
    least: float | None = None
    most: float | None = None
    unit: str = "×"

    @property
    def wanted(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        if self.least is None and self.most is None:
            return "reported"
        sign, bound = ("≥", self.least) if self.least is not None else ("≤", self.most)
        return f"{sign} {bound:g} {self.unit}".strip()

    def reached(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True, slots=True)
class Measurement:
    """``value`` in the target's unit, with the median times (seconds) behind it."""

    value: float
    cpu_value: float | None = None
    """The same from CPU time, which is less sensitive to load."""
    ours: Timed | None = None
    theirs: Timed | None = None
    note: str = ""


Measure = Callable[[bool], Measurement]
"""Function that measures one row, at small sizes if its argument is True. Raises NotMeasuredError."""


def speedup(pairs: Pairs, note: str = "") -> Measurement:
    """Speed relative to the peer."""
    return Measurement(
        1 / pairs.cost(), 1 / pairs.cost("cpu"), median_time(pairs.ours), median_time(pairs.theirs), note
    )


def cost(pairs: Pairs, note: str = "") -> Measurement:
    """Time relative to the peer."""
    return Measurement(
        pairs.cost(), pairs.cost("cpu"), median_time(pairs.ours), median_time(pairs.theirs), note
    )


SCRIPT, PIPELINE = "common script", "transformers 4.57 QA pipeline, its best batch size"
HAYSTACK = "haystack's extractive reader, transformers-haystack 2.0"
LSTM, LINEAR = "nn.LSTM, bidirectional, input 2D", "same encoder, linear head"
PAD, GROWTH = "every window padded to 384, fp32", "1k, 10k, 100k questions"
RECIPE = "common script, its recipe, process"

TARGETS = (
    Target("prepare", "feature preparation, cold, same ids and labels", SCRIPT, least=8),
    Target("prepare-130k", "feature preparation of 130k questions", "-", most=20, unit="s"),
    Target("sampler-tokens", "tokens computed / real tokens, batch 16", "pad to 384: 2.07", most=1.03),
    Target("train-bucketed", "training examples/s, MiniLM, fp32, attention dropout 0", PAD, least=2.4),
    Target("train-bucketed-bf16", "the same under bf16 autocast", PAD, least=3.5),
    Target("decode-grid", "logits to n-best dictionaries (20), same texts and n-best", SCRIPT, least=8),
    Target("decode-floor", "the same", "building the dictionaries only", most=3),
    Target("score-in-process", "scoring, bit-equal", "official script", least=6),
    Target("evaluate-process", "qa-arch evaluate, whole process", "official script, process", most=0.6),
    Target("match-lstm-h150-forward", "match-LSTM, D300, forward of a training step", LSTM, most=1.9),
    Target("match-lstm-h150-both", "match-LSTM, D300, forward + backward", LSTM, most=1.8),
    Target("match-lstm-h384-forward", "match-LSTM, D384, forward of a training step", LSTM, most=1.6),
    Target("match-lstm-h384-both", "match-LSTM, D384, forward + backward", LSTM, most=1.5),
    Target("proposed-step", "proposed model's training step, MiniLM, batch 16, fp32", LINEAR, most=1.25),
    Target("predict-fp32", "bulk prediction, MiniLM, answers/s, fp32", PIPELINE, least=1),
    Target("predict-bf16", "the same in bf16", PIPELINE, least=2.5),
    Target("predict-bf16-avx2", "in bf16 on a processor with AVX2 and no AVX-512", PIPELINE),
    Target("predict-haystack", "bulk prediction, MiniLM, answers/s, fp32", HAYSTACK, least=1),
    Target("predict-onnx-fp32", "the same by ONNX Runtime, fp32", PIPELINE),
    Target("predict-onnx-int8", "the same by ONNX Runtime, int8", PIPELINE, least=1.5),
    Target("predict-floor", "bulk prediction, MiniLM, fp32", "its forward passes only", most=1.15),
    Target("cli-help", "qa-arch --help, whole process", "-", most=0.3, unit="s"),
    Target("demo-first-step", "fresh process to the demo's first training step", "-", most=8, unit="s"),
    Target("cache-first-batch", "warm feature cache to the first batch", "-", most=0.5, unit="s"),
    *(
        Target(f"slope-{part}", f"log-log slope of {part}'s time", GROWTH, most=1.05, unit="")
        for part in ("prepare", "predict", "evaluate", "report")
    ),
    Target("memory-flat", "live memory of predicting 100k questions", "1k questions", most=2, unit="MB more"),
    Target("sweep-overhead", "sweep of one point minus the same train", "-", most=5, unit="s"),
    Target("end-to-end", "train on 1k questions, predict and score 1k, whole process", RECIPE, least=3),
    Target("gpu-match-lstm", "fused match-LSTM kernel, forward + backward", "cuDNN LSTM", most=2),
    Target("gpu-match-lstm-eager", "the same against the eager loop", "eager loop", least=15),
    Target("gpu-proposed-step", "proposed step, bert-base, 384 × 32, bf16", LINEAR, most=1.15),
    Target("gpu-baseline-mfu", "model FLOPs utilisation, baseline training", "arithmetic floor", unit=""),
    Target("gpu-loader", "share of a training step spent waiting for data", "-", unit=""),
)

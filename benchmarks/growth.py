"""Growth of cost with the number of questions, which are generated once and kept in ``.cache/bench``.

A log-log slope of 1 is linear time. Each set is generated as a whole, so any part of it resembles the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import inputs
from benchmarks.rows import CACHE
from benchmarks.small import small_predictor
from benchmarks.targets import Measure, Measurement
from benchmarks.timing import once
from qa_arch.data.answer_files import read_predictions
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.features.windows import prepare
from qa_arch.files import file_hash, write_json
from qa_arch.metrics.squad import score
from qa_arch.records import (
    DEV,
    QUESTIONS,
    RunRecord,
    read_questions,
    read_record,
    write_questions,
    write_record,
)
from qa_arch.results.report import write_report
from qa_arch.types import QuestionSet

DEMO = Path("experiments/demo/records")
SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (200, 600, 2_000)
TRAIN_2_0 = 130_319
"""Size of SQuAD 2.0's training set."""


def generated(count: int) -> Path:
    """A file of ``count`` generated questions."""
    path = CACHE / f"generated-{count}.json"
    if not path.is_file():
        articles = generate(-(-count // 13), inputs.SEED, 1)  # 13 to 15 per article, rarely fewer
        questions = question_set("generated", articles.examples[:count], "2.0")
        if len(questions) < count:
            raise RuntimeError(f"only {len(questions)} of {count} questions were generated")
        write_json(path, write(questions), indent=None)
    return path


@cache
def generated_set(count: int) -> QuestionSet:
    return open_passages(str(generated(count)))


def slope(run: Callable[[int], Any], quick: bool, note: str = "") -> Measurement:
    """Least-squares slope of log time over log size, from the best of two runs per size."""
    sizes = QUICK_SIZES if quick else SIZES
    for size in sizes:
        generated_set(size)  # read before the clock runs
    run(sizes[0])
    best = [math.inf] * len(sizes)
    for _ in range(1 if quick else 2):
        for i, size in enumerate(sizes):
            best[i] = min(best[i], once(partial(run, size)).wall)
    value = float(np.polyfit(np.log(sizes), np.log(best), 1)[0])
    times = ", ".join(f"{size:,}: {seconds:.2f} s" for size, seconds in zip(sizes, best, strict=True))
    return Measurement(value, note=f"{times}{note}")


def prepare_slope(quick: bool) -> Measurement:
    tokenizer = inputs.tokenizer()
    return slope(lambda size: prepare(generated_set(size), tokenizer, segments=True), quick)


def predict_slope(quick: bool) -> Measurement:
    """Read, decode and rank with a tiny encoder, so that everything else dominates."""
    predictor = small_predictor()

    def run(size: int) -> None:
        questions = generated_set(size)
        predictor.rank(questions, table=predictor.table(questions, cache=False))

    return slope(run, quick, "; one layer of width 16")


def evaluate_slope(quick: bool) -> Measurement:
    """From files to scores, as in ``qa-arch evaluate`` after startup."""

    def run(size: int) -> None:
        path = CACHE / f"predictions-{size}.json"
        if not path.is_file():
            write_json(path, {e.id: e.context[:20] for e in generated_set(size).examples})
        score(open_passages(str(generated(size))), read_predictions(str(path)).values)

    return slope(run, quick)


def report_slope(quick: bool) -> Measurement:
    """Write the report of two demo runs whose rows are repeated to the size."""

    def run(size: int) -> None:
        folder = CACHE / f"report-{size}"
        runs = [_enlarged(name, size, folder) for name in ("bert", "proposed")]
        write_report(runs, folder / "report.html")

    return slope(run, quick, "; two runs")


def _enlarged(model: str, size: int, folder: Path) -> tuple[Path, RunRecord]:
    """A demo record enlarged to ``size`` questions, written below ``folder``."""
    (demo,) = DEMO.glob(f"{model}-*")
    record = read_record(demo)
    facts = replace(record.data["dev"], questions=size, fingerprint=f"{size} of the demo's")
    larger = replace(record, data={**record.data, "dev": facts})
    out = folder / model
    if not (out / QUESTIONS).is_file():
        rows = read_questions(demo)
        columns = {name: list(islice(cycle(values), size)) for name, values in rows.items()}
        write_questions(out, columns | {"id": [f"q{i}" for i in range(size)]})
    larger = replace(larger, rows={DEV: file_hash(out / QUESTIONS)})
    write_record(out, larger)
    return out, larger


def prepare_train_2_0(quick: bool) -> Measurement:
    """As many questions as SQuAD 2.0's training set, without a cache."""
    count = 2_000 if quick else TRAIN_2_0
    questions, tokenizer = generated_set(count), inputs.tokenizer()
    started = time.perf_counter()
    table = prepare(questions, tokenizer, segments=True)
    seconds = time.perf_counter() - started
    tokens = int(table.lengths.sum())
    return Measurement(
        seconds, note=f"{count:,} generated questions, {len(table):,} windows, {tokens:,} tokens"
    )


ROWS: dict[str, Measure] = {
    "prepare-130k": prepare_train_2_0,
    "slope-prepare": prepare_slope,
    "slope-predict": predict_slope,
    "slope-evaluate": evaluate_slope,
    "slope-report": report_slope,
}

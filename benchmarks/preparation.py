"""Feature preparation without a cache: from questions to everything a batch needs."""

from __future__ import annotations

import tempfile
import time

import numpy as np

from benchmarks import inputs, peers
from benchmarks.targets import Measure, Measurement, speedup
from benchmarks.timing import alternate
from qa_arch.config.schema import Features
from qa_arch.features.batches import BucketBatchSampler, Collator
from qa_arch.features.cache import windows_of
from qa_arch.features.windows import FeatureTable, assemble, prepare


def compare_with_script(quick: bool) -> Measurement:
    """Both prepare windows and labels in memory, which must be equal."""
    questions, tokenizer = inputs.questions(quick), inputs.tokenizer()
    if differing := differences(inputs.features(quick), peers.prepare(questions.examples, tokenizer)):
        raise RuntimeError(f"{differing} windows differ from the peer's")
    pairs = alternate(
        lambda: prepare(questions, tokenizer, segments=True),
        lambda: peers.prepare(questions.examples, tokenizer),
        3,
        warm=False,  # they have run
    )
    return speedup(pairs, f"{len(questions)} questions, {len(inputs.features(quick))} windows")


def differences(table: FeatureTable, theirs: peers.Prepared) -> int:
    """Number of windows that differ in ids, start or end; all of them if the counts differ."""
    if len(table) != len(theirs.ids):
        return max(len(table), len(theirs.ids))
    expected = np.array(theirs.ids)
    ours = assemble(table, np.arange(len(table)), expected.shape[1]).ids
    same = (ours == expected).all(1) & (table.label_start == theirs.start) & (table.label_end == theirs.end)
    return int((~same).sum())


def cache_to_first_batch(quick: bool) -> Measurement:
    """Read the cached table, plan the epoch and collate its first batch."""
    questions, tokenizer = inputs.questions(quick), inputs.tokenizer()

    def first_batch(folder: str) -> None:
        table = windows_of(questions, tokenizer, Features(384, 128, 64, cache_dir=folder), segments=True)
        Collator(table)(next(iter(BucketBatchSampler(table.lengths, batch_size=16))))

    times = []
    with tempfile.TemporaryDirectory() as folder:
        first_batch(folder)
        for _ in range(5):
            started = time.perf_counter()
            first_batch(folder)
            times.append(time.perf_counter() - started)
    return Measurement(float(np.median(times)), note=f"{len(questions)} questions")


ROWS: dict[str, Measure] = {"prepare": compare_with_script, "cache-first-batch": cache_to_first_batch}

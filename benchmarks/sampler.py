"""How much padding the training sampler leaves."""

from __future__ import annotations

from benchmarks import inputs
from benchmarks.targets import Measure, Measurement
from qa_arch.features.batches import BucketBatchSampler


def tokens_computed(quick: bool) -> Measurement:
    """Tokens of one epoch's batches over real tokens; no time is measured."""
    lengths = inputs.features(quick).lengths
    share = BucketBatchSampler(lengths, batch_size=16, seed=inputs.SEED).pad_share
    padded = 384 * len(lengths) / lengths.sum()
    return Measurement(1 / (1 - share), note=f"{len(lengths)} windows; padded to 384: {padded:.2f}")


ROWS: dict[str, Measure] = {"sampler-tokens": tokens_computed}

"""A model over a feature table: windows sorted by length, in batches, one ranking a question."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn

from qa_arch.config.schema import Decode
from qa_arch.decode.answers import Ranking
from qa_arch.decode.readout import Readout
from qa_arch.features.collate import Collator
from qa_arch.features.sampler import BucketBatchSampler
from qa_arch.features.table import FeatureTable, Longs
from qa_arch.predict.precision import Precision
from qa_arch.types.text import QuestionSet

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def read_out(
    model: nn.Module,
    questions: QuestionSet,
    table: FeatureTable,
    decode: Decode,
    *,
    vectors: Longs | None = None,
    batch_size: int = 32,
    precision: Precision = "fp32",
    watch: Callable[[int, int], None] | None = None,
) -> Ranking:
    """The ranked answers to each question, in order. ``vectors`` maps the table's words to vector rows.

    Under ``bf16`` and ``fp16`` the forward pass runs in autocast; ``precision.lower`` is what makes it fast.
    ``watch(done, all)`` is told the number of windows after each batch. The model is left in the
    mode (training or not) in which it came.
    """
    device = next(model.parameters()).device
    collate = Collator(table, vectors, labels=False)
    batches = BucketBatchSampler(table.lengths, batch_size=batch_size, seed=0, shuffle=False)
    readout = Readout(questions, table, decode)
    was_training = model.training
    model.eval()
    half = HALVES.get(precision)
    done = 0
    with torch.inference_mode(), torch.autocast(device.type, half) if half else nullcontext():
        for rows in batches:
            batch = collate(rows).to(device)
            readout.add(batch.index, model(batch))
            done += len(batch)
            if watch is not None:
                watch(done, len(table))
    model.train(was_training)
    return readout.ranking()

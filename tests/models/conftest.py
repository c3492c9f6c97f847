"""Handmade batches and tiny random encoders: no tokenizer, no collator, no hub."""

from collections.abc import Callable

import pytest
import torch
from families import new_encoder

from qa_arch.nn.encoder import Encoder
from qa_arch.tensors import Batch

QUESTIONS, CONTEXTS = ([3, 2, 1, 4], [9, 4, 6, 1])  # pieces of each window


@pytest.fixture
def tiny_encoder() -> Callable[..., Encoder]:
    def build(family: str = "bert", **options) -> Encoder:
        torch.manual_seed(3)
        sizes = {"layers": 2, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 40}
        return new_encoder(family=family, pad_token_id=0, initializer_range=0.25, **sizes | options)

    return build


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """Windows ``[1] question [2] context [2]``; context words hold two pieces each, question words one."""

    def build(segments: bool = True, rows: slice = slice(None), pad: int = 0) -> Batch:
        torch.manual_seed(4)
        T = max(q + c + 3 for q, c in zip(QUESTIONS, CONTEXTS, strict=True))
        ids = torch.zeros(4, T, dtype=torch.long)
        mask, question, context = (torch.zeros(4, T, dtype=torch.bool) for _ in range(3))
        word, segment = torch.full((4, T), -1), torch.zeros(4, T, dtype=torch.long)
        for b, (q, c) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
            ids[b, : q + c + 3] = torch.randint(5, 50, (q + c + 3,))
            ids[b, 0], ids[b, q + 1], ids[b, q + c + 2] = 1, 2, 2
            mask[b, : q + c + 3] = True
            question[b, 1 : q + 1] = context[b, q + 2 : q + 2 + c] = True
            word[b, 1 : q + 1] = torch.arange(q)
            word[b, q + 2 : q + 2 + c] = 7 + torch.arange(c) // 2
            segment[b, q + 2 : q + c + 3] = 1
        overlap, vector = (ids % 3 == 0) & (question | context), (ids % 6) * (question | context)
        width = int(mask[rows].sum(1).max())

        def cut(x: torch.Tensor, value: int = 0) -> torch.Tensor:
            return torch.nn.functional.pad(x[rows, :width], (0, pad), value=value)

        return Batch(
            index=torch.arange(4)[rows],
            ids=cut(ids),
            mask=cut(mask),
            segments=cut(segment) if segments else None,
            question=cut(question),
            context=cut(context),
            word=cut(word, -1),
            overlap=cut(overlap),
            vector=cut(vector),
        )

    return build

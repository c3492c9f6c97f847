"""Question classification by an LSTM on word vectors (Di Gennaro et al. 2020, arXiv 2001.09330).

Axes: ``B`` questions, ``Q`` words, ``N`` candidates, ``K`` classes, ``d`` width of the word vectors.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from baselines.qa_lstm import pool
from qa_arch.config.check import Range
from qa_arch.nn.features import WordFeatures
from qa_arch.nn.masking import fill, scored
from qa_arch.nn.text_lstm import TextLSTM
from qa_arch.types.tensors import SelectionBatch


class QuestionTypes(nn.Module):
    """(bi)LSTM with output gate, pooling over the words, and a linear layer to ``classes`` logits.

    The candidates of every question are all classes, in order; their words are not used. The classes are the
    sub classes; the predicted main class is that of the best sub class.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "V d"],
        *,
        classes: Annotated[int, Range(2)] = 50,
        hidden: Annotated[int, Range(1)] = 150,
        bidirectional: bool = True,
        pooling: Literal["mean", "max"] = "max",
        train_vectors: bool = False,
        dropout: Annotated[float, Range(0, 1)] = 0.3,
    ) -> None:
        super().__init__()
        self.words = WordFeatures(0, vectors=vectors, train_vectors=train_vectors)
        self.reader = TextLSTM(self.words.out_dim, hidden, output_gate=True, bidirectional=bidirectional)
        self.pooling: Literal["mean", "max"] = pooling
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(hidden, classes)

    def forward(self, batch: SelectionBatch) -> Float[Tensor, "B N"]:
        """Logits of the candidates; -inf for padding."""
        if len(batch.answer) != self.classes.out_features:
            raise ValueError(f"{len(batch.answer)} candidates for {self.classes.out_features} classes")
        words, mask = batch.question, batch.question_mask
        no_tokens = self.words.vectors.new_zeros(*words.shape, 0)  # type: ignore[union-attr]
        states = self.reader(self.dropout(self.words(no_tokens, words, mask)), mask)
        logits = scored(self.classes, self.dropout(pool(states, mask, self.pooling)))
        return fill(torch.gather(logits, 1, batch.candidate), batch.offered, -math.inf)

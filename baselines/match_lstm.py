"""Match-LSTM with Answer Pointer (Wang & Jiang 2016, arXiv:1608.07905), Table 2.3 of the thesis.

Axes: ``B`` windows, ``T`` tokens, ``C`` context words, ``Q`` question words, ``l`` hidden width.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.config.check import Range
from qa_arch.nn.encoder import AnyEncoder
from qa_arch.nn.features import WordFeatures
from qa_arch.nn.heads import span_logits
from qa_arch.nn.masking import put_steps, take
from qa_arch.nn.match_lstm import Kernel, MatchLSTM
from qa_arch.nn.pointer import PointerHead, SequenceHead
from qa_arch.nn.text_lstm import TextLSTM
from qa_arch.tensors import Batch, SpanLogits, StepLogits


class MatchReader(nn.Module):
    """Layers below the pointer: word vectors → LSTM of each text → match-LSTM in both directions.

    Question and passage share an LSTM. ``lstm="paper"`` gives the published parameter counts: no output gate,
    and a bias in every linear map. ``standard`` has the gate and the usual biases. ``bidirectional`` is the
    published "+ b". ``overlap_flag``, which the paper does not have, appends to each word vector whether the
    other text has the word, too. ``dropout`` applies to these inputs, ``pointer_dropout`` to the pointer's.
    """

    def __init__(
        self,
        encoder: AnyEncoder,
        vectors: Float[Tensor, "V d"] | None,
        *,
        lstm: Literal["paper", "standard"],
        bidirectional: bool,
        hidden: int,
        dropout: float,
        pointer_dropout: float,
        kernel: Kernel,
        overlap_flag: bool = False,
    ) -> None:
        super().__init__()
        self.all_biases = lstm == "paper"
        self.encoder = encoder
        self.features = WordFeatures(encoder.out_dim, vectors=vectors, overlap_flag=overlap_flag)
        self.dropout = nn.Dropout(dropout)
        self.preprocess = TextLSTM(
            self.features.out_dim, hidden, output_gate=lstm == "standard", bidirectional=bidirectional
        )
        self.match = MatchLSTM(hidden, hidden, all_biases=self.all_biases, kernel=kernel)
        self.pointer_dropout = nn.Dropout(pointer_dropout)

    def matched(self, batch: Batch) -> tuple[Float[Tensor, "B C M"], Bool[Tensor, "B C"]]:
        """H^r without its row of zeros, and the mask of the context words."""
        tokens = self.encoder(batch.ids, batch.mask, batch.segments)
        tokens = self.dropout(self.features(tokens, batch.vector, batch.overlap))
        context, context_mask = take(tokens, batch.context)
        question, question_mask = take(tokens, batch.question)
        context = self.preprocess(context, context_mask)
        question = self.preprocess(question, question_mask)
        return self.pointer_dropout(self.match(context, question, context_mask, question_mask)), context_mask


class MatchLSTMBoundary(MatchReader):
    """Boundary model: the pointer chooses the first word and, given it, the last.

    ``sentinel`` appends a row of zeros to H^r as "no answer", for SQuAD 2.0; it has no parameters.
    ``bidirectional_pointer`` is the published "Bi-Ans-Ptr": a second pointer chooses the end first, and the
    scores of the two are averaged.
    """

    def __init__(
        self,
        encoder: AnyEncoder,
        *,
        vectors: Float[Tensor, "V d"] | None = None,
        lstm: Literal["paper", "standard"] = "paper",
        bidirectional: bool = False,
        bidirectional_pointer: bool = False,
        sentinel: bool = True,
        overlap_flag: bool = False,
        hidden: Annotated[int, Range(1)] = 150,  # as published
        dropout: Annotated[float, Range(0, 1)] = 0.4,
        pointer_dropout: Annotated[float, Range(0, 1)] = 0.2,
        kernel: Kernel = "auto",
    ) -> None:
        super().__init__(
            encoder,
            vectors,
            lstm=lstm,
            bidirectional=bidirectional,
            hidden=hidden,
            dropout=dropout,
            pointer_dropout=pointer_dropout,
            kernel=kernel,
            overlap_flag=overlap_flag,
        )
        self.pointer = PointerHead(
            self.match.out_dim,
            hidden,
            sentinel=sentinel,
            bidirectional=bidirectional_pointer,
            all_biases=self.all_biases,
        )

    def forward(self, batch: Batch) -> SpanLogits:
        return span_logits(self.pointer(*self.matched(batch)), batch.context, batch.context)


class MatchLSTMSequence(MatchReader):
    """Sequence model: the pointer chooses one word at a time until it chooses to stop.

    ``limit`` is the maximum number of words in an answer; an answer of that length needs no stop.
    """

    def __init__(
        self,
        encoder: AnyEncoder,
        *,
        vectors: Float[Tensor, "V d"] | None = None,
        lstm: Literal["paper", "standard"] = "paper",
        bidirectional: bool = False,
        limit: Annotated[int, Range(1)] = 20,
        hidden: Annotated[int, Range(1)] = 150,  # as published
        dropout: Annotated[float, Range(0, 1)] = 0.4,
        pointer_dropout: Annotated[float, Range(0, 1)] = 0.2,
        kernel: Kernel = "auto",
    ) -> None:
        super().__init__(
            encoder,
            vectors,
            lstm=lstm,
            bidirectional=bidirectional,
            hidden=hidden,
            dropout=dropout,
            pointer_dropout=pointer_dropout,
            kernel=kernel,
        )
        self.pointer = SequenceHead(self.match.out_dim, hidden, steps=limit, all_biases=self.all_biases)

    def forward(self, batch: Batch) -> StepLogits:
        token, stop = self.pointer(*self.matched(batch))
        return StepLogits(put_steps(token, batch.context, -math.inf), stop)

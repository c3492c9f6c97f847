"""The proposed model: encoder, word vectors, match-LSTM, answer pointer, no-answer."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from qa_arch.config.check import Range
from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import AnyEncoder
from qa_arch.nn.features import WordFeatures
from qa_arch.nn.heads import AttentionPooling, SpanHead, Verifier, span_logits
from qa_arch.nn.masking import (
    at_least_float32,
    first_pieces,
    last_pieces,
    linear_fp32,
    masked_softmax,
    pool_words,
    take,
)
from qa_arch.nn.match_lstm import Kernel, MatchLSTM
from qa_arch.nn.pointer import PointerHead
from qa_arch.nn.text_lstm import SuBiLSTM
from qa_arch.tensors import Batch, SpanLogits

INITIAL_GAIN = 10.0
"""Initial gain of the cosine: a unit repeated in the question has e^10 times the weight of "nothing"."""
MAX_GAIN = 100.0
"""Largest gain (Radford et al. 2021, section 2.5)."""
EPSILON = 1e-4
"""Added to squared norms, so that a zero row (an unknown word) has cosine 0 and a bounded gradient."""


class BertMatch(nn.Module):
    """Encoder → word features → match-LSTM of the context over the question → span head.

    Axes: ``B`` windows, ``T`` tokens, ``C`` context and ``Q`` question units, ``D`` width of tokens with
    their features, ``M`` of match states, ``S`` of the head's rows, ``l`` hidden.

    ``head`` defaults to the boundary answer pointer of width ``hidden``. ``match=False`` leaves
    out the match-LSTM; ``residual`` concatenates the encoder's context to the match
    states for the head; ``suffix_prefix`` > 0 re-reads question and context with a SuBiLSTM of that window
    before matching; ``matching="words"`` pools the pieces of each word after the encoder, and scores its
    first piece as start, its last as end.

    No-answer: ``no_answer=sentinel`` adds a row that the head may choose, with the encoder's [CLS] in its
    residual part and zeros in its match part, or with ``sentinel="pooled"`` the match states pooled by
    attention, Σ_i softmax(w^T h^r)_i h^r_i: "nothing" then depends on how the passage matched. ``verifier``
    is a separate head with a neutral null slot (``qa_arch.nn.heads.neutral_null``); ``both`` adds their
    scores. An encoder without [CLS] (words) gets zeros in its place, and no verifier.

    ``alignment`` changes the context before matching (``Alignment``). Its module and that of the pooled
    sentinel are created last, so that for a given seed all others start from the same weights with and
    without them.

    Raises ConfigError for an option of a part that the model does not have.
    """

    def __init__(
        self,
        encoder: AnyEncoder,
        *,
        vectors: Float[Tensor, "V d"] | None = None,
        train_vectors: bool = False,
        overlap_flag: bool = False,
        suffix_prefix: Annotated[int, Range(0)] = 0,
        matching: Literal["pieces", "words"] = "pieces",
        match: bool = True,
        residual: bool = True,
        head: SpanHead | None = None,
        kernel: Kernel = "auto",
        no_answer: Literal["sentinel", "verifier", "both"] = "sentinel",
        verifier_weight: float = 1.0,
        hidden: Annotated[int, Range(1)] = 150,
        dropout: Annotated[float, Range(0, 1)] = 0.2,
        alignment: bool = False,
        sentinel: Literal["cls", "pooled"] = "cls",
    ) -> None:
        super().__init__()
        if not match and alignment:
            raise ConfigError("model.alignment: needs matching; set model.match=true")
        if verifier_weight != 1 and no_answer == "sentinel":
            raise ConfigError(
                "model.verifier_weight: there is no verifier; set model.no_answer=verifier or both"
            )
        if not encoder.has_cls and no_answer != "sentinel":
            raise ConfigError(f"model.no_answer: {no_answer} needs an encoder with [CLS]; use sentinel")
        self.words = matching == "words"
        self.encoder = encoder
        self.features = WordFeatures(
            encoder.out_dim, vectors=vectors, train_vectors=train_vectors, overlap_flag=overlap_flag
        )
        width = self.features.out_dim
        self.reread = SuBiLSTM(width, hidden, window=suffix_prefix) if suffix_prefix else None
        match_dim = self.reread.out_dim if self.reread else width
        self.match = MatchLSTM(match_dim, hidden, kernel=kernel) if match else None
        matched = self.match or self.reread
        self.matched_dim = matched.out_dim if matched else 0
        self.residual = residual or matched is None
        # Without matching the pointer has nothing but the features to read.
        head_dim = self.matched_dim + (width if self.residual else 0)
        build_head = head or partial(PointerHead, hidden=hidden)
        self.pointer = build_head(in_dim=head_dim, sentinel=no_answer != "verifier")
        has_verifier = no_answer != "sentinel"
        self.verifier = Verifier(head_dim, width, hidden, dropout=dropout) if has_verifier else None
        self.verifier_weight = verifier_weight
        self.dropout = nn.Dropout(dropout)
        if sentinel == "pooled" and (no_answer == "verifier" or not self.matched_dim):
            raise ConfigError(
                "model.sentinel: pooled needs match states and a sentinel; set model.match=true and"
                " model.no_answer=sentinel or both"
            )
        self.align = Alignment(match_dim, hidden) if alignment else None
        self.pool = AttentionPooling(self.matched_dim) if sentinel == "pooled" else None

    def forward(self, batch: Batch) -> SpanLogits:
        tokens = self.encoder(batch.ids, batch.mask, batch.segments)
        tokens = self.dropout(self.features(tokens, batch.vector, batch.overlap))
        # Word encoders have no [CLS]: their sentinel is a row of zeros.
        cls = tokens[:, 0] if self.encoder.has_cls else torch.zeros_like(tokens[:, 0])
        context, context_mask = self._units(tokens, batch.context, batch.word)
        states = context
        if self.reread or self.match:
            question, question_mask = self._units(tokens, batch.question, batch.word)
            if self.reread:
                states, question = self.reread(states, context_mask), self.reread(question, question_mask)
            if self.align:
                states = self.align(states, question, context_mask, question_mask)
            if self.match:
                states = self.match(states, question, context_mask, question_mask)
        rows, nothing = self._with_residual(states, context, cls, context_mask)
        scores = self.pointer(rows, context_mask, nothing)
        verifier = self.verifier(rows, context_mask, cls) if self.verifier else None
        starts = ends = batch.context  # the token of each unit at which an answer may start or end
        if self.words:
            starts, ends = first_pieces(starts, batch.word), last_pieces(ends, batch.word)
        return span_logits(scores, starts, ends, verifier, self.verifier_weight)

    def _units(
        self, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"], word: Int[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B K D"], Bool[Tensor, "B K"]]:
        """Pieces or words of one text, moved to the front of their row, and their mask."""
        return pool_words(tokens, mask, word) if self.words else take(tokens, mask)

    def _with_residual(
        self,
        states: Float[Tensor, "B C M"],
        context: Float[Tensor, "B C D"],
        cls: Float[Tensor, "B D"],
        mask: Bool[Tensor, "B C"],
    ) -> tuple[Float[Tensor, "B C S"], Float[Tensor, "B S"] | None]:
        """Rows for the head, and the row of "nothing" of the same width."""
        if self.matched_dim == 0:
            return context, cls
        states = self.dropout(states)
        pooled = self.pool(states, mask) if self.pool else None
        if not self.residual:
            return states, pooled
        rows = torch.cat([states, context.to(states.dtype)], dim=-1)  # match states are fp32 under autocast
        matched = torch.zeros_like(states[:, 0]) if pooled is None else pooled
        return rows, torch.cat([matched, cls.to(states.dtype)], dim=-1)


class Alignment(nn.Module):
    """Compares each context unit p_i with its counterpart in the question, and adds the result to it::

        s_ij = g cos(W p_i, W q_j),   s_i0 = 0          0: the question word "nothing", a row of zeros
        m_i  = Σ_j softmax(s_i)_j q_j
        p_i' = p_i + V relu(U [m_i; p_i ∘ m_i; |p_i - m_i|] + u)

    The comparison is that of Tai et al. 2015 (eq. 15) and Wang & Jiang 2017 ("SubMult+NN") with the residual
    of He et al. 2016. W is initialised orthonormal: a random projection nearly preserves cosines, so equal
    words attend to each other from the first step, which additive attention has to learn. With MiniLM and
    GloVe, 49% of the variance of the initial scores is interaction of the two texts, versus 6% in the match
    attention (``benchmarks/first_attention.py``). The gain g is learned as its logarithm (Radford et al.
    2021), because the spread of the cosines depends on the encoder. V starts near zero: the model starts as
    the one without alignment, and every parameter has a gradient.
    """

    def __init__(self, in_dim: int, hidden: int) -> None:
        super().__init__()
        self.project = nn.Linear(in_dim, hidden, bias=False)  # W
        self.log_gain = nn.Parameter(torch.tensor([math.log(INITIAL_GAIN)]))  # log g
        self.compare = nn.Linear(3 * in_dim, hidden)  # U, u
        self.change = nn.Linear(hidden, in_dim, bias=False)  # V
        nn.init.orthogonal_(self.project.weight)
        nn.init.xavier_uniform_(self.compare.weight)
        nn.init.zeros_(self.compare.bias)
        nn.init.xavier_uniform_(self.change.weight, gain=0.01)

    def forward(
        self,
        context: Float[Tensor, "B C D"],
        question: Float[Tensor, "B Q D"],
        context_mask: Bool[Tensor, "B C"],
        question_mask: Bool[Tensor, "B Q"],
    ) -> Float[Tensor, "B C D"]:
        """The aligned context; padding is unchanged."""
        weights = self.attention(context, question, question_mask)[..., :-1].to(context.dtype)
        aligned = weights @ question
        comparison = torch.cat([aligned, context * aligned, (context - aligned).abs()], dim=-1)
        change = self.change(torch.relu(self.compare(comparison)))
        return context + change.masked_fill(~context_mask[..., None], 0.0)

    def attention(
        self,
        context: Float[Tensor, "B C D"],
        question: Float[Tensor, "B Q D"],
        question_mask: Bool[Tensor, "B Q"],
    ) -> Float[Tensor, "B C N"]:
        """softmax(s_i) over the N = Q + 1 question units, "nothing" last; at least in fp32."""
        gain = self.log_gain.exp().clamp(max=MAX_GAIN)
        with torch.autocast(context.device.type, enabled=False):
            cosines = self._directions(context) @ self._directions(question).mT
        return masked_softmax(pad(gain * cosines, (0, 1)), pad(question_mask, (0, 1), value=True)[:, None])

    def _directions(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K l"]:
        """W x, rows normalised to length 1."""
        projected = linear_fp32(self.project, at_least_float32(x))
        return projected * (projected.square().sum(-1, keepdim=True) + EPSILON).rsqrt()

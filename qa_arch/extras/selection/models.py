"""Models for answer selection and question classification, and their losses.

QA-LSTM (Tan, dos Santos, Xiang & Zhou 2015, arXiv 1511.04108): a shared biLSTM encodes question and answer,
each is pooled to a vector, and the score is their cosine. Classification: an LSTM on word vectors
(Di Gennaro et al. 2020, arXiv 2001.09330). Axes: ``B`` questions, ``A`` distinct answers, ``N`` candidates,
``P`` pairs to score, ``T`` texts, ``K`` words, ``H`` width of the states, ``D`` width of a representation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qa_arch.config.check import Range
from qa_arch.errors import ConfigError
from qa_arch.extras.selection.features import SelectionBatch
from qa_arch.nn.features import WordFeatures
from qa_arch.nn.masking import at_least_float32, fill, linear_fp32, masked_softmax, reverse
from qa_arch.nn.text_lstm import SuBiLSTM, TextLSTM

Pooling = Literal["head_tail", "mean", "max"]


class QaLstm(nn.Module):
    """Models A to I: biLSTM, optional attention on the answer, optional convolution, pooling, cosine.

    ``encoder="subilstm"`` encodes suffixes and prefixes of at most ``window`` words in both directions
    instead (Brahma 2018). ``filters=0`` means no convolution. Raises ConfigError for ``head_tail`` pooling
    with a convolution, whose output has no head and tail.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "V d"],
        *,
        hidden: Annotated[int, Range(1)] = 141,
        encoder: Literal["bilstm", "subilstm"] = "bilstm",
        window: Annotated[int, Range(1)] = 10,
        pooling: Pooling = "max",
        filters: Annotated[int, Range(0)] = 0,
        filter_width: Annotated[int, Range(1)] = 2,
        attention: bool = False,
        train_vectors: bool = True,
        dropout: Annotated[float, Range(0, 1)] = 0.0,
    ) -> None:
        super().__init__()
        if filters and pooling == "head_tail":
            raise ConfigError("model.pooling: filters have no head and tail; use max or mean, or filters=0")
        self.words = WordFeatures(0, vectors=vectors, train_vectors=train_vectors)
        if encoder == "bilstm":
            self.reader: nn.Module = BiLSTM(self.words.out_dim, hidden)
        else:
            self.reader = SuBiLSTM(self.words.out_dim, hidden, window=window)
        width = 2 * hidden
        self.pooling: Pooling = pooling
        self.convolution = Convolution(width, filters, filter_width) if filters else None
        # With a convolution, the attention query is the mean of the question states.
        self.query_pooling: Pooling = "mean" if filters else pooling
        self.attention = AnswerAttention(width) if attention else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: SelectionBatch) -> Float[Tensor, "B N"]:
        """Cosine of each candidate with its question; -inf at padding."""
        question_states = self.hidden_states(batch.question, batch.question_mask)
        answer_states = self.hidden_states(batch.answer, batch.answer_mask)
        # (P,) each, row by row: ``masked_scatter`` puts the scores back in this order.
        pair, answer = batch.offered.nonzero()[:, 0], batch.candidate[batch.offered]
        question = self.represent(question_states, batch.question_mask)[pair]
        if self.attention is None:
            candidate = self.represent(answer_states, batch.answer_mask)[answer]
        else:
            mask = batch.answer_mask[answer]
            query = pool(question_states, batch.question_mask, self.query_pooling)
            candidate = self.represent(self.attention(answer_states, query, answer, pair, mask), mask)
        scores = nn.functional.cosine_similarity(at_least_float32(question), at_least_float32(candidate))
        return scores.new_full(batch.offered.shape, -math.inf).masked_scatter(batch.offered, scores)

    def hidden_states(self, words: Int[Tensor, "T K"], mask: Bool[Tensor, "T K"]) -> Float[Tensor, "T K H"]:
        """Hidden states of the words."""
        no_tokens = self.words.vectors.new_zeros(*words.shape, 0)  # type: ignore[union-attr]
        return self.reader(self.words(no_tokens, words, mask), mask)

    def represent(self, states: Float[Tensor, "T K H"], mask: Bool[Tensor, "T K"]) -> Float[Tensor, "T D"]:
        """One vector per text: optional convolution, pooling, dropout."""
        if self.convolution is not None:
            states = self.convolution(states, mask)
        return self.dropout(pool(states, mask, self.pooling))


class BiLSTM(nn.Module):
    """Bidirectional LSTM over the real words; zeros at padding.

    Two LSTMs on padded texts, the second reading them reversed: a training step takes half the time of a
    packed bidirectional LSTM on a CPU. They run in at least fp32; many CPUs have no LSTM in bf16.
    """

    def __init__(self, in_dim: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(in_dim, hidden, batch_first=True)
        self.backwards = nn.LSTM(in_dim, hidden, batch_first=True)

    def forward(self, x: Float[Tensor, "T K D"], mask: Bool[Tensor, "T K"]) -> Float[Tensor, "T K H"]:
        """``mask`` is a prefix mask."""
        x = at_least_float32(x)
        with torch.autocast(x.device.type, enabled=False):
            ahead = self.forwards(x)[0]
            behind = reverse(self.backwards(reverse(x, mask))[0], mask)
        return torch.cat([ahead, behind], dim=-1).masked_fill(~mask[..., None], 0.0)


class Convolution(nn.Module):
    """tanh of ``filters`` linear maps of the states of ``filter_width`` consecutive words.

    Computed at real words only, about half of a padded batch.
    """

    def __init__(self, width: int, filters: int, filter_width: int) -> None:
        super().__init__()
        self.filter_width = filter_width
        self.linear = nn.Linear(width * filter_width, filters)

    def forward(self, states: Float[Tensor, "T K H"], mask: Bool[Tensor, "T K"]) -> Float[Tensor, "T K D"]:
        """``states`` are zero where ``mask`` is False, and so is the result."""
        padded = nn.functional.pad(states, (0, 0, 0, self.filter_width - 1))  # every word begins an n-gram
        windows = padded.unfold(1, self.filter_width, 1)[mask].flatten(1)
        ngrams = torch.tanh(self.linear(windows))
        return ngrams.new_zeros(*mask.shape, ngrams.shape[1]).index_put(mask.nonzero(as_tuple=True), ngrams)


class AnswerAttention(nn.Module):
    """Attention of the question over the states of an answer (eqs. 9 to 11):

    m(t) = tanh(W_am h(t) + W_qm o_q);  s(t) ∝ exp(w_ms · m(t));  h~(t) = s(t) h(t)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(
        self,
        states: Float[Tensor, "A K H"],
        question: Float[Tensor, "B D"],
        answer: Int[Tensor, "P"],
        pair: Int[Tensor, "P"],
        mask: Bool[Tensor, "P K"],
    ) -> Float[Tensor, "P K H"]:
        """Pair p is answer ``answer[p]`` with question ``pair[p]``; ``mask`` is the mask of its answer."""
        # Mapped before they are selected: many pairs share an answer, or a question.
        matched = torch.tanh(self.key(states)[answer] + self.query(question)[pair][:, None])
        weight = masked_softmax(at_least_float32(self.score(matched)[..., 0]), mask)
        return states[answer] * weight[..., None].to(states.dtype)


def pool(states: Float[Tensor, "T K H"], mask: Bool[Tensor, "T K"], how: Pooling) -> Float[Tensor, "T H"]:
    """Pool the states of each text to a vector; zeros for a text without words.

    ``head_tail`` joins the forward state of the last word and the backward state of the first.
    """
    if how == "head_tail":
        forward, backward = states.chunk(2, dim=-1)
        last = (mask.sum(1) - 1).clamp(min=0)
        tail = forward.gather(1, last[:, None, None].expand(-1, 1, forward.shape[-1]))[:, 0]
        return torch.cat([tail, backward[:, 0]], dim=-1)
    if how == "mean":
        return fill(states, mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    # Not amax: its backward pass splits the gradient between ties, comparing every word again.
    top = fill(states, mask[..., None]).max(1).values
    return fill(top, top > -math.inf, 0.0)


class QuestionTypes(nn.Module):
    """(bi)LSTM with output gate, pooling over the words, and a linear layer to ``classes`` logits.

    The candidates of every question are all sub classes, in order; their words are not used. The predicted
    main class is that of the best sub class.
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
        """Logits of the candidates; -inf at padding."""
        if len(batch.answer) != self.classes.out_features:
            raise ValueError(f"{len(batch.answer)} candidates for {self.classes.out_features} classes")
        words, mask = batch.question, batch.question_mask
        no_tokens = self.words.vectors.new_zeros(*words.shape, 0)  # type: ignore[union-attr]
        states = self.reader(self.dropout(self.words(no_tokens, words, mask)), mask)
        logits = linear_fp32(self.classes, self.dropout(pool(states, mask, self.pooling)))
        return fill(torch.gather(logits, 1, batch.candidate), batch.offered, -math.inf)


@dataclass(frozen=True)
class HingeLoss:
    """max(0, margin - right + wrong) of the best right and the best wrong candidate (Tan et al. 2015, eq. 6).

    Only the hardest of the sampled wrong answers counts. 0 if a question lacks either kind.
    """

    margin: Annotated[float, Range(0, above=True)]
    tasks: ClassVar = ("selection", "classification")

    def __call__(self, scores: Float[Tensor, "B N"], labels: SelectionBatch) -> Float[Tensor, "B"]:
        right, offered = labels.right, labels.offered
        lowest = torch.finfo(torch.float32).min
        best = scores.float().masked_fill(~right, lowest).amax(1)
        hardest = scores.float().masked_fill(right | ~offered, lowest).amax(1)
        both = right.any(1) & (offered & ~right).any(1)
        return torch.where(both, self.margin - best + hardest, 0.0).clamp(min=0)


@dataclass(frozen=True)
class ChoiceLoss:
    """Negative log of the total probability of the right candidates in a softmax over all.

    0 if a question has no right candidate.
    """

    tasks: ClassVar = ("selection", "classification")

    def __call__(self, scores: Float[Tensor, "B N"], labels: SelectionBatch) -> Float[Tensor, "B"]:
        lowest = torch.finfo(torch.float32).min
        total, right = (
            scores.float().masked_fill(~mask, lowest).logsumexp(1) for mask in (labels.offered, labels.right)
        )
        return torch.where(labels.right.any(1), total - right, 0.0)

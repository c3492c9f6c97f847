"""The whole match-LSTM model on a small case, against Wang & Jiang's equations written out word by word."""

import math
from dataclasses import replace

import pytest
import torch
from nn.test_match_lstm import reference as match
from torch import Tensor

from baselines.match_lstm import MatchLSTMBoundary, MatchLSTMSequence
from qa_arch.nn.encoder import WordEncoder
from qa_arch.tensors import Batch

QUESTIONS, CONTEXTS = [2, 3, 1], [5, 2, 4]  # words of each window
D, L = 4, 3


def vectors() -> Tensor:
    torch.manual_seed(5)
    return torch.cat([torch.zeros(1, D), torch.randn(9, D)]).double()


def make(model_class=MatchLSTMBoundary, **options):
    torch.manual_seed(6)
    model = model_class(WordEncoder(0), vectors=vectors().float(), hidden=L, **options).double().eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.6)
    return model


def batch() -> Batch:
    """``question [SEP] context``; row 0 of the vectors, an unknown word, is among the words."""
    T = max(q + c + 1 for q, c in zip(QUESTIONS, CONTEXTS, strict=True))
    question, context = (torch.zeros(3, T, dtype=torch.bool) for _ in range(2))
    for b, (q, c) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
        question[b, :q] = True
        context[b, q + 1 : q + 1 + c] = True
    torch.manual_seed(7)
    vector = torch.randint(0, 10, (3, T)) * (question | context)
    assert (vector[question | context] == 0).any()
    return Batch(
        index=torch.arange(3),
        ids=torch.ones(3, T, dtype=torch.long),
        mask=torch.arange(T) < torch.tensor([[q + c + 1] for q, c in zip(QUESTIONS, CONTEXTS, strict=True)]),
        segments=None,
        question=question,
        context=context,
        word=torch.zeros(3, T, dtype=torch.long),
        overlap=torch.arange(T) % 2 == torch.zeros(3, 1),
        vector=vector,
    )


def read(reader, text: list[Tensor]) -> list[Tensor]:
    """Equation 1; without an output gate if there are three blocks of weights."""
    h = c = torch.zeros(L, dtype=torch.float64)
    states = []
    for x in text:
        gates = (reader.input(x) + reader.state(h)).split(L)
        c = torch.sigmoid(gates[1]) * c + torch.sigmoid(gates[0]) * torch.tanh(gates[2])
        h = torch.tanh(c) * (torch.sigmoid(gates[3]) if len(gates) == 4 else 1)
        states.append(h)
    return states


def preprocess(lstm, text: list[Tensor]) -> list[Tensor]:
    ahead = read(lstm.ahead, text)
    if lstm.back is None:
        return ahead
    return [a + b for a, b in zip(ahead, read(lstm.back, text[::-1])[::-1], strict=True)]


def matched(model, question: Tensor, context: Tensor) -> Tensor:
    """H^r with its row of zeros, from the word vectors."""
    question_states, passage = (preprocess(model.preprocess, list(text)) for text in (question, context))
    ahead, back = (
        match(model.match, passage, question_states),
        match(model.match, passage[::-1], question_states)[::-1],
    )
    rows = [torch.cat(pair) for pair in zip(ahead, back, strict=True)]
    return torch.stack([*rows, torch.zeros(2 * L, dtype=torch.float64)])


def pointer_scores(pointer, memory: Tensor, steps: int) -> list[Tensor]:
    """Equations 7 to 10: the scores of each step over the rows of ``memory``."""
    h = c = torch.zeros(1, L, dtype=torch.float64)
    scores = []
    for _ in range(steps):
        F = torch.tanh(pointer.memory(memory) + pointer.state(h))
        scores.append(pointer.score(F)[:, 0])
        h, c = pointer.cell(scores[-1].softmax(0)[None] @ memory, (h, c))
    return scores


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sentinel": False},
        {"lstm": "standard"},
        {"bidirectional": True, "bidirectional_pointer": True},
        {"overlap_flag": True},
    ],
    ids=str,
)
def test_scores_follow_the_equations(options):
    model, inputs = make(**options), batch()
    logits = model(inputs)
    table = vectors().float().double()
    for b, (q, c) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
        words = table[inputs.vector[b]]
        if "overlap_flag" in options:
            words = torch.cat([words, inputs.overlap[b, :, None]], dim=-1)
        memory = matched(model, words[:q], words[q + 1 : q + 1 + c])
        memory = memory if options.get("sentinel", True) else memory[:-1]
        start, end = pointer_scores(model.pointer.forwards, memory, 2)
        if options.get("bidirectional_pointer"):
            end_first, start_second = pointer_scores(model.pointer.backwards, memory, 2)
            start, end = (start + start_second) / 2, (end + end_first) / 2
        inside = slice(q + 1, q + 1 + c)
        torch.testing.assert_close(logits.start[b, inside], start[:c], rtol=0, atol=1e-10)
        torch.testing.assert_close(logits.end[b, inside], end[:c], rtol=0, atol=1e-10)
        null = (start[c], end[c]) if options.get("sentinel", True) else (start.logsumexp(0), end.logsumexp(0))
        torch.testing.assert_close(logits.null[b], sum(null), rtol=0, atol=1e-10)
        assert (logits.start[b] > -math.inf).sum() == c


@pytest.mark.parametrize("options", [{"limit": 4}, {"limit": 1}, {"limit": 3, "lstm": "standard"}], ids=str)
def test_each_step_of_the_sequence_model_follows_the_equations(options):
    model, inputs = make(MatchLSTMSequence, **options), batch()
    logits = model(inputs)
    assert logits.token.shape == (3, options["limit"], inputs.ids.shape[1])
    for b, (q, c) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
        words = vectors().float().double()[inputs.vector[b]]
        memory = matched(model, words[:q], words[q + 1 : q + 1 + c])
        steps = torch.stack(pointer_scores(model.pointer.pointer, memory, options["limit"]))
        inside = slice(q + 1, q + 1 + c)
        torch.testing.assert_close(logits.token[b, :, inside], steps[:, :c], rtol=0, atol=1e-10)
        torch.testing.assert_close(logits.stop[b], steps[:, c], rtol=0, atol=1e-10)
        assert (logits.token[b] > -math.inf).sum() == c * options["limit"]


def test_special_tokens_and_padding_have_no_effect():
    model, inputs = make(), batch()
    outside = ~(inputs.question | inputs.context)
    changed = replace(
        inputs, vector=inputs.vector.masked_fill(outside, 7), ids=inputs.ids.masked_fill(outside, 9)
    )
    for actual, expected in zip(
        (model(changed).start, model(changed).null), (model(inputs).start, model(inputs).null), strict=True
    ):
        assert torch.equal(actual, expected)


def test_dropout_applies_to_words_and_pointer_input():
    model, inputs = make(dropout=0.0, pointer_dropout=0.0).train(), batch()
    assert torch.equal(model(inputs).start, model(inputs).start)
    for part in ("dropout", "pointer_dropout"):
        model = make(**{"dropout": 0.0, "pointer_dropout": 0.0, part: 0.5}).train()
        assert not torch.equal(model(inputs).start, model(inputs).start)

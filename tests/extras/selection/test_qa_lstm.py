"""The QA-LSTM family against the equations, one text at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from qa_arch.errors import ConfigError
from qa_arch.extras.selection.models import AnswerAttention, BiLSTM, Convolution, QaLstm, pool
from qa_arch.types.tensors import SelectionBatch

MASK = torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
NO = -math.inf


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def states(width: int = 6) -> torch.Tensor:
    return torch.randn(3, 5, width, dtype=torch.float64).masked_fill(~MASK[..., None], 0.0)


def test_the_reader_is_one_lstm_in_each_direction():
    reader = BiLSTM(4, 3).double()
    x = states(4)
    result = reader(x + 9 * ~MASK[..., None], MASK)
    for row, length in enumerate(MASK.sum(1).tolist()):
        ahead = reader.forwards(x[row : row + 1, :length])[0][0]
        behind = reader.backwards(x[row : row + 1, :length].flip(1))[0][0].flip(0)
        torch.testing.assert_close(result[row, :length], torch.cat([ahead, behind], -1))
        assert not result[row, length:].any()


@pytest.mark.parametrize("how", ["head_tail", "mean", "max", "max3"])
def test_pooling(how):
    h = states() - 2  # padding must not win a maximum
    pooled = pool(h.masked_fill(~MASK[..., None], 0.0), MASK, how[:9].rstrip("3"), 3 if how == "max3" else 1)
    for row, length in enumerate(MASK.sum(1).tolist()):
        real = h[row, :length]
        if how == "head_tail":
            expected = torch.cat([real[-1, :3], real[0, 3:]])
        elif how == "mean":
            expected = real.mean(0)
        else:
            k = 3 if how == "max3" else 1
            top = real.sort(0, descending=True).values[:k]
            expected = torch.cat([top, torch.zeros(k - len(top), 6)]).flatten()
        torch.testing.assert_close(pooled[row], expected)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_filter_sees_a_word_and_those_behind_it(width):
    convolution = Convolution(6, 4, width).double()
    h = states()
    grams = convolution(h, MASK)
    weight = convolution.linear.weight.view(4, 6, width)
    for row, length in enumerate(MASK.sum(1).tolist()):
        for at in range(length):
            total = convolution.linear.bias.clone()
            for step in range(min(width, length - at)):
                total += weight[:, :, step] @ h[row, at + step]
            torch.testing.assert_close(grams[row, at], total.tanh())
    assert not grams[~MASK].any()


def test_attention_weighs_each_state_by_what_the_question_asks():
    attention = AnswerAttention(6, 4).double()
    h, question = states(), torch.randn(2, 4, dtype=torch.float64)
    answer, pair = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1])
    weighted = attention(h, question, answer, pair, MASK[answer])
    for p, (a, q) in enumerate(zip(answer.tolist(), pair.tolist(), strict=True)):
        length = int(MASK[a].sum())
        m = torch.tanh(h[a, :length] @ attention.key.weight.T + question[q] @ attention.query.weight.T)
        s = (m @ attention.score.weight[0]).softmax(0)
        torch.testing.assert_close(weighted[p, :length], h[a, :length] * s[:, None], rtol=1e-6, atol=1e-6)
        assert not weighted[p, length:].any()


WORDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [8, 0, 0, 0, 0]])


def new_model(**settings) -> QaLstm:
    vectors = torch.randn(9, 4)
    vectors[0] = 0
    return QaLstm(vectors, hidden=3, **settings).eval()


def pairs(label: list[int] | None = None) -> SelectionBatch:
    """Texts 0 and 1 as questions, with one and with three of the texts as candidates."""
    return SelectionBatch(
        index=torch.arange(2),
        question=WORDS[:2],
        question_mask=MASK[:2],
        answer=WORDS,
        answer_mask=MASK,
        candidate=torch.tensor([[2, 0, 0], [1, 2, 0]]),
        offered=torch.tensor([[True, False, False], [True, True, True]]),
        right=torch.zeros(2, 3, dtype=torch.bool),
        weight=torch.ones(2),
        label=None if label is None else torch.tensor(label),
    )


def test_the_class_of_a_question_is_read_behind_each_of_its_words_and_of_no_answer():
    model = new_model(type_dim=2, classes=4)
    assert new_model().types is None, "off by default"
    vectors, classes = model.words.vectors, model.types.weight
    with torch.inference_mode():
        assert torch.equal(model(pairs([3, 1])), model(pairs([0, 0]))), "it begins as if there were none"
        classes[1:] = torch.randn(4, 2)
        x = torch.cat([vectors[WORDS[:2]], classes[torch.tensor([3, 1])][:, None].expand(2, 5, 2)], -1)
        question_states = model.reader(x, MASK[:2])
        answer_states = model.reader(torch.cat([vectors[WORDS], torch.zeros(3, 5, 2)], -1), MASK)
        scores = model(pairs([3, 1]))
        questions, answers = model.represent(question_states, MASK[:2]), model.represent(answer_states, MASK)
        for row, place, answer in [(0, 0, 2), (1, 0, 1), (1, 1, 2), (1, 2, 0)]:
            torch.testing.assert_close(
                scores[row, place], cosine_similarity(questions[row], answers[answer], 0)
            )
        assert torch.equal(model(pairs()), model(pairs([0, 0])))
        assert not torch.equal(model(pairs([3, 1]))[1], model(pairs([3, 2]))[1])


def test_the_score_is_the_cosine_of_the_pair():
    model = new_model()
    with torch.inference_mode():
        scores = model(pairs())
        vectors = [
            model.represent(model.read(w[m][None], m[m][None]), m[m][None])
            for w, m in zip(WORDS, MASK, strict=True)
        ]
    for row, place, answer in [(0, 0, 2), (1, 0, 1), (1, 1, 2), (1, 2, 0)]:
        torch.testing.assert_close(scores[row, place], cosine_similarity(vectors[row], vectors[answer])[0])
    assert scores[0, 1:].tolist() == [NO, NO]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "mean", "k": 2}, "only pooling=max keeps the 2 largest"),
        ({"pooling": "head_tail", "k": 2}, "only pooling=max"),
        ({"pooling": "head_tail", "filters": 4}, "no head and tail"),
    ],
    ids=str,
)
def test_settings_that_would_do_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        new_model(**settings)

"""The QA-LSTM family against its equations, text by text, and the losses by hand."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from qa_arch.extras.selection.features import SelectionBatch
from qa_arch.extras.selection.models import (
    AnswerAttention,
    BiLSTM,
    ChoiceLoss,
    Convolution,
    HingeLoss,
    QaLstm,
    pool,
)

MASK = torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
NEG_INF = -math.inf


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def states(width: int = 6) -> torch.Tensor:
    return torch.randn(3, 5, width, dtype=torch.float64).masked_fill(~MASK[..., None], 0.0)


def test_bilstm_is_one_lstm_per_direction():
    reader = BiLSTM(4, 3).double()
    x = states(4)
    result = reader(x + 9 * ~MASK[..., None], MASK)
    for row, length in enumerate(MASK.sum(1).tolist()):
        forward = reader.forwards(x[row : row + 1, :length])[0][0]
        backward = reader.backwards(x[row : row + 1, :length].flip(1))[0][0].flip(0)
        torch.testing.assert_close(result[row, :length], torch.cat([forward, backward], -1))
        assert not result[row, length:].any()


@pytest.mark.parametrize("how", ["head_tail", "mean", "max"])
def test_pooling(how):
    h = states() - 2  # padding must not win a maximum
    pooled = pool(h.masked_fill(~MASK[..., None], 0.0), MASK, how)
    for row, length in enumerate(MASK.sum(1).tolist()):
        real = h[row, :length]
        ends = torch.cat([real[-1, :3], real[0, 3:]])
        expected = {"head_tail": ends, "mean": real.mean(0), "max": real.amax(0)}[how]
        torch.testing.assert_close(pooled[row], expected)


@pytest.mark.parametrize("width", [1, 3])
def test_filter_covers_a_word_and_its_successors(width):
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


def test_attention_weights_depend_on_the_question():
    attention = AnswerAttention(6).double()
    h, question = states(), torch.randn(2, 6, dtype=torch.float64)
    answer, pair = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1])
    weighted = attention(h, question, answer, pair, MASK[answer])
    for p, (a, q) in enumerate(zip(answer.tolist(), pair.tolist(), strict=True)):
        length = int(MASK[a].sum())
        m = torch.tanh(h[a, :length] @ attention.key.weight.T + question[q] @ attention.query.weight.T)
        s = (m @ attention.score.weight[0]).softmax(0)
        torch.testing.assert_close(weighted[p, :length], h[a, :length] * s[:, None], rtol=1e-6, atol=1e-6)
        assert not weighted[p, length:].any()


TEXTS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [8, 0, 0, 0, 0]])


def new_model(**settings) -> QaLstm:
    vectors = torch.randn(9, 4)
    vectors[0] = 0
    return QaLstm(vectors, hidden=3, **settings).eval()


def make_batch(
    index: list[int], candidate: list[list[int]], offered: list[list[int]], right: list[list[int]]
) -> SelectionBatch:
    """Texts ``index`` as questions, with the texts ``candidate`` as candidates."""
    rows = torch.tensor(index)
    return SelectionBatch(
        **{"index": rows, "question": TEXTS[rows], "question_mask": MASK[rows]},
        **{"answer": TEXTS, "answer_mask": MASK, "candidate": torch.tensor(candidate)},
        **{"offered": torch.tensor(offered).bool(), "right": torch.tensor(right).bool()},
        weight=torch.ones(len(rows)),
    )


def two_questions() -> SelectionBatch:
    return make_batch([0, 1], [[2, 0, 0], [1, 2, 0]], [[1, 0, 0], [1, 1, 1]], [[0, 0, 0]] * 2)


def batch_of(right: list[int], offered: list[int]) -> SelectionBatch:
    """One question; the losses read only ``right`` and ``offered``."""
    return make_batch([0], [[0] * len(right)], [offered], [right])


def test_score_is_the_cosine_of_the_pair():
    model = new_model()
    with torch.inference_mode():
        scores = model(two_questions())
        vectors = [
            model.represent(model.hidden_states(w[m][None], m[m][None]), m[m][None])
            for w, m in zip(TEXTS, MASK, strict=True)
        ]
    for row, index, answer in [(0, 0, 2), (1, 0, 1), (1, 1, 2), (1, 2, 0)]:
        torch.testing.assert_close(scores[row, index], cosine_similarity(vectors[row], vectors[answer])[0])
    assert scores[0, 1:].tolist() == [NEG_INF, NEG_INF]


@pytest.mark.parametrize(
    ("scores", "right", "offered", "loss"),
    [
        ([0.5, 0.1, 0.4], [1, 0, 0], [1, 1, 1], 0.1),  # 0.2 - 0.5 + 0.4: the hardest wrong answer
        ([0.1, 0.6, 0.3], [1, 0, 1], [1, 1, 1], 0.5),  # the best right answer
        ([0.1, 0.6, NEG_INF], [1, 0, 0], [1, 1, 0], 0.7),
        ([0.1, NEG_INF, NEG_INF], [1, 0, 0], [1, 0, 0], 0.0),  # no wrong answer is offered
        ([0.1, 0.3, NEG_INF], [0, 0, 0], [1, 1, 0], 0.0),  # no right answer is offered
    ],
)
def test_hinge_loss_by_hand(scores, right, offered, loss):
    logits = torch.tensor([scores], requires_grad=True)
    losses = HingeLoss(0.2)(logits, batch_of(right, offered))
    assert losses.tolist() == [pytest.approx(loss)]
    losses.sum().backward()
    assert torch.isfinite(logits.grad).all()
    if loss:
        assert logits.grad.abs().sum() == 2


@pytest.mark.parametrize(
    ("right", "offered", "share"),
    [
        ([0, 1, 0, 0], [1, 1, 1, 1], 3 / 10),
        ([0, 1, 0, 0], [1, 1, 1, 0], 3 / 6),
        ([1, 1, 0, 0], [1, 1, 1, 1], 4 / 10),  # the probabilities of two right answers add up
        ([0, 0, 0, 0], [1, 1, 1, 1], 1),  # without a right answer the loss is 0
    ],
)
def test_choice_loss_is_a_softmax_over_the_offered(right, offered, share):
    scores = torch.tensor([[1.0, 3.0, 2.0, 4.0]]).log().masked_fill(torch.tensor([offered]) == 0, NEG_INF)
    scores.requires_grad_()
    actual = ChoiceLoss()(scores, batch_of(right, offered))
    assert actual.item() == pytest.approx(-math.log(share), abs=1e-6)
    actual.sum().backward()
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("encoder", ["bilstm", "subilstm"])
def test_recurrence_in_bf16_runs_in_fp32(encoder):
    """Under autocast a CPU without bf16 instructions has no LSTM at all."""
    model, batch = new_model(encoder=encoder), two_questions()
    with torch.autocast("cpu", torch.bfloat16):
        half = model.hidden_states(batch.question, batch.question_mask)
    assert torch.equal(half, model.hidden_states(batch.question, batch.question_mask))

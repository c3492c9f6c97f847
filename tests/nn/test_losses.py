"""Losses against values worked out by hand, and their selection by config."""

import math
import re
from dataclasses import replace

import pytest
import torch

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.errors import ConfigError
from qa_arch.nn.losses import SequenceLoss, SpanLoss, TwinLoss, build_loss
from qa_arch.tensors import SpanLabels, SpanLogits, StepLogits

NEG_INF = -math.inf
span_loss, sequence_loss = SpanLoss(), SequenceLoss()


def labels(start: int, end: int, answerable: bool = True, weight: float = 1.0) -> SpanLabels:
    return SpanLabels(
        torch.tensor([start]), torch.tensor([end]), torch.tensor([answerable]), torch.tensor([weight])
    )


# exp of the start scores: 2 + 6 on tokens 1 and 2, 2 for the null; of the end scores: 1 + 3, 4.
LOGITS = SpanLogits(
    start=torch.tensor([[NEG_INF, math.log(2), math.log(6), NEG_INF]]),
    end=torch.tensor([[NEG_INF, math.log(1), math.log(3), NEG_INF]]),
    null_start=torch.tensor([math.log(2)]),
    null_end=torch.tensor([math.log(4)]),
)


@pytest.mark.parametrize(
    ("gold", "start_share", "end_share"),
    [
        (labels(1, 2), 2 / 10, 3 / 8),
        (labels(2, 2), 6 / 10, 3 / 8),
        (labels(2, 2, answerable=False), 2 / 10, 4 / 8),  # the position is ignored then
    ],
)
def test_cross_entropy_over_tokens_and_null(gold, start_share, end_share):
    expected = -(math.log(start_share) + math.log(end_share)) / 2
    assert span_loss(LOGITS, gold).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("answerable", "sign"), [(False, -1), (True, 1)])
def test_verifier_adds_its_own_term(answerable, sign):
    """Its log-odds are of "no answer", so positive ones cost little on unanswerable questions."""
    with_verifier = replace(LOGITS, verifier=torch.tensor([1.5]), verifier_weight=3.0)
    gold = labels(1, 2, answerable=answerable)
    added = span_loss(with_verifier, gold) - span_loss(LOGITS, gold)
    # The weight applies to decoding only.
    assert added.item() == pytest.approx(math.log1p(math.exp(sign * 1.5)), rel=1e-5)


def test_gold_inside_a_word_is_widened_to_the_word():
    """Starts are open on tokens 1 and 3, ends on 2 and 4."""
    scores = torch.zeros(1, 6)
    start = scores.masked_fill(torch.tensor([[1, 0, 1, 0, 1, 1]]).bool(), NEG_INF)
    end = scores.masked_fill(torch.tensor([[1, 1, 0, 1, 0, 1]]).bool(), NEG_INF)
    start[0, 1], end[0, 4] = 2.0, 3.0
    logits = SpanLogits(start, end, torch.zeros(1), torch.zeros(1))
    wide = span_loss(logits, labels(1, 4))
    assert torch.equal(span_loss(logits, labels(2, 3)), wide)
    assert not torch.equal(span_loss(logits, labels(3, 3)), wide)
    assert not torch.equal(span_loss(logits, labels(2, 2)), wide)


# exp of the scores at each of three steps: tokens 1 and 2 (0 and 3 are not words), and the stop.
STEPS = StepLogits(
    token=torch.tensor([[[NEG_INF, math.log(a), math.log(b), NEG_INF] for a, b in ((2, 3), (1, 5), (6, 2))]]),
    stop=torch.tensor([[math.log(5), math.log(4), math.log(2)]]),
)


@pytest.mark.parametrize(
    ("gold", "shares"),
    [
        (labels(1, 2), (2 / 10, 5 / 10, 2 / 10)),  # token 1, token 2, stop
        (labels(2, 2), (3 / 10, 4 / 10)),  # token 2, stop
        (labels(2, 2, answerable=False), (5 / 10,)),  # stop at once
        (labels(1, 3), (2 / 10, 5 / 10)),  # token 3 is not a word: skipped, and no step is left for the stop
    ],
)
def test_sequence_loss_sums_tokens_in_order_and_stop(gold, shares):
    token = STEPS.token.clone().requires_grad_()
    loss = sequence_loss(StepLogits(token, STEPS.stop), gold)
    assert loss.item() == pytest.approx(-sum(math.log(share) for share in shares), rel=1e-6)
    loss.sum().backward()
    assert torch.isfinite(token.grad).all()
    # If an answer is longer than the steps, only its first tokens count.
    short = StepLogits(STEPS.token[:, :1], STEPS.stop[:, :1])
    assert sequence_loss(short, gold).item() == pytest.approx(-math.log(shares[0]))


def test_label_smoothing_spreads_over_open_classes():
    """Start classes: 2, 6 and 2 of 10; end classes: 1, 3 and 4 of 8; closed tokens are not classes."""
    gold = labels(1, 2)
    start, end = ((2, 6, 2), 10), ((1, 3, 4), 8)
    spread = sum(sum(-math.log(n / total) for n in row) / 3 for row, total in (start, end)) / 2
    expected = 0.9 * span_loss(LOGITS, gold).item() + 0.1 * spread
    assert SpanLoss(label_smoothing=0.1)(LOGITS, gold).item() == pytest.approx(expected, rel=1e-6)
    assert SpanLoss(label_smoothing=1.0)(LOGITS, gold).item() == pytest.approx(spread, rel=1e-6)


def windows(answerable: list[bool]) -> tuple[SpanLogits, SpanLabels]:
    generator, N = torch.Generator().manual_seed(0), len(answerable)
    start, end = torch.randn(2, N, 5, generator=generator)
    null = torch.randn(2, N, generator=generator)
    gold = torch.arange(N) % 5
    return SpanLogits(start, end, *null), SpanLabels(gold, gold, torch.tensor(answerable), torch.ones(N))


def test_null_weight_gives_a_weighted_mean_over_the_training_set():
    answerable = [True, False, True, False, False, True, True, True]
    logits, gold = windows(answerable)
    actual = SpanLoss(null_weight=3.0, null_share=3 / 8)(logits, gold)
    plain = span_loss(logits, gold)
    weight = torch.tensor([1.0 if yes else 3.0 for yes in answerable])
    torch.testing.assert_close(actual.mean(), (weight * plain).sum() / weight.sum())
    torch.testing.assert_close(actual / plain, weight * 8 / weight.sum())
    assert torch.equal(SpanLoss(null_weight=1.0, null_share=3 / 8)(logits, gold), plain)
    torch.testing.assert_close(SpanLoss(null_weight=3.0)(logits, gold), weight * plain)  # null share unknown


@pytest.mark.parametrize(("weight", "null_weight"), [(0.3, 4.0), (0.0, 2.0), (2.0, "balanced")])
def test_verifier_has_its_own_class_weights(weight, null_weight):
    plain, gold = windows([True, False, True, False, False, True, True, True])
    odds = torch.linspace(-2, 2, 8)
    entropy = torch.log1p(torch.exp(torch.where(gold.answerable, odds, -odds)))
    logits, spans = replace(plain, verifier=odds), span_loss(plain, gold)
    loss = SpanLoss(null_share=3 / 8, verifier_weight=weight, verifier_null_weight=null_weight)
    ratio = 5 / 3 if null_weight == "balanced" else null_weight  # as many for either class
    weights = torch.where(gold.answerable, 1.0, ratio)
    torch.testing.assert_close(loss(logits, gold) - spans, weight * entropy * weights * 8 / weights.sum())
    shared = SpanLoss(null_weight=3.0, null_share=3 / 8)(logits, gold)  # by default those of the spans
    weights = torch.where(gold.answerable, 1.0, 3.0)
    torch.testing.assert_close(shared, (spans + entropy) * weights * 8 / weights.sum())


def test_twins_are_ranked_by_no_answer_odds():
    """The second and the fourth window are unanswerable twins of the third and the first."""
    logits, gold = windows([True, False, True, False, False])
    logits = replace(logits, start=torch.cat([logits.start] * 8, 1), end=torch.cat([logits.end] * 8, 1))
    twins = {1: 2, 3: 0}
    gold = replace(gold, twin=torch.tensor([twins.get(row, -1) for row in range(5)]))

    def null_odds(row: int) -> torch.Tensor:
        """Over all spans of up to 30 tokens."""
        start, end = logits.start[row], logits.end[row]
        spans = [start[s] + end[e] for s in range(40) for e in range(s, min(s + 30, 40))]
        return logits.null[row] - torch.stack(spans).logsumexp(0)

    expected = span_loss(logits, gold)
    for row, twin in twins.items():
        expected[row] += 0.7 * torch.log1p(torch.exp(2 - null_odds(row) + null_odds(twin)))
    torch.testing.assert_close(TwinLoss(twin_weight=0.7, twin_margin=2.0)(logits, gold), expected)
    alone = replace(gold, twin=None)
    assert torch.equal(TwinLoss()(logits, alone), span_loss(logits, alone))


def test_twins_by_the_verifier_train_no_span_score():
    logits, gold = windows([True, False, True, False, False])
    scores = {name: getattr(logits, name).clone().requires_grad_() for name in ("start", "end", "null_start")}
    verifier = torch.tensor([0.5, -1.0, 2.0, 0.0, 0.0], requires_grad=True)
    logits = replace(logits, **scores, verifier=verifier)
    paired = replace(gold, twin=torch.tensor([-1, 2, -1, 0, -1]))
    loss = TwinLoss(twin_weight=0.7, twin_margin=2.0, twin_odds="verifier")
    added = loss(logits, paired) - loss(logits, gold)
    differences = (-1.0 - 2.0, 0.0 - 0.5)
    first, second = (0.7 * math.log1p(math.exp(2 - difference)) for difference in differences)
    torch.testing.assert_close(added, torch.tensor([0.0, first, 0.0, second, 0.0]))
    added.sum().backward()
    assert all(float(score.grad.abs().nan_to_num().sum()) < 1e-6 for score in scores.values())
    assert float(verifier.grad.abs().sum()) > 0.1
    with pytest.raises(ConfigError, match=r"loss\.twin_odds: verifier needs a model with a verifier"):
        loss(replace(logits, verifier=None), paired)
    with pytest.raises(ConfigError, match=r"loss\.verifier_weight: 0.5 needs a model with a verifier"):
        SpanLoss(verifier_weight=0.5)(replace(logits, verifier=None), gold)


def composed(*overrides: str) -> Config:
    return validate(compose(list(overrides)))


@pytest.mark.parametrize(("model", "choice"), [("bert", "span"), ("match_lstm/sequence", "sequence")])
def test_naming_the_default_loss_of_a_task_changes_nothing(model, choice):
    assert composed(f"model={model}", f"loss={choice}") == composed(f"model={model}")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], SpanLoss(null_share=0.25)),
        (["model=match_lstm/sequence"], SequenceLoss()),
        (["loss=label_smoothing", "loss.null_weight=0.5"], SpanLoss(0.5, 0.1, 0.25)),
        (["loss=weighted_verifier"], SpanLoss(verifier_null_weight="balanced", null_share=0.25)),
        (["loss=twins", "loss.twin_weight=2"], TwinLoss(null_share=0.25, twin_weight=2.0)),
        (
            ["model=ablation/together", "loss=verifier_twins"],
            TwinLoss(null_share=0.25, verifier_null_weight="balanced", twin_odds="verifier"),
        ),
    ],
)
def test_config_group_selects_the_loss(overrides, expected):
    assert build_loss(composed(*overrides), null_share=0.25) == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=null_weight", "loss.null_weight=0"], "loss.null_weight: 0.0 is out of range, it must be > 0"),
        (["loss=null_weight", "+loss.nul_weight=2"], "'loss.nul_weight' (did you mean 'loss.null_weight'?)"),
        (["loss=sequence"], "loss._target_: SequenceLoss is a loss for task sequence, but"),
        (["model=proposed", "loss=verifier_twins"], "loss.twin_odds: verifier needs a model with a verifier"),
        (
            ["model=proposed", "loss=weighted_verifier"],
            "loss.verifier_null_weight: balanced needs a model with",
        ),
        (["loss=span", "loss._target_=os.system"], "loss._target_: 'os.system' is outside qa_arch"),
    ],
)
def test_invalid_loss_config_is_named(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_loss(composed(*overrides))
    for share, named in ((0.0, "all have one"), (1.0, "none have one")):
        with pytest.raises(ConfigError, match=named):
            SpanLoss(null_share=share, verifier_null_weight="balanced")

"""A single fit: rates and schedules, gradients, losses, the best epoch, epochs cut short, output shapes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

from baselines.transformer import TransformerSpan
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.features.batches import Collator
from qa_arch.models import store
from qa_arch.nn.encoder import WordEncoder
from qa_arch.nn.features import forward_flops
from qa_arch.nn.losses import SpanLoss
from qa_arch.nn.match_lstm import MatchLSTM
from qa_arch.qa import task
from qa_arch.training.checkpoint import BestWeights
from qa_arch.training.fit import fit, span_fitting
from qa_arch.training.module import OutputError, TrainingModule, make_optimizer, parameter_groups, schedule


def test_head_has_its_own_rate():
    """Biases have no weight decay, and frozen parameters no group."""
    model = nn.Module()
    model.encoder, model.head = WordEncoder(3, 2), nn.Linear(2, 2)
    model.encoder.layer, model.encoder.frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = parameter_groups(model, lr=1.0, head_lr=5.0, weight_decay=0.1)
    assert {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]} == {
        "encoder.embedding.weight": (1.0, 0.1),
        "encoder.layer.weight": (1.0, 0.1),
        "encoder.layer.bias": (1.0, 0.0),
        "head.weight": (5.0, 0.1),
        "head.bias": (5.0, 0.0),
    }
    model.encoder = nn.LSTM(2, 2)  # another module of this name belongs to the head
    assert {g["lr"] for g in parameter_groups(model, lr=1.0, head_lr=5.0, weight_decay=0.1)} == {5.0}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
    ],
)
def test_schedule_factor_at_each_step(kind, expected):
    """Six steps, a third of them warm-up: the first step is not zero, the factor after the last one is."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = schedule(optimizer, kind, steps=6, warmup=1 / 3)
    actual = []
    for _ in range(7):
        actual.append(optimizer.param_groups[0]["lr"] / 2.0)
        optimizer.step()
        scheduler.step()
    assert actual == pytest.approx(expected, abs=1e-6)


def test_optimizer_has_its_name():
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.002, "weight_decay": 0.0}]
    assert type(make_optimizer("adamax", groups, fused=False)) is torch.optim.Adamax


MEASURES = ("f1", "exact", "loss", "forced_auc")
EPOCHS = [
    {f"calibration_{name}": value for name, value in zip(MEASURES, row, strict=True)}
    for row in (
        (40.0, 38.0, 2.0, 110.0),
        (52.0, 44.0, 1.4, 109.0),
        (float("nan"), 47.0, 1.6, 121.0),
        (55.0, 46.0, 1.9, 120.0),
    )
]


@pytest.mark.parametrize(
    ("select", "patience", "saved", "trained"),
    [
        ("f1", 0, [0, 1, 3], 4),
        ("loss", 0, [0, 1], 4),
        ("forced_auc", 0, [0, 2], 4),
        ("last", 0, [0, 1, 2, 3], 4),
        ("f1", 1, [0, 1], 3),
        ("loss", 2, [0, 1], 4),
    ],
    ids=str,
)
def test_best_epoch_by_each_criterion_and_patience_without_improvement(select, patience, saved, trained):
    actual: list[int] = []
    trainer = SimpleNamespace(current_epoch=0, should_stop=False)
    module = SimpleNamespace(fitting=SimpleNamespace(monitor=None))
    best = BestWeights(lambda trainer: actual.append(trainer.current_epoch), select, patience)
    for epoch, metrics in enumerate(EPOCHS):
        trainer.current_epoch = epoch
        trainer.callback_metrics = {name: torch.tensor(value) for name, value in metrics.items()}
        best.on_validation_end(trainer, module)
        if trainer.should_stop:
            break
    assert (actual, best.epoch, epoch + 1) == (saved, saved[-1], trained)


def fit_parts(config, parts, folder):
    """``fit`` without the rest of a run, which makes the folder of its model first."""
    (folder / "model").mkdir(parents=True)
    return fit(config, span_fitting(config, parts), folder)


@pytest.fixture
def run_fit(configure, tmp_path):
    """``run_fit(*overrides)``: the parts of a run and the result of ``fit_parts``."""

    def run(*overrides: str, name: str = "fit"):
        config = configure(*overrides)
        torch.manual_seed(config.seed)
        parts = task.new_parts(config)
        return parts, fit_parts(config, parts, tmp_path / name)

    return run


@pytest.mark.parametrize("loss", ["span", "null_weight", "twins"])
def test_step_gradient_is_that_of_the_mean_window_loss(configure, before_step, tmp_path, monkeypatch, loss):
    """Checked against autograd of the plain mean, for full steps and the shorter last one."""
    config = configure("trainer.batch_size=4", "trainer.accumulate=2", "optim.clip=0", f"loss={loss}")
    parts = task.new_parts(config)
    batches, errors, sizes = [], [], []

    def compare(self, optimizer):
        windows = sum(len(batch) for batch in batches)
        actual = [p.grad.clone() for p in self.model.parameters()]
        with torch.enable_grad():
            loss = sum(parts.loss(self.model(batch), batch.labels).sum() for batch in batches) / windows
            expected = torch.autograd.grad(loss, list(self.model.parameters()))
        errors.append(max(float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True)))
        sizes.append(windows)
        batches.clear()

    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", compare)
    before_step(lambda module, batch, batch_idx: batches.append(batch))
    fit_parts(config, parts, tmp_path)
    assert sizes == [8, 8, 5]
    assert max(errors) < 1e-6


def test_twins_share_a_batch_and_add_to_the_loss(configure, run_training):
    config = configure("loss=twins", "trainer.batch_size=4")
    data = task.batches(config, task.new_parts(config))
    batches = [data.train(rows) for rows in data.sampler(data.train.lengths, batch_size=4)]
    twins = sum(int((batch.labels.twin >= 0).sum()) for batch in batches)
    assert twins == int((data.train.mates >= 0).sum()) / 2 > 0
    plain, ranked = (run_training(f"loss={loss}", name=loss) for loss in ("span", "twins"))
    assert ranked.record.epochs[0].train_loss > plain.record.epochs[0].train_loss
    no_twins = configure("loss=twins", "loss.twin_likeness=1")
    with pytest.raises(ConfigError, match=r"loss\.twin_likeness: no two training questions"):
        task.batches(no_twins, task.new_parts(no_twins))


def test_padding_rows_do_not_change_the_loss(configure):
    """An idle rank computes a window of weight 0, which must not count."""
    config = configure()
    parts = task.new_parts(config)
    module = TrainingModule(config, span_fitting(config, parts), total_steps=1)
    sampler = SimpleNamespace(window_total=lambda _: 3)
    module._trainer = SimpleNamespace(world_size=1, train_dataloader=SimpleNamespace(sampler=sampler))
    collate = Collator(parts.tables["train"])
    without_padding = module.training_step(collate([0, 1, 2]), 0)
    with_padding = module.training_step(collate([0, 1, 2, -1 - 3]), 0)
    torch.testing.assert_close(with_padding, without_padding, rtol=1e-6, atol=0)
    assert float(module.train_sums[0, 1]) == 6


def test_gradients_are_clipped_once_per_step_not_per_micro_batch(configure, tmp_path, monkeypatch):
    """The gradient of a step keeps its direction and is scaled to the norm ``optim.clip``."""
    limit, unclipped, clipped = 1e-3, [], []

    def gradient(module) -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in module.model.parameters()]).clone()

    def record(module, optimizer):
        unclipped.append(gradient(module))
        clip(module, optimizer)
        clipped.append(gradient(module))

    clip = TrainingModule.on_before_optimizer_step
    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", record)
    config = configure("trainer.batch_size=4", "trainer.accumulate=2", f"optim.clip={limit}")
    parts = task.new_parts(config)
    fit_parts(config, parts, tmp_path)
    assert len(unclipped) == 3
    for before, after in zip(unclipped, clipped, strict=True):
        assert before.norm() > 10 * limit
        torch.testing.assert_close(after, before * (limit / before.norm()), rtol=1e-4, atol=1e-9)


def test_parameters_without_gradient_are_named_under_ddp(configure):
    config = configure()
    module = TrainingModule(config, span_fitting(config, task.new_parts(config)), total_steps=1)
    module._trainer = SimpleNamespace(strategy=DDPStrategy(), gradient_clip_val=None)
    module.model(module.fitting.batches.train([0, 1])).start[:, 2:4].sum().backward()
    module.model.span.bias.grad = None
    with pytest.raises(QaArchError, match=r"span\.bias: no gradient, .* \(1 have none\).*check-model"):
        module.on_before_optimizer_step(None)


@pytest.mark.parametrize(("precision", "fused"), [("bf16-mixed", True), ("16-mixed", False)])
def test_fp16_disables_the_fused_optimizer(configure, precision, fused):
    """A fused optimizer unscales gradients inside its step, after they were clipped."""
    config = configure()
    module = TrainingModule(config, span_fitting(config, task.new_parts(config)), total_steps=10)
    module._trainer = SimpleNamespace(precision=precision)
    assert module.configure_optimizers()["optimizer"].defaults["fused"] is fused


@pytest.mark.parametrize(
    ("settings", "null_weight"), [((), 1.0), (("loss=null_weight", "loss.null_weight=3"), 3.0)]
)
def test_epoch_losses_are_means_over_windows(run_fit, settings, null_weight):
    """At a learning rate near 0 the weights do not change, so both losses can be recomputed afterwards."""
    parts, (epochs, _) = run_fit("optim.lr=1e-12", *settings)
    for split in ("train",) if settings else ("train", "calibration"):
        table = parts.tables[split]
        batch = Collator(table)(range(len(table)))
        with torch.inference_mode():
            plain = SpanLoss()(parts.model.eval()(batch), batch.labels)
        weights = torch.where(batch.labels.answerable, 1.0, null_weight)
        assert 0 < table.answerable.mean() < 1
        expected = (weights * plain).sum() / weights.sum()
        assert epochs[0][f"{split}_loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("recovers", "loss"), [(True, "mean training loss"), (False, "calibration loss")])
def test_nan_loss_ends_the_run_and_is_reported_once(configure, tmp_path, caplog, recovers, loss):
    config = configure("trainer.eval_batch_size=2")
    parts = task.new_parts(config)

    class Diverge(pl.Callback):
        def on_train_batch_end(self, *_):
            torch.nn.init.constant_(next(parts.model.parameters()), torch.nan)

        def on_validation_start(self, *_):
            for weights in parts.model.parameters() if recovers else ():
                torch.nn.init.normal_(weights)

    parts = replace(parts, callbacks=lambda: [Diverge()])
    with pytest.raises(QaArchError, match=rf"epoch 1: the {loss} is nan; lower optim\.lr"):
        fit_parts(config, parts, tmp_path)
    reported = [caplog.text.count(f"{scores} NaN") for scores in ("span logits are", "windows is")]
    assert reported == [not recovers] * 2


def test_best_epoch_is_kept_not_the_last(run_fit, monkeypatch, tmp_path):
    values, saved, save = iter([10.0, 30.0, 30.0]), [], store.save_weights  # ties keep the earlier epoch
    monkeypatch.setattr(task, "validation_scores", lambda *_: {"calibration_f1": next(values)})
    monkeypatch.setattr(store, "save_weights", lambda *a: (saved.append(_copy(a[1])), save(*a)))
    parts, (_, best) = run_fit("trainer.epochs=3")
    assert (best, len(saved)) == (1, 2)
    last = _copy(parts.model)
    store.load_weights(tmp_path / "fit" / "model", parts.model)
    actual = _copy(parts.model)
    assert all(torch.equal(actual[name], saved[1][name]) for name in actual)
    assert not all(torch.equal(actual[name], last[name]) for name in actual)


def _copy(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_truncated_epoch_is_validated(run_fit):
    _, (epochs, _) = run_fit("trainer.max_steps=8", "trainer.epochs=2")
    assert [epoch["step"] for epoch in epochs] == [6, 8]
    assert epochs[0]["calibration_loss"] > epochs[1]["calibration_loss"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda out: replace(out, null_end=out.null_end[1:]),
            r"SpanLogits.null_end is \(3,\), expected \(B,\)",
        ),
        (lambda out: replace(out, start=out.start.long()), "SpanLogits.start holds torch.int64; scores"),
        (lambda out: out.start, "returns a Tensor, expected a SpanLogits"),
    ],
)
def test_wrong_model_output_is_reported_with_field_and_location(
    configure, tmp_path, monkeypatch, change, message
):
    """Checked before the first step."""
    config, forward = configure(), TransformerSpan.forward
    monkeypatch.setattr(TransformerSpan, "forward", lambda self, batch: change(forward(self, batch)))
    with pytest.raises(OutputError, match=rf"\.py:\d+: .*forward:? {message}"):
        fit_parts(config, task.new_parts(config), tmp_path)


def test_last_epoch_is_kept_without_a_calibration_split(configure, tmp_path):
    config = configure("trainer.epochs=2")
    parts = task.new_parts(config)
    alone = replace(parts, sets={"train": parts.sets["train"]}, tables={"train": parts.tables["train"]})
    epochs, best = fit_parts(config, alone, tmp_path)
    assert (len(epochs), best) == (2, 1)
    last = _copy(parts.model)
    store.load_weights(tmp_path / "model", parts.model)
    assert all(torch.equal(value, last[name]) for name, value in _copy(parts.model).items())


def test_flops_are_counted_and_limit_training(run_fit):
    """ALBERT uses the weights of its one layer twice, so parameters alone would not tell."""
    layers = ["encoder.layers=2", "trainer.epochs=2"]
    _, (epochs, _) = run_fit(*layers, name="all")
    _, (shared, _) = run_fit(*layers, "encoder.family=albert", name="shared")
    assert epochs[0]["flops"] == epochs[1]["flops"] > 0
    assert shared[0]["flops"] == pytest.approx(epochs[0]["flops"], rel=0.25)  # it also maps its embeddings
    flops = 1.5 * epochs[0]["flops"]
    _, (limited, _) = run_fit(*layers, f"trainer.max_flops={flops}", name="limited")
    assert limited[-1]["step"] == 9  # of 6 an epoch
    assert sum(epoch["flops"] for epoch in limited) == pytest.approx(flops, rel=0.05)
    with pytest.raises(ConfigError, match=r"1.50 epochs .* set trainer.epochs=2"):
        run_fit("encoder.layers=2", "trainer.epochs=1", f"trainer.max_flops={flops}", name="short")


def test_products_that_libraries_hide_are_counted():
    lstm = torch.nn.LSTM(8, 16, bidirectional=True)
    assert forward_flops(lstm, torch.randn(10, 3, 8)) == 2 * 30 * (2 * 4 * 16 * (8 + 16))
    assert lstm.training
    attention = torch.nn.Module()
    attention.forward = lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert forward_flops(attention, torch.randn(2, 4, 10, 8)) == 2 * 2 * (2 * 4 * 10 * 10 * 8)


class Relative(torch.nn.Module):
    """Hands a view of a parameter to a layer, as DeBERTa its relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.layer = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 6)

    def forward(self, x):
        return self.layer(self.positions.weight[:3]) + x


def test_products_with_a_view_of_a_parameter_are_counted():
    model = Relative()
    assert forward_flops(model, torch.zeros(6)) == 2 * 3 * 4 * 6
    assert all(parameter.requires_grad for parameter in model.parameters())


class Match(torch.nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.match = MatchLSTM(width, hidden)

    def forward(self, texts):
        masks = (torch.ones(text.shape[:2], dtype=torch.bool) for text in texts)
        return self.match(*texts, *masks)


def test_recurrence_of_a_match_lstm_is_counted():
    """Wang & Jiang 2016, eq. 2 to 4, in multiply-adds, and one more question unit to attend to."""
    B, C, Q, D, width = 2, 50, 10 + 1, 40, 30
    once = (B * C + B * Q) * D * 5 * width  # attention and gates of the inputs, for all steps
    step = width * 5 * width + Q * width + Q * 4 * width  # of the state, the energies, what is attended to
    texts = torch.randn(B, C, D), torch.randn(B, Q - 1, D)
    assert forward_flops(Match(D, width), texts) == 2 * (once + 2 * B * C * step)

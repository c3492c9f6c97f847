"""The thesis's recipe: its settings in conf/, and training at tiny widths."""

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.metrics.abstention import auroc
from qa_arch.records import CALIBRATION
from qa_arch.results.systems import load_questions
from qa_arch.training.run import train

MODELS = ("albert", "roberta", "distilbert", "bert", "proposed")


@pytest.mark.parametrize("model", MODELS)
def test_recipe_settings(model):
    config = validate(compose(["experiment=thesis", f"model={model}"]))
    trainer, data = config.trainer, config.data
    assert (trainer.batch_size, trainer.accumulate, trainer.epochs) == (8, 1, 10)
    assert trainer.select == "forced_auc"
    assert (trainer.precision, config.calibration.prior) == ("auto", 0.5)
    assert (config.optim.lr, config.optim.head_lr) == (3e-5, 1e-3)
    assert (data.hold_out_share, data.calibration, data.train) == (0.2, None, "hub:rajpurkar/squad_v2:train")
    assert config.encoder.init == "pretrained"


@pytest.mark.slow
def test_recipe_keeps_the_epoch_with_the_best_forced_auc(tmp_path):
    small = ["debug=fast", "data.open_dev=false", "trainer.epochs=3", "trainer.max_steps=9", "optim.lr=3e-2"]
    record = train(
        validate(compose(["experiment=thesis", *small, "data.train_questions=12"])), folder=tmp_path
    )
    spans, areas, scores = (
        [epoch.value(f"calibration_{name}") for epoch in record.epochs]
        for name in ("forced_f1", "auroc", "forced_auc")
    )
    assert len(scores) == 3
    assert scores == pytest.approx([span + area for span, area in zip(spans, areas, strict=True)])
    assert record.best_epoch == scores.index(max(scores))
    rows = load_questions(tmp_path, record, CALIBRATION)
    best = 100 * auroc(-rows.null_odds, rows.answerable)
    assert areas[record.best_epoch] == pytest.approx(best, abs=1)  # weights are cast after training


@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch"), [*((model, 8) for model in MODELS), ("albert", 6)])
def test_every_point_trains_at_tiny_widths(model, batch, tmp_path):
    small = ["debug=fast", "data.open_dev=false", "trainer.epochs=2", "trainer.max_steps=4"]
    point = [f"model={model}", f"trainer.batch_size={batch}", "data.train_questions=12"]
    record = train(validate(compose(["experiment=thesis", *point, *small])), folder=tmp_path)
    assert (record.status, record.model) == ("ok", model)
    assert record.batch.global_size == batch
    assert record.epochs[-1].step == 4
    assert "calibration" in record.scores

"""Training of answer selection: resuming, best epoch, splits, vectors, references."""

import math

import pytest
from stops import stopped_after
from training.conftest import Trained

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.selection import recipe
from qa_arch.training.run import train

SMALL = [
    "model=qa_lstm/g",
    "debug=fast",
    "model.hidden=5",
    "model.dropout=0.1",  # so that the random states matter
    "glove.dim=6",
    "selection.negatives=1",  # so that each epoch's draw matters
    "selection.margin=0.3",
    "trainer.max_steps=-1",
    "trainer.epochs=2",
    "trainer.progress=false",
    "trainer.checkpoint_minutes=1e-9",
    "optim.lr=1e-2",
]


@pytest.fixture
def run(few_questions, tmp_path):
    def start(name: str, *overrides: str, resume: bool = False):
        folder = tmp_path / name
        config = validate(compose([*SMALL, *few_questions, *overrides]))
        return Trained(train(config, folder=folder, resume=resume), folder)

    return start


def test_resumed_run_equals_an_uninterrupted_one(run):
    uninterrupted = run("uninterrupted")
    record = uninterrupted.record
    assert record.epochs[0].windows == record.data["train"].questions > 5
    assert all(0 < epoch.train_loss < 0.3 + 2 for epoch in record.epochs)
    assert all(math.isfinite(epoch.value("calibration_mrr")) for epoch in record.epochs)
    for stop in (2, 6):  # in the first and the second epoch
        with stopped_after(stop):
            run(f"stopped{stop}")
        resumed = run(f"stopped{stop}", resume=True)
        assert resumed.results == uninterrupted.results
        assert resumed.weights == uninterrupted.weights


def test_epoch_with_the_highest_mrr_is_kept(run, monkeypatch):
    scores = iter([(10.0, 40.0), (30.0, 60.0), (50.0, 50.0)])
    keys = ("calibration_accuracy", "calibration_mrr")
    monkeypatch.setattr(recipe, "validation_scores", lambda *_: dict(zip(keys, next(scores), strict=True)))
    record = run("run", "trainer.epochs=3", "trainer.select=loss").record
    assert record.best_epoch == 1
    assert [epoch.value("calibration_accuracy") for epoch in record.epochs] == [10.0, 30.0, 50.0]


def test_invalid_selection_settings_are_refused(few_questions):
    train_set = few_questions[0].partition("=")[2]
    shared = [*few_questions[:2], f"data.dev={train_set}"]
    with pytest.raises(DataError, match="share"):
        recipe.assemble(validate(compose([*SMALL, *shared])))
    for setting, message in (("model.train_vectors=false", "must be trained"), ("glove=file", "glove.path")):
        with pytest.raises(ConfigError, match=message):
            recipe.check(validate(compose([*SMALL, *few_questions, setting])))
    held_out = ["model=qa_lstm/c", "data=insuranceqa", "data.calibration=null", "data.hold_out_share=0.1"]
    with pytest.raises(ConfigError, match="no articles"):
        recipe.load_splits(validate(compose(held_out)))

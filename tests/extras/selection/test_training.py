"""Training a model that selects answers: stopped and resumed, best epoch, splits, vectors."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.schema import validate
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.extras.selection import task as selecting
from qa_arch.extras.selection.task import TASK
from qa_arch.training.checkpoint import KeepLast
from qa_arch.training.run import train

SMALL = [
    "model=qa_lstm/g",
    "debug=fast",
    "model.hidden=5",
    "model.dropout=0.1",  # so that the random states matter
    "glove.dim=6",
    "selection.negatives=1",  # so that each epoch's draw matters
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
        record = train(config, folder=folder, resume=resume)
        return record, (folder / "model" / "model.safetensors").read_bytes()

    return start


def results_of(record) -> tuple:
    """What a record says, less the clock."""
    clocks = ("train_seconds", "validation_seconds", "windows_per_second")
    epochs = [replace(epoch, **dict.fromkeys(clocks)) for epoch in record.epochs]
    return epochs, record.best_epoch, record.scores, record.config_hash


@pytest.mark.parametrize("stop", [2, 6], ids=["first epoch", "second epoch"])
def test_resumed_is_the_same_as_never_stopped(run, monkeypatch, stop):
    straight, weights = run("straight")
    save, count = KeepLast._save, iter(range(1, 1000))

    def stopping(self, trainer):
        save(self, trainer)
        if next(count) == stop:
            raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(KeepLast, "_save", stopping)
        with pytest.raises(RuntimeError, match="stopped"):
            run("stopped")
    resumed, again = run("stopped", resume=True)
    assert results_of(resumed) == results_of(straight)
    assert again == weights


def test_the_epoch_with_the_highest_mrr_is_kept(run, monkeypatch):
    given = iter([(10.0, 40.0), (30.0, 60.0), (50.0, 50.0)])
    scores = selecting.selection_scores([1])

    def arranged(ranks):
        accuracy, mrr = next(given)
        return type(scores)(accuracy, mrr, len(ranks))

    monkeypatch.setattr(selecting, "selection_scores", arranged)
    record, _ = run("run", "trainer.epochs=3", "trainer.select=loss")
    assert record.best_epoch == 1
    assert [epoch.value("calibration_accuracy") for epoch in record.epochs] == [10.0, 30.0, 50.0]


def test_pairs_are_counted_and_the_loss_is_at_most_its_bound(run):
    record, _ = run("run", "selection.margin=0.3")
    pairs = record.epochs[0].windows
    assert pairs == record.data["train"].questions > 5
    assert all(0 < epoch.train_loss < 0.3 + 2 for epoch in record.epochs)
    assert all(math.isfinite(epoch.value("calibration_mrr")) for epoch in record.epochs)


def test_sets_that_share_an_article_are_refused(few_questions):
    train_set = few_questions[0].partition("=")[2]
    shared = [*few_questions[:2], f"data.dev={train_set}"]
    with pytest.raises(DataError, match="share"):
        TASK.assemble(validate(compose([*SMALL, *shared])))


def test_random_vectors_must_be_trained(few_questions):
    with pytest.raises(ConfigError, match="must be trained"):
        TASK.assemble(validate(compose([*SMALL, *few_questions, "model.train_vectors=false"])))


def test_insuranceqa_has_no_articles_to_hold_out():
    config = validate(
        compose(["model=qa_lstm/c", "data=insuranceqa", "data.calibration=null", "data.hold_out_share=0.1"])
    )
    with pytest.raises(ConfigError, match="no articles"):
        TASK.load_splits(config.data)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A finished run that classifies questions."""
    small = ["debug=fast", "data=question_types", "model.train_vectors=true", "model.hidden=5", "glove.dim=6"]
    folder = tmp_path_factory.mktemp("classifier") / "run"
    train(validate(compose(["model=question_types", *small, "trainer.progress=false"])), folder=folder)
    return folder


def test_classes_of_questions_are_read_in_training_and_by_the_saved_run(run, classifier, tmp_path):
    own = shutil.copytree(classifier, tmp_path / "classifier")
    record, _ = run("typed", f"selection.types={own}", "model.type_dim=3")
    weights = load_file(tmp_path / "typed" / "model" / "model.safetensors")
    assert weights["types.weight"].shape == (51, 3)
    assert weights["reader.forwards.weight_ih_l0"].shape[1] == 6 + 3
    shutil.rmtree(own)  # the run keeps what it needs
    predictor = qa_arch.load_predictor(tmp_path / "typed", device="cpu")
    config = validate(record.config)
    plain = [f"data.{split}={getattr(config.data, split)}" for split in ("train", "calibration", "dev")]
    dev = TASK.load_splits(validate(compose([*SMALL, *plain])).data)["dev"]
    assert dev.fingerprint == record.data["dev"].fingerprint
    output = json.loads((tmp_path / "typed" / "selections.json").read_text())
    read = predictor.read(dev)
    for row, question in enumerate(dev.questions):
        assert read[row] == pytest.approx(output[question.id], abs=1e-5)
    predictor.classify = None
    without = predictor.read(dev)
    assert any(without[row] != pytest.approx(read[row], abs=1e-5) for row in read)


def test_classes_and_their_width_go_together(few_questions, classifier, run, tmp_path):
    for half in ("model.type_dim=3", f"selection.types={classifier}"):
        with pytest.raises(ConfigError, match="set both or neither"):
            TASK.assemble(validate(compose([*SMALL, *few_questions, half])))
    run("selects")
    other = [f"selection.types={tmp_path}/selects", "model.type_dim=3"]
    with pytest.raises(RunError, match="one of task classification is wanted"):
        TASK.assemble(validate(compose([*SMALL, *few_questions, *other])))

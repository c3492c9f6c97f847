"""A compressed run is a run: it loads, is scored on its parent's data and records where it came from."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from kills import killed_at_sizes
from safetensors.torch import load_file

from qa_arch import evaluation
from qa_arch.config.schema import validate
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.evaluation import calibrate, predict
from qa_arch.export.huggingface import export_hf
from qa_arch.export.onnx import export_onnx
from qa_arch.extras.compression import runs as compressed_runs
from qa_arch.features.batches import Collator
from qa_arch.qa.loading import load_predictor
from qa_arch.records import CALIBRATION, DEV, EncoderRun, read_record, write_record
from qa_arch.results.columns import runs_table
from qa_arch.results.publish import publish
from qa_arch.results.systems import group_by_system
from qa_arch.training import fit as fitting
from qa_arch.training.checkpoint import BestWeights
from qa_arch.training.jobs import plan


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def rankings(folder, questions, precision):
    predictor = load_predictor(folder, device="cpu", precision=precision)
    return [(p.best, p.null_odds) for p in predictor.rank(questions).predictions()]


@pytest.fixture(scope="module")
def dev(sources):
    return open_passages(str(sources / "dev.json"), name="dev")


# Records ------------------------------------------------------------------------------------------


def test_record_names_parent_and_step_but_no_path(parent, smaller, tmp_path):
    folder = smaller(parent, "magnitude", sparsity=0.5)
    before, after = read_record(parent), read_record(folder)
    assert after.status == "ok"
    assert after.model == "bert-sparse50"
    assert asdict(after.parent) == {"run": parent.name, "run_hash": before.run_hash, "revision": None}
    (step,) = after.config["compression"]
    assert (step["method"], step["sparsity"], step["epochs"]) == ("magnitude", 0.5, 0)
    without_step = {**after.config, "compression": None}
    assert without_step == {**before.config, "compression": None}
    assert after.run_hash != before.run_hash
    assert str(tmp_path) not in (folder / "run.json").read_text()
    assert after.parameters.nonzero < after.parameters.total == before.parameters.total
    assert {split: facts.fingerprint for split, facts in after.data.items()} == {
        split: facts.fingerprint for split, facts in before.data.items()
    }
    assert after.data["train"].titles == before.data["train"].titles
    assert before.weights_bytes == (parent / "model" / "model.safetensors").stat().st_size


@pytest.mark.parametrize("epochs", [0, 1])
def test_record_keeps_the_pretraining_run_of_the_encoder(run_folder, smaller, epochs):
    pretraining = EncoderRun(model="mlm", seed=3, run_hash="c", system="s")
    write_record(run_folder, replace(read_record(run_folder), encoder=pretraining))
    assert read_record(smaller(run_folder, "magnitude", sparsity=0.5, epochs=epochs)).encoder == pretraining


def test_compressed_runs_are_tabulated_with_their_parent_and_published(
    parents, parent, smaller, tmp_path, monkeypatch, sources
):
    monkeypatch.setenv("QA_ARCH_DATA", str(sources))
    folders = [parent, smaller(parent, "magnitude", name="a", sparsity=0.5)]
    folders.append(smaller(parent, "magnitude", name="b", sparsity=0.5, scope="layer"))
    runs = [(folder, read_record(folder)) for folder in folders]
    columns = ["model", "f1", "parameters", "nonzero", "weights_mb"]
    rows = [row for row in runs_table(runs, columns=columns).rows if "run" in row]
    assert [row["model"] for row in rows] == ["bert", "bert-sparse50", "bert-sparse50"]
    assert rows[0]["nonzero"] == rows[0]["parameters"] > rows[1]["nonzero"]
    assert rows[0]["weights_mb"] == rows[1]["weights_mb"] > 0
    labels = [system.label for system in group_by_system(runs)]
    assert labels == ["bert", "bert-sparse50 scope=global", "bert-sparse50 scope=layer"]
    assert read_record(publish(folders[1], tmp_path / "records")).parent == runs[1][1].parent


def test_steps_can_be_chained(parent, smaller):
    narrow = smaller(parent, "widths", name="narrow", width=24, windows=8)
    sparse = smaller(narrow, "magnitude", name="sparse", sparsity=0.5)
    record = read_record(sparse)
    assert record.model == "bert-ffn24-sparse50"
    assert [step["method"] for step in record.config["compression"]] == ["widths", "magnitude"]
    assert record.parent.run == "narrow"
    with pytest.raises(ConfigError, match=r"sparsity: 50\.0% of the weights are zero already"):
        smaller(sparse, "magnitude", name="no", sparsity=0.4)


def test_config_with_compression_steps_cannot_be_trained(parent, smaller):
    with pytest.raises(ConfigError, match="steps of qa-arch compress"):
        plan(config_from=smaller(parent, "magnitude", sparsity=0.5))


# Data and training --------------------------------------------------------------------------------


def test_threshold_and_confidence_are_refitted_on_calibration(parent, smaller, sources):
    folder = smaller(parent, "magnitude", sparsity=0.9)
    record = read_record(folder)
    assert record.threshold.fitted_on == CALIBRATION
    assert record.threshold != read_record(parent).threshold
    predictor = load_predictor(folder, device="cpu")
    fits = calibrate(predictor, predict(predictor, open_passages(str(sources / "calibration.json"))))
    assert (fits.threshold, fits.confidence) == (record.threshold, record.confidence)
    assert set(record.scores) == {CALIBRATION, DEV}
    assert record.references == read_record(parent).references


@pytest.mark.parametrize(
    ("method", "settings"), [("layers", {"layers": 2}), ("widths", {"width": 24, "windows": 8, "epochs": 1})]
)
def test_compress_keeps_a_closed_dev_set_closed(altered, smaller, method, settings, monkeypatch):
    parent = altered("data", open_dev=False)
    opened: list[object] = []
    for module in (compressed_runs, evaluation):
        monkeypatch.setattr(
            module, "open_passages", lambda source, **kw: opened.append(source) or open_passages(source, **kw)
        )
    record = read_record(smaller(parent, method, **settings))
    assert set(record.scores) == {CALIBRATION}
    assert DEV not in record.data
    assert not any("dev" in str(source) for source in opened)


def test_importance_is_estimated_on_training_windows_only(parent, smaller, monkeypatch, sources):
    batches: list = []
    real = compressed_runs.importance

    def recorded(model, maps, size, windows, losses):
        batches.extend(windows)
        return real(model, maps, size, batches, losses)

    monkeypatch.setattr(compressed_runs, "importance", recorded)
    smaller(parent, "heads", heads=2, windows=10)
    assert 10 <= sum(map(len, batches)) < 10 + max(map(len, batches))
    table = load_predictor(parent, device="cpu").table(open_passages(str(sources / "train.json")))
    collate = Collator(table)
    assert all(torch.equal(batch.ids, collate(batch.index.tolist()).ids) for batch in batches)


def test_changed_data_is_refused(altered, smaller, tmp_path, sources):
    parent = altered("data", calibration=str(sources / "dev.json"), dev=None)
    with pytest.raises(
        DataError, match=r"data\.calibration: differs from the questions that altered was made with"
    ):
        smaller(parent, "magnitude", sparsity=0.5)
    assert {path.name for path in tmp_path.iterdir()} == {"altered"}


def test_recovery_repeats_the_parents_training_except_epochs_and_rate(altered, smaller, monkeypatch):
    parent = altered("optim", lr=1e-3, head_lr=4e-3)
    seen = {}
    real = fitting.TrainingModule.__init__

    def recorded(self, config, *args, **kwargs):
        seen.update(config=config)
        real(self, config, *args, **kwargs)

    monkeypatch.setattr(fitting.TrainingModule, "__init__", recorded)
    modes = []
    step_of = fitting.TrainingModule.training_step
    monkeypatch.setattr(
        fitting.TrainingModule,
        "training_step",
        lambda self, *args: modes.append(all(m.training for m in self.modules())) or step_of(self, *args),
    )
    before = read_record(parent)
    write_record(parent, replace(before, batch=replace(before.batch, devices=2)))
    folder = smaller(parent, "layers", layers=1, epochs=2, lr=5e-4)
    used, declared = seen["config"], validate(read_record(parent).config)
    optim, trainer = used.optim, used.trainer
    assert (optim.lr, optim.head_lr) == (5e-4, 2e-3)
    assert (trainer.epochs, trainer.max_steps) == (2, -1)
    assert replace(optim, lr=1e-3, head_lr=4e-3) == declared.optim
    assert trainer.select == declared.trainer.select
    assert modes
    assert all(modes)  # dropout is on
    record = read_record(folder)
    assert len(record.epochs) == 2
    assert (record.batch.accumulate, record.batch.devices) == (2, 1), "the global batch of two devices"
    assert record.best_epoch is not None
    assert record.config["trainer"] == read_record(parent).config["trainer"]


# Interruption -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interrupted_training_resumes_where_it_stopped(parent, smaller, tmp_path, monkeypatch):
    settings = {"sparsity": 0.6, "epochs": 3, "lr": 1e-2}
    uninterrupted = smaller(parent, "magnitude", name="uninterrupted", **settings)
    with monkeypatch.context() as patch:
        epochs = []
        real = BestWeights.on_validation_end

        def interrupt(self, trainer, module):
            epochs.append(trainer.current_epoch)
            if len(epochs) == 2:
                raise KeyboardInterrupt
            real(self, trainer, module)

        patch.setattr(BestWeights, "on_validation_end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            smaller(parent, "magnitude", name="interrupted", **settings)
    assert not (tmp_path / "interrupted").exists()
    assert (tmp_path / ".interrupted.compressing" / "last.ckpt").is_file()
    resumed_from = []
    newest = fitting.newest
    monkeypatch.setattr(
        "qa_arch.training.fit.newest", lambda folder: resumed_from.append(newest(folder)) or resumed_from[-1]
    )
    resumed = smaller(parent, "magnitude", name="interrupted", **settings)
    assert [path for path, _ in resumed_from] == [tmp_path / ".interrupted.compressing" / "last.ckpt"]
    first, second = weights(uninterrupted), weights(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {path.name for path in tmp_path.iterdir()} == {"uninterrupted", "interrupted"}
    assert not list(resumed.glob("*.ckpt"))
    assert read_record(uninterrupted).best_epoch == 2, "with rising sparsity the last epoch is selected"
    with pytest.raises(RunError, match="already exists"):
        smaller(parent, "magnitude", name="uninterrupted", sparsity=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(compressed_runs, "evaluate_splits", None)
        with pytest.raises(TypeError):
            smaller(parent, "magnitude", name="fails", sparsity=0.5)
    assert {path.name for path in tmp_path.iterdir()} == {"uninterrupted", "interrupted"}, (
        "a failure leaves nothing"
    )


def test_killed_compression_leaves_no_partial_run(parent, smaller, tmp_path):
    uninterrupted = smaller(parent, "magnitude", name="uninterrupted", sparsity=0.5)

    def compress_parent():
        smaller(parent, "magnitude", sparsity=0.5)

    for _ in killed_at_sizes(compress_parent, [1, 20_000]):
        assert not (tmp_path / "smaller").exists()
        compress_parent()
        folder = tmp_path / "smaller"
        assert weights(folder).keys() == weights(uninterrupted).keys()
        assert all(
            torch.equal(weights(folder)[name], value) for name, value in weights(uninterrupted).items()
        )
        assert {path.name for path in tmp_path.iterdir()} == {"uninterrupted", "smaller"}
        shutil.rmtree(folder)


def test_frozen_layers_stay_frozen(altered, smaller):
    parent = altered("encoder", freeze=3)
    folder = smaller(parent, "magnitude", sparsity=0.3, epochs=1, lr=1e-2)
    before, after = weights(parent), weights(folder)
    unchanged = {
        name for name in before if torch.equal(before[name][after[name] != 0], after[name][after[name] != 0])
    }
    assert {name for name in before if "embeddings" in name or ".layer.0." in name} <= unchanged
    assert not {name for name in before if ".layer.3." in name and name.endswith("weight")} <= unchanged


def test_work_of_another_step_is_redone_and_finished_work_is_reused(parent, smaller, tmp_path, monkeypatch):
    work = tmp_path / ".smaller.compressing"
    work.mkdir()
    (work / "last.ckpt").write_text("another step")
    write_record(work, read_record(parent))
    folder = smaller(parent, "layers", layers=2, epochs=1)
    assert read_record(folder).status == "ok"
    assert {path.name for path in tmp_path.iterdir()} == {"smaller"}
    folder.rename(work)
    monkeypatch.setattr(compressed_runs, "_make", None)
    assert read_record(smaller(parent, "layers", layers=2, epochs=1)).status == "ok"


# Teachers -----------------------------------------------------------------------------------------

SOFT_TARGET_LOSS = "train_soft_targets"


@pytest.fixture
def student(parents, tmp_path):
    """A student and its teacher, a copy that a test may change."""
    teacher = shutil.copytree(parents("bert"), tmp_path / "teacher")
    settings = ["encoder.layers=2", "encoder.vocabulary=null", "distillation=soft_targets"]
    return parents("bert", *settings, f"distillation.teacher={teacher}"), teacher


def test_student_recovers_with_its_own_teacher_only(student, smaller, tmp_path):
    student, teacher = student
    folder = smaller(student, "layers", name="recovered", layers=1, epochs=1)
    before, after = read_record(student), read_record(folder)
    assert after.teacher == before.teacher
    assert after.epochs[0].value(SOFT_TARGET_LOSS) > 0
    assert load_predictor(folder, device="cpu")("Who wrote it?", "Ada wrote it.").windows == 1
    (teacher / "model" / "note.txt").write_text("something else")
    with pytest.raises(RunError, match=r"is not the teacher that .* learned from .*--epochs 0"):
        smaller(student, "layers", layers=1, epochs=1)
    shutil.rmtree(teacher)
    with pytest.raises(RunError, match=r"distillation\.teacher: .*teacher"):
        smaller(student, "layers", layers=1, epochs=1)
    assert not (tmp_path / "smaller").exists()
    stored = read_record(smaller(student, "layers", layers=1))
    assert stored.teacher == before.teacher, "a run without recovery keeps its teacher on record"


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "method", "settings", "message"),
    [
        ("bert", "widths", {"width": 64}, "width: 64 is not less than the 64 the model has"),
        ("bert", "heads", {"heads": 4}, "heads: 4 is not less than the 4"),
        ("bert", "layers", {"layers": 4}, "layers: 4 is not less than the 4"),
        ("match_lstm", "layers", {"layers": 1}, "has no transformer encoder"),
    ],
)
def test_invalid_requests_are_refused_before_any_work(
    parents, smaller, tmp_path, monkeypatch, model, method, settings, message
):
    monkeypatch.setattr(compressed_runs, "_make", None)
    with pytest.raises(ConfigError, match=message):
        smaller(parents(model), method, **settings)
    assert not list(tmp_path.iterdir())


def test_sources_that_are_not_complete_runs_are_refused(parent, smaller, tmp_path):
    published = tmp_path / "published"
    record = read_record(parent)
    write_record(published, record)
    with pytest.raises(RunError, match="has no weights"):
        smaller(published, "magnitude", sparsity=0.5)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").touch()
    with pytest.raises(RunError, match="is not a run; train one from its encoder"):
        smaller(tmp_path / "checkpoint", "magnitude", sparsity=0.5)
    write_record(published, replace(record, status="failed"))
    with pytest.raises(RunError, match="status is 'failed'"):
        smaller(published, "magnitude", sparsity=0.5)


# Models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "epochs"), [pytest.param("proposed", 1, marks=pytest.mark.slow), ("match_lstm", 0)]
)
def test_magnitude_prunes_every_span_model(parents, smaller, model, epochs):
    folder = smaller(parents(model), "magnitude", sparsity=0.5, epochs=epochs)
    record = read_record(folder)
    assert record.parameters.nonzero < record.parameters.total
    assert load_predictor(folder, device="cpu")("Who wrote it?", "Ada wrote it.").windows == 1


@pytest.mark.slow
def test_run_with_fewer_heads_exports_to_onnx_but_not_to_hf(parent, smaller, tmp_path, unchecked_shapes):
    folder = smaller(parent, "heads", heads=2, windows=8)
    predictor = load_predictor(folder, device="cpu")
    description = json.loads((folder / "model" / "encoder.json").read_text())
    assert description["fewer_heads"]["heads"] == 2
    assert description["num_attention_heads"] == 4
    with pytest.raises(ConfigError, match="with pruned heads"):
        export_hf(predictor, tmp_path / "hf")
    assert export_onnx(predictor, tmp_path / "graph").largest_difference < 1e-4
    graph = read_record(tmp_path / "graph")
    assert graph.weights_bytes == (tmp_path / "graph" / "model.onnx").stat().st_size
    with pytest.raises(RunError, match="is an exported graph"):
        smaller(tmp_path / "graph", "magnitude", name="no", sparsity=0.5)

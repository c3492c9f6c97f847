"""A run that was made smaller is a run: it loads, is scored on the parent's data, and says what it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from checkpoints import make_checkpoint
from kills import killed_at_sizes
from safetensors.torch import load_file, save_file
from steps import step
from transformers import AutoModelForQuestionAnswering

from qa_arch.config.schema import validate
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.evaluation.scoring import calibrate, read
from qa_arch.export.huggingface import export_hf
from qa_arch.export.onnx_folder import export_onnx
from qa_arch.extras.compression import runs as compressed_runs
from qa_arch.extras.compression.runs import Request, compress
from qa_arch.features.batches import Collator
from qa_arch.records import CALIBRATION, DEV, read_record, write_record
from qa_arch.results.columns import comparison
from qa_arch.results.publish import publish
from qa_arch.results.systems import group_by_system
from qa_arch.spans.loading import load_predictor
from qa_arch.training import loop
from qa_arch.training.checkpoint import BestWeights
from qa_arch.training.run import train


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def rankings(folder, questions, precision):
    predictor = load_predictor(folder, device="cpu", precision=precision)
    return [(p.best, p.null_odds) for p in predictor.read(questions).predictions()]


@pytest.fixture(scope="module")
def dev(sources):
    return open_passages(str(sources / "dev.json"), name="dev")


# int8 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["bert", "proposed"])
def test_stored_in_int8_it_answers_as_the_parent_read_in_int8(parents, smaller, dev, model):
    parent = parents(model)
    folder = smaller(parent, "int8")
    assert rankings(folder, dev, "int8") == rankings(parent, dev, "int8")
    whole, stored = weights(parent), weights(folder)
    linear = [name for name in stored if name.endswith("_scale")]
    assert len(linear) == 6 * (4 if model == "bert" else 2)
    for name in linear:
        weight = name.removesuffix("_scale")
        assert stored[weight].dtype == torch.int8
        step_sizes = stored[name][:, None]
        assert ((stored[weight] * step_sizes - whole[weight]).abs() <= 0.5001 * step_sizes).all()
    others = stored.keys() - set(linear) - {name.removesuffix("_scale") for name in linear}
    assert all(torch.equal(stored[name], whole[name]) for name in others)


def test_what_stands_on_the_disk_is_what_the_record_says(parent, smaller):
    before, after = read_record(parent), read_record(smaller(parent, "int8"))
    file = parent / "model" / "model.safetensors"
    assert before.weights_bytes == file.stat().st_size
    with_tables = read_record(smaller(parent, "int8", name="all", embeddings=True))
    assert before.weights_bytes > after.weights_bytes > with_tables.weights_bytes
    assert before.parameters.total == after.parameters.total == with_tables.parameters.total
    assert after.precision == "int8"


def test_it_is_scored_on_the_device_that_the_config_names(parent, smaller, monkeypatch):
    """The parent's ``trainer.accelerator`` is cpu, on a machine that has a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert read_record(smaller(parent, "magnitude", sparsity=0.5)).device.kind == "cpu"


def test_embeddings_in_int8_are_the_same_numbers_in_either_precision(parent, smaller, dev):
    folder = smaller(parent, "int8", embeddings=True)
    linear_alone = smaller(parent, "int8", name="linear")
    assert rankings(folder, dev, "int8") != rankings(linear_alone, dev, "int8")
    ids = torch.arange(20)[None]
    tables = [
        load_predictor(
            folder, device="cpu", precision=precision
        ).model.encoder.backbone.get_input_embeddings()
        for precision in ("int8", "fp32")
    ]
    with torch.inference_mode():
        assert torch.equal(tables[0](ids), tables[1](ids))
    assert [type(table).__name__ for table in tables] == ["Int8Embedding", "Embedding"]


def test_read_in_another_precision_it_is_what_was_rounded(parent, smaller, tmp_path):
    folder = smaller(parent, "int8")
    predictor = load_predictor(folder, device="cpu", precision="fp32")
    exact = load_predictor(parent, device="cpu").model.state_dict()
    off = [(predictor.model.state_dict()[name] - value).abs().max() for name, value in exact.items()]
    assert 0 < max(off) < 0.02
    export_hf(predictor, tmp_path / "hf")
    AutoModelForQuestionAnswering.from_pretrained(tmp_path / "hf")


def test_a_damaged_scale_is_named(parent, smaller):
    folder = smaller(parent, "int8")
    state = weights(folder)
    name = next(name for name in state if name.endswith("_scale"))
    save_file({**state, name: state[name][1:].clone()}, folder / "model" / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors: does not fit .*size mismatch .* in int8"):
        load_predictor(folder, device="cpu", precision="int8")


# Records ------------------------------------------------------------------------------------------


def test_the_record_names_parent_and_step_and_no_place(parent, smaller, tmp_path):
    folder = smaller(parent, "magnitude", sparsity=0.5)
    before, after = read_record(parent), read_record(folder)
    assert after.status == "ok"
    assert after.model == "bert-sparse50"
    assert asdict(after.parent) == {"run": parent.name, "config_hash": before.config_hash, "revision": None}
    (taken,) = after.config["compression"]
    assert (taken["method"], taken["sparsity"], taken["epochs"]) == ("magnitude", 0.5, 0)
    same = {**after.config, "compression": None}
    assert same == {**before.config, "compression": None}
    assert after.config_hash != before.config_hash
    assert str(tmp_path) not in (folder / "run.json").read_text()
    assert after.parameters.nonzero < after.parameters.total == before.parameters.total
    assert {split: facts.fingerprint for split, facts in after.data.items()} == {
        split: facts.fingerprint for split, facts in before.data.items()
    }
    assert after.data["train"].titles == before.data["train"].titles


def test_it_stands_beside_its_parent_in_tables_and_is_published(
    parents, parent, smaller, tmp_path, monkeypatch, sources
):
    monkeypatch.setenv("QA_ARCH_DATA", str(sources))
    folders = [parent, smaller(parent, "magnitude", name="a", sparsity=0.5)]
    folders.append(smaller(parent, "magnitude", name="b", sparsity=0.5, scope="layer"))
    runs = [(folder, read_record(folder)) for folder in folders]
    columns = ["model", "f1", "parameters", "nonzero", "weights_mb"]
    rows = [row for row in comparison(runs, columns=columns).rows if "run" in row]
    assert [row["model"] for row in rows] == ["bert", "bert-sparse50", "bert-sparse50"]
    assert rows[0]["nonzero"] == rows[0]["parameters"] > rows[1]["nonzero"]
    assert rows[0]["weights_mb"] == rows[1]["weights_mb"] > 0
    labels = [system.label for system in group_by_system(runs)]
    assert labels == ["bert", "bert-sparse50 scope=global", "bert-sparse50 scope=layer"]
    assert read_record(publish(folders[1], tmp_path / "records")).parent == runs[1][1].parent


def test_seeds_of_a_parent_are_seeds_of_the_smaller_system(parents, smaller):
    folders = [smaller(parents("bert", f"seed={n}"), "int8", name=f"s{n}") for n in (1, 2)]
    (system,) = group_by_system([(folder, read_record(folder)) for folder in folders])
    assert [record.seed for _, record in system.runs] == [1, 2]


def test_a_step_upon_a_step(parent, smaller, dev):
    narrow = smaller(parent, "widths", name="narrow", width=24, windows=8)
    sparse = smaller(narrow, "magnitude", name="sparse", sparsity=0.5)
    small = smaller(sparse, "int8", name="small")
    record = read_record(small)
    assert record.model == "bert-ffn24-sparse50-int8"
    assert [taken["method"] for taken in record.config["compression"]] == ["widths", "magnitude", "int8"]
    assert record.parent.run == "sparse"
    assert rankings(small, dev, "int8") == rankings(sparse, dev, "int8")
    for name, weight in weights(sparse).items():
        assert (weights(small)[name][weight == 0] == 0).all()
    with pytest.raises(RunError, match="is stored in int8, which is the last step"):
        smaller(small, "layers", name="no", layers=2)
    with pytest.raises(ConfigError, match=r"sparsity: 50\.0% of the weights are zero already"):
        smaller(sparse, "magnitude", name="no", sparsity=0.4)


def test_a_config_with_steps_is_not_trained_by_itself(parent, smaller, tmp_path):
    config = validate(read_record(smaller(parent, "int8")).config)
    with pytest.raises(ConfigError, match="qa-arch compress does that"):
        train(config, folder=tmp_path / "again")
    assert not (tmp_path / "again").exists()


# Data and training --------------------------------------------------------------------------------


def test_what_is_fitted_is_fitted_on_calibration_anew(parent, smaller, sources):
    folder = smaller(parent, "magnitude", sparsity=0.9)
    record = read_record(folder)
    assert record.threshold.fitted_on == CALIBRATION
    assert record.threshold != read_record(parent).threshold
    predictor = load_predictor(folder, device="cpu")
    fits = calibrate(predictor, read(predictor, open_passages(str(sources / "calibration.json"))))
    assert (fits.threshold, fits.confidence) == (record.threshold, record.confidence)
    assert set(record.scores) == {CALIBRATION, DEV}
    assert record.references == read_record(parent).references


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("layers", {"layers": 2}),
        ("widths", {"width": 24, "windows": 8}),
        ("layers", {"layers": 2, "epochs": 1}),
    ],
)
def test_a_closed_dev_set_stays_closed(parents, smaller, method, settings, monkeypatch):
    parent = parents("bert", "data.open_dev=false")
    opened: list[object] = []
    real = compressed_runs.SpanTask.open
    monkeypatch.setattr(
        compressed_runs.SpanTask,
        "open",
        lambda self, source, **kw: opened.append(source) or real(self, source, **kw),
    )
    record = read_record(smaller(parent, method, **settings))
    assert set(record.scores) == {CALIBRATION}
    assert DEV not in record.data
    assert not any("dev" in str(source) for source in opened)


def test_importance_is_estimated_on_training_windows_alone(parent, smaller, monkeypatch, sources):
    batches: list = []
    real = compressed_runs.importance

    def spied(model, maps, size, given, losses):
        batches.extend(given)
        return real(model, maps, size, batches, losses)

    monkeypatch.setattr(compressed_runs, "importance", spied)
    smaller(parent, "heads", heads=2, windows=10)
    assert 10 <= sum(map(len, batches)) < 10 + max(map(len, batches))
    table = load_predictor(parent, device="cpu").table(open_passages(str(sources / "train.json")))
    collate = Collator(table)
    assert all(torch.equal(batch.ids, collate(batch.index.tolist()).ids) for batch in batches)


def test_other_data_are_refused(parent, smaller, tmp_path, sources):
    copied = tmp_path / "moved"
    shutil.copytree(parent, copied)
    record = read_record(copied)
    other = {**record.config["data"], "calibration": str(sources / "dev.json"), "dev": None}
    write_record(copied, replace(record, config={**record.config, "data": other}))
    with pytest.raises(DataError, match=r"data\.calibration: not the questions that moved was made with"):
        smaller(copied, "magnitude", sparsity=0.5)
    assert {path.name for path in tmp_path.iterdir()} == {"moved"}


def test_the_recovery_is_the_parents_training_but_for_epochs_and_rate(parents, smaller, monkeypatch):
    parent = parents("proposed", "optim.lr=1e-3", "optim.head_lr=4e-3")
    seen = {}
    real = loop._trainer

    def spied(config, folder, callbacks, *args, **kwargs):
        seen.update(config=config, callbacks=callbacks)
        return real(config, folder, callbacks, *args, **kwargs)

    monkeypatch.setattr(loop, "_trainer", spied)
    modes = []
    step_of = loop.TrainingModule.training_step
    monkeypatch.setattr(
        loop.TrainingModule,
        "training_step",
        lambda self, *args: modes.append(all(m.training for m in self.modules())) or step_of(self, *args),
    )
    folder = smaller(parent, "layers", layers=1, epochs=2, lr=5e-4)
    trained, declared = seen["config"], validate(read_record(parent).config)
    optim, trainer = trained.optim, trained.trainer
    assert (optim.lr, optim.head_lr) == (5e-4, 2e-3)
    assert (trainer.epochs, trainer.max_steps) == (2, -1)
    assert replace(optim, lr=1e-3, head_lr=4e-3) == declared.optim
    assert trainer.select == declared.trainer.select
    assert modes
    assert all(modes)  # dropout is on
    record = read_record(folder)
    assert len(record.epochs) == 2
    assert record.best_epoch is not None
    assert record.config["trainer"] == read_record(parent).config["trainer"]


def test_of_a_rising_sparsity_the_last_epoch_is_kept(parent, smaller, monkeypatch):
    selected = []
    real = BestWeights.__init__

    def spied(self, save, select="f1", whole=None):
        selected.append(select)
        real(self, save, select, whole)

    monkeypatch.setattr(BestWeights, "__init__", spied)
    smaller(parent, "magnitude", sparsity=0.5, epochs=1)
    assert selected == ["last"]


def test_the_global_batch_of_several_devices_stays(parent, smaller, tmp_path, monkeypatch):
    copied = tmp_path / "two"
    shutil.copytree(parent, copied)
    record = read_record(copied)
    write_record(copied, replace(record, batch=replace(record.batch, devices=2)))
    record = read_record(smaller(copied, "layers", layers=2, epochs=1))
    assert (record.batch.accumulate, record.batch.devices) == (2, 1)


# Interruption -------------------------------------------------------------------------------------


def test_a_failure_leaves_nothing(parent, smaller, tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no disk")

    monkeypatch.setattr(compressed_runs, "evaluate_splits", fails)
    with pytest.raises(RuntimeError, match="no disk"):
        smaller(parent, "int8")
    assert not list(tmp_path.iterdir())


def test_a_training_that_broke_off_goes_on_where_it_stopped(parent, smaller, tmp_path, monkeypatch):
    settings = {"sparsity": 0.6, "epochs": 3, "lr": 1e-2}
    whole = smaller(parent, "magnitude", name="whole", **settings)
    with monkeypatch.context() as patch:
        epochs = []
        real = BestWeights.on_validation_end

        def breaks(self, trainer, module):
            epochs.append(trainer.current_epoch)
            if len(epochs) == 2:
                raise KeyboardInterrupt
            real(self, trainer, module)

        patch.setattr(BestWeights, "on_validation_end", breaks)
        with pytest.raises(KeyboardInterrupt):
            smaller(parent, "magnitude", name="broken", **settings)
    assert not (tmp_path / "broken").exists()
    assert (tmp_path / ".broken.compressing" / "last.ckpt").is_file()
    begun = []
    real_fit = loop.newest
    monkeypatch.setattr(
        "qa_arch.training.loop.newest", lambda folder: begun.append(real_fit(folder)) or begun[-1]
    )
    broken = smaller(parent, "magnitude", name="broken", **settings)
    assert begun == [tmp_path / ".broken.compressing" / "last.ckpt"]
    first, second = weights(whole), weights(broken)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "broken"}
    assert not list(broken.glob("*.ckpt"))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param("int8", {}, id="stored"),
        pytest.param("magnitude", {"sparsity": 0.5, "epochs": 2}, id="trained", marks=pytest.mark.slow),
    ],
)
def test_a_kill_leaves_no_half_run(parent, smaller, tmp_path, method, settings):
    whole = smaller(parent, method, name="whole", **settings)

    def make():
        smaller(parent, method, **settings)

    for _ in killed_at_sizes(make, [1, 4_000, 20_000]):
        assert not (tmp_path / "smaller").exists()
        make()
        made = tmp_path / "smaller"
        assert weights(made).keys() == weights(whole).keys()
        assert all(torch.equal(weights(made)[name], value) for name, value in weights(whole).items())
        assert {path.name for path in tmp_path.iterdir()} == {"whole", "smaller"}
        shutil.rmtree(made)


def test_what_was_finished_but_for_its_name_is_not_made_again(parent, smaller, tmp_path, monkeypatch):
    folder = smaller(parent, "layers", layers=2, epochs=1)
    folder.rename(tmp_path / ".smaller.compressing")
    monkeypatch.setattr(compressed_runs, "_compress", None)
    assert read_record(smaller(parent, "layers", layers=2, epochs=1)).status == "ok"


def test_frozen_layers_stay_frozen(parents, smaller):
    parent = parents("bert", "encoder.freeze=3")
    folder = smaller(parent, "magnitude", sparsity=0.3, epochs=1, lr=1e-2)
    before, after = weights(parent), weights(folder)
    same = {
        name for name in before if torch.equal(before[name][after[name] != 0], after[name][after[name] != 0])
    }
    assert {name for name in before if "embeddings" in name or ".layer.0." in name} <= same
    assert not {name for name in before if ".layer.3." in name and name.endswith("weight")} <= same
    fewer = smaller(parent, "layers", name="fewer", layers=2, epochs=1, lr=1e-2)
    assert torch.equal(
        *(weights(f)["encoder.backbone.embeddings.word_embeddings.weight"] for f in (parent, fewer))
    )


def test_what_was_begun_otherwise_is_begun_anew(parent, smaller, tmp_path):
    work = tmp_path / ".smaller.compressing"
    work.mkdir()
    (work / "last.ckpt").write_text("of another step")
    write_record(work, read_record(parent))
    folder = smaller(parent, "layers", layers=2, epochs=1)
    assert read_record(folder).status == "ok"
    assert {path.name for path in tmp_path.iterdir()} == {"smaller"}


def test_what_is_in_the_way_is_left_alone(parent, smaller, tmp_path):
    (tmp_path / "smaller").mkdir()
    with pytest.raises(RunError, match="is in the way"):
        smaller(parent, "int8")


# Teachers -----------------------------------------------------------------------------------------


def student_of(teacher, parents, choice):
    settings = ["encoder.layers=2", "encoder.vocabulary=null", f"distillation={choice}"]
    return parents("bert", *settings, f"distillation.teacher={teacher}")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param("magnitude", {"sparsity": 0.5}, marks=pytest.mark.slow),
        ("layers", {"layers": 1}),
        pytest.param("heads", {"heads": 2, "windows": 8}, marks=pytest.mark.slow),
    ],
)
def test_a_student_goes_on_learning_from_its_teacher(parent, parents, smaller, method, settings):
    student = student_of(parent, parents, "soft_targets")
    folder = smaller(student, method, epochs=1, **settings)
    before, after = read_record(student), read_record(folder)
    assert after.teacher == before.teacher
    assert after.epochs[0].value("train_soft_targets") > 0
    assert load_predictor(folder, device="cpu")("Who wrote it?", "Ada wrote it.").windows == 1


def test_what_is_not_trained_again_still_says_who_taught_it(parent, parents, smaller):
    """Articles that the teacher alone has seen count as seen when the smaller run is scored."""
    student = student_of(parent, parents, "soft_targets")
    record = read_record(student)
    assert record.teacher.name == parent.name
    write_record(student, replace(record, teacher=replace(record.teacher, titles=("Lomm",))))
    try:
        assert "Lomm" in read_record(smaller(student, "int8")).trained_titles
    finally:
        write_record(student, record)


def test_without_its_teacher_a_student_is_not_trained_again(parent, parents, smaller, tmp_path):
    teacher = shutil.copytree(parent, tmp_path / "teacher")
    student = student_of(teacher, parents, "soft_targets")
    (teacher / "model" / "note.txt").write_text("something else")
    with pytest.raises(RunError, match=r"is not the teacher that .* learned from .*--epochs 0"):
        smaller(student, "layers", layers=1, epochs=1)
    shutil.rmtree(teacher)
    with pytest.raises(RunError, match=r"distillation\.teacher: .*teacher"):
        smaller(student, "layers", layers=1, epochs=1)
    assert not (tmp_path / "smaller").exists()
    assert read_record(smaller(student, "layers", layers=1)).status == "ok"


# What does not fit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "method", "settings", "message"),
    [
        ("bert", "widths", {"width": 64}, "width: 64 are no fewer than the 64 that there are"),
        ("bert", "heads", {"heads": 4}, "heads: 4 are no fewer than the 4"),
        ("bert", "layers", {"layers": 4}, "layers: 4 are no fewer than the 4"),
        ("words", "layers", {"layers": 1}, "reads words, and has no encoder"),
        ("words", "int8", {}, "reads words, and has no encoder"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    parents, smaller, tmp_path, monkeypatch, model, method, settings, message
):
    monkeypatch.setattr(compressed_runs, "_compress", None)
    with pytest.raises(ConfigError, match=message):
        smaller(parents(model), method, **settings)
    assert not list(tmp_path.iterdir())


def test_runs_without_weights_or_spans_are_refused(parent, smaller, tmp_path):
    published = tmp_path / "published"
    record = read_record(parent)
    write_record(published, record)
    with pytest.raises(RunError, match="has no weights"):
        smaller(published, "int8")
    facts = replace(record.data["train"], protocol="selection")
    write_record(published, replace(record, data={"train": facts}))
    with pytest.raises(RunError, match="selects answers; only models that find spans"):
        smaller(published, "int8")
    write_record(published, replace(record, status="failed"))
    with pytest.raises(RunError, match="status is 'failed'"):
        smaller(published, "int8")


# Models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [pytest.param("proposed", marks=pytest.mark.slow), "words"])
def test_every_span_model_is_pruned_by_magnitude(parents, smaller, model):
    folder = smaller(parents(model), "magnitude", sparsity=0.5, epochs=1)
    record = read_record(folder)
    assert record.parameters.nonzero < record.parameters.total
    assert load_predictor(folder, device="cpu")("Who wrote it?", "Ada wrote it.").windows == 1


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("heads", {"heads": 2, "windows": 8, "epochs": 1}),
        pytest.param("widths", {"width": 24, "windows": 8, "epochs": 1}, marks=pytest.mark.slow),
        pytest.param("layers", {"layers": 2, "epochs": 1}, marks=pytest.mark.slow),
    ],
)
def test_our_transformer_becomes_smaller_as_the_librarys_do(parents, smaller, dev, method, settings):
    parent = parents("ours")
    folder = smaller(parent, method, **settings)
    assert read_record(folder).parameters.total < read_record(parent).parameters.total
    int8 = smaller(folder, "int8", name="int8")
    assert rankings(int8, dev, "int8") == rankings(folder, dev, "int8")


def test_fewer_layers_and_units_are_a_folder_of_the_library(parent, smaller, tmp_path):
    fewer = smaller(parent, "layers", name="fewer", layers=2)
    narrow = smaller(fewer, "widths", name="narrow", width=24, windows=8)
    export_hf(load_predictor(narrow, device="cpu"), tmp_path / "hf")
    config = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "hf").config
    assert (config.num_hidden_layers, config.intermediate_size) == (2, 24)


@pytest.mark.slow
def test_fewer_heads_are_a_graph_and_no_folder_of_the_library(parent, smaller, tmp_path, unchecked_shapes):
    folder = smaller(parent, "heads", heads=2, windows=8)
    predictor = load_predictor(folder, device="cpu")
    description = json.loads((folder / "model" / "encoder.json").read_text())
    assert description["fewer_heads"]["heads"] == 2
    assert description["num_attention_heads"] == 4
    with pytest.raises(ConfigError, match="heads were removed"):
        export_hf(predictor, tmp_path / "hf")
    assert export_onnx(predictor, tmp_path / "graph").largest_difference < 1e-4
    graph = read_record(tmp_path / "graph")
    assert graph.weights_bytes == (tmp_path / "graph" / "model.onnx").stat().st_size
    with pytest.raises(RunError, match="a graph cannot become smaller"):
        smaller(tmp_path / "graph", "int8", name="no")


@pytest.mark.parametrize(
    "family",
    ["distilbert", *(pytest.param(family, marks=pytest.mark.slow) for family in ("bert", "roberta"))],
)
def test_a_checkpoint_is_a_parent(smaller, tmp_path, sources, dev, family):
    texts = [text for example in dev.examples for text in (example.context, example.question)]
    source = make_checkpoint(family, tmp_path / "checkpoint", texts, num_hidden_layers=4, n_layers=4)
    layers = smaller(source, "layers", name="layers", layers=2)
    record = read_record(layers)
    assert record.model == "checkpoint-layers2"
    assert record.parent.revision.startswith("sha256:")
    assert record.scores == {}
    assert record.threshold.fitted_on == "nothing"
    assert load_predictor(layers, device="cpu")("Who wrote it?", "Ada wrote it.").windows == 1
    with pytest.raises(ConfigError, match="--train: checkpoint names no training data"):
        smaller(source, "widths", name="no", width=8)
    data = {"train": [str(sources / "train.json")], "calibration": [str(sources / "calibration.json")]}
    narrow = read_record(smaller(source, "widths", name="narrow", width=8, windows=8, epochs=1, **data))
    assert narrow.threshold.fitted_on == CALIBRATION
    assert narrow.epochs
    int8 = smaller(source, "int8", name="int8")
    assert rankings(int8, dev, "int8") == rankings(source, dev, "int8")


def test_a_checkpoint_with_another_head_is_refused(smaller, tmp_path, dev):
    texts = [text for example in dev.examples for text in (example.context, example.question)]
    source = make_checkpoint("modernbert", tmp_path / "checkpoint", texts)
    with pytest.raises(ConfigError, match="is more than an encoder with a linear span head"):
        smaller(source, "int8")


def test_a_run_names_its_own_data(parent, smaller, sources):
    with pytest.raises(ConfigError, match="names its own data"):
        smaller(parent, "layers", layers=2, train=[str(sources / "train.json")])


def test_a_request_is_checked_once_more_behind_the_lock(parent, tmp_path, monkeypatch):
    out = tmp_path / "smaller"
    real = compressed_runs._check_step

    def late(*args):
        real(*args)
        out.mkdir()

    monkeypatch.setattr(compressed_runs, "_check_step", late)
    with pytest.raises(RunError, match="is in the way"):
        compress(Request(str(parent), out, step("int8")))

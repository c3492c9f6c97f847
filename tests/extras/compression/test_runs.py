"""A compressed run is a run like any other; its record says what it was made of, and its measured costs."""

import json
import shutil
from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file

from qa_arch.config.check import from_mapping
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.export.huggingface import export_hf
from qa_arch.export.onnx import export_onnx
from qa_arch.extras.compression import pruning
from qa_arch.extras.compression.manifest import Compression
from qa_arch.features.batches import Collator
from qa_arch.qa import start
from qa_arch.qa.loading import load_predictor
from qa_arch.records import read_record
from qa_arch.results.columns import runs_table
from qa_arch.results.publish import publish
from qa_arch.results.systems import group_by_system
from qa_arch.training.checkpoint import BestWeights

QUESTION = ("--question", "Who wrote it?", "--context", "The song was written by Ada Stone.")


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def test_record_states_the_step_and_the_settings_of_the_parent(parent, smaller):
    folder = smaller(parent, "magnitude", sparsity=0.5)
    before, after = read_record(parent), read_record(folder)
    assert (after.status, after.model) == ("ok", "bert-sparse50")
    assert after.parent.run_hash == before.run_hash
    step = {"method": "magnitude", "sparsity": 0.5, "scope": "global", "ramp": 0.5}
    assert after.config["compression"].items() >= step.items()
    assert after.config["trainer"] == before.config["trainer"] | {
        **{"epochs": 0, "max_steps": -1, "select": "last", "patience": 0}
    }
    for section in ("data", "encoder", "optim", "features"):
        assert after.config[section] == before.config[section]
    masks = pruning.zeros(load_predictor(folder, device="cpu").model)
    assert pruning.sparsity_of(masks) == pytest.approx(0.5, abs=1e-3)
    assert after.parameters.nonzero < after.parameters.total == before.parameters.total


def test_smaller_encoder_replaces_that_of_any_name(parent, renamed_encoder):
    words = [f"init_from={parent}", "compression=layers", "compression.keep=2"]
    parts = start.assemble(validate(compose(words)))
    assert parts.encoder is parts.model[0].encoder
    assert parts.encoder.depth == 2


def test_runs_are_tabulated_with_their_parent_and_published(parent, smaller, tmp_path, monkeypatch, sources):
    monkeypatch.setenv("QA_ARCH_DATA", str(sources))
    monkeypatch.chdir(parent.parent)
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
    narrow = smaller(parent, "widths", name="narrow", keep=24, windows=8)
    sparse = smaller(narrow, "magnitude", name="sparse", sparsity=0.5)
    record = read_record(sparse)
    assert (record.model, record.parent.run) == ("bert-ffn24-sparse50", "narrow")
    assert record.config["compression"]["method"] == "magnitude"
    with pytest.raises(ConfigError, match=r"compression\.sparsity: 50\.0% of the weights are zero already"):
        smaller(sparse, "magnitude", name="no", sparsity=0.4)


def test_a_structure_is_traced_with_as_many_windows_as_there_are(parent, smaller, monkeypatch):
    monkeypatch.setattr(pruning, "SAMPLE", 10_000)
    assert read_record(smaller(parent, "widths", keep=24, windows=8)).model == "bert-ffn24"


def test_importance_is_estimated_on_training_windows_only(parent, smaller, monkeypatch, sources):
    batches: list = []
    real = pruning.importance

    def recorded(model, maps, size, windows, losses):
        batches.extend(windows)
        return real(model, maps, size, batches, losses)

    monkeypatch.setattr(pruning, "importance", recorded)
    smaller(parent, "heads", keep=2, windows=10)
    assert 10 <= sum(map(len, batches)) < 10 + max(map(len, batches))
    table = load_predictor(parent, device="cpu").table(open_passages(str(sources / "train.json")))
    collate = Collator(table)
    assert all(torch.equal(batch.ids, collate(batch.index.tolist()).ids) for batch in batches)


@pytest.mark.slow
def test_interrupted_training_resumes_where_it_stopped(parent, smaller, monkeypatch):
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
    first, second = (
        weights(uninterrupted),
        weights(smaller(parent, "magnitude", name="interrupted", **settings)),
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_record(uninterrupted).best_epoch == 2, "with rising sparsity the last epoch is selected"


def test_frozen_layers_of_a_shorter_encoder_stay_frozen(parent, smaller):
    folder = smaller(parent, "layers", "encoder.freeze=1", keep=2, epochs=1, lr=1e-2)
    before, after = weights(parent), weights(folder)
    pairs = {name: before[name.replace("layer.1.", "layer.2.")] for name in after}  # layers 0 and 2 of 4
    unchanged = {name for name in after if torch.equal(after[name], pairs[name])}
    assert {name for name in after if "embeddings" in name or ".layer.0." in name} <= unchanged
    assert not {name for name in after if ".layer.1." in name and name.endswith("weight")} & unchanged


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "layers", "keep": 1, "choose": "first", "windows": 9}, "windows: is not a setting with"),
        ({"method": "heads", "windows": 9}, "keep: is missing, which is needed with compression=heads"),
        ({"method": "magnitude", "sparsity": 0.0, "scope": "layer", "ramp": 0.5}, "sparsity: 0.0 is out of"),
    ],
)
def test_settings_are_those_of_the_method(settings, message):
    with pytest.raises(ConfigError, match=rf"^compression\.{message}"):
        from_mapping(Compression, settings, "compression")


@pytest.mark.parametrize(
    ("model", "method", "keep", "message"),
    [
        ("bert", "widths", 64, r"compression\.keep: 64 is not less than the 64 the model has"),
        ("bert", "heads", 4, "4 is not less than the 4"),
        ("bert", "layers", 4, "4 is not less than the 4"),
        ("match_lstm", "layers", 1, "has no transformer encoder; use compression=magnitude"),
    ],
)
def test_invalid_requests_are_refused_before_any_work(
    parents, smaller, tmp_path, model, method, keep, message
):
    with pytest.raises(ConfigError, match=message):
        smaller(parents(model), method, keep=keep)
    assert not list(tmp_path.iterdir())


def test_change_without_a_run_and_a_missing_package_are_reported_before_any_work(
    qa_arch, parent, smaller, monkeypatch, tmp_path
):
    code, _, err = qa_arch("train", "compression=layers", "compression.keep=2")
    assert (code, err) == (
        2,
        "qa-arch: compression: changes a trained model; give its run with init_from=RUN\n",
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"compression=heads: .*pip install -e '.\[compress\]'"):
        smaller(parent, "heads", keep=1)
    assert not list(tmp_path.iterdir())


# Models and commands


@pytest.mark.parametrize(
    ("model", "epochs"), [pytest.param("proposed", 1, marks=pytest.mark.slow), ("match_lstm", 0)]
)
def test_magnitude_prunes_every_span_model(parents, smaller, model, epochs):
    folder = smaller(parents(model), "magnitude", sparsity=0.5, epochs=epochs)
    assert read_record(folder).parameters.nonzero < 0.9 * read_record(folder).parameters.total
    assert load_predictor(folder, device="cpu")("Who wrote it?", "Ada wrote it.").windows == 1


@pytest.mark.slow
def test_run_with_fewer_heads_exports_to_onnx_but_not_to_hf(parent, smaller, tmp_path, unchecked_shapes):
    folder = smaller(parent, "heads", keep=2, windows=8)
    predictor = load_predictor(folder, device="cpu")
    description = json.loads((folder / "model" / "encoder.json").read_text())
    assert description["fewer_heads"]["heads"] == 2
    assert description["num_attention_heads"] == 4
    with pytest.raises(ConfigError, match="with pruned heads"):
        export_hf(predictor, tmp_path / "hf")
    assert export_onnx(predictor, tmp_path / "graph").largest_difference < 1e-4
    graph = read_record(tmp_path / "graph")
    assert graph.weights_bytes == (tmp_path / "graph" / "model.onnx").stat().st_size


@pytest.mark.slow
def test_grid_of_sizes_is_a_sweep_and_its_runs_work_with_every_command(
    qa_arch, run_folder, tmp_path, monkeypatch, read_json, unchecked_shapes
):
    monkeypatch.chdir(tmp_path)
    grid = ("compression=widths", "compression.keep=24,16", "compression.windows=16", "trainer.epochs=0")
    code, out, err = qa_arch("train", "-m", f"init_from={run_folder.name}", *grid, "sweep.folder=narrow")
    assert code == 0, err
    folders = {read_record(path.parent).model: path.parent for path in tmp_path.glob("narrow/*/run.json")}
    assert folders.keys() == {"bert-ffn24", "bert-ffn16"}
    shutil.move(folders["bert-ffn24"], "small")
    scores = read_json("small/run.json")["scores"]["dev"]["calibrated"]
    code, out, err = qa_arch("evaluate", "--json", "--run", "small")
    assert code == 0, err
    assert json.loads(out)["calibrated"]["f1"] == scores["metrics"]["f1"]
    assert qa_arch("ask", "small", *QUESTION)[0] == 0
    code, out, _ = qa_arch("show", "small")
    assert code == 0
    for words in ("started from", f"{run_folder.name} (run hash", "compression.keep", "MB on disk"):
        assert words in out, words
    assert "compression.choose" not in out
    assert qa_arch("compare", run_folder, "small")[0] == 0
    assert qa_arch("report", run_folder, "small", "--out", "report.html")[0] == 0
    assert "bert-ffn24" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert qa_arch("export", "small", "--to", "hf", "--out", "hf")[0] == 0
    assert read_json("hf/config.json")["intermediate_size"] == 24


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_runs_are_measured_by_engine_and_record_their_costs(
    run_folder, smaller, tmp_path, monkeypatch, capsys
):
    """A tiny run, a part of its layers, and its graph in int8."""
    from benchmarks import compression

    export_onnx(load_predictor(run_folder, device="cpu"), tmp_path / "graph", precision="int8")
    folders = (run_folder, smaller(run_folder, "layers", keep=2), tmp_path / "graph")
    runs = parent, layers, graph = [str(folder) for folder in folders]
    measured: list[tuple[str, tuple[str, ...]]] = []

    def measure(what, runs, args):
        measured.append((what, tuple(runs)))
        return compression.CHILDREN[what](Namespace(**{**vars(args), "runs": runs}))

    monkeypatch.setattr(compression, "_run_child", measure)
    options = ["--baseline", parent, "--data", "synthetic:dev", "--questions", "3", "--repeats", "2"]
    options += ["--precision", "bf16"]
    assert compression.main([layers, graph, *options]) == 0
    assert measured == [
        ("latency", (parent, layers)),
        ("latency", (graph,)),
        *(("memory", (run,)) for run in runs),
    ]
    costs = [read_record(run).cost for run in runs]
    baseline = f"{run_folder.name} ({read_record(parent).run_hash[:8]})"
    assert {cost.baseline for cost in costs} == {baseline}
    assert [cost.engine for cost in costs] == ["torch", "torch", "onnx"]
    assert [cost.precision for cost in costs] == ["bf16", "bf16", "int8"]
    assert all(cost.latency_ms > 0 and cost.latency_ratio > 0 for cost in costs)
    assert costs[0].memory_ratio == 1.0
    assert (costs[0].questions, costs[0].repeats) == (3, 2)
    output = capsys.readouterr().out
    assert "bert-layers2" in output
    assert "× latency" in output

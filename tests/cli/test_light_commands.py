"""Commands without a model, ``data split`` and ``params``, and checks of input before torch is imported."""

import json
from dataclasses import replace

import numpy as np
import pytest
from fresh import HEAVY, run_calls

from qa_arch.cli.main import COMMANDS
from qa_arch.config.compose import compose
from qa_arch.config.schema import LOSSES, Config, recipes, validate
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError
from qa_arch.features.vectors import WordVectors
from qa_arch.files import write_json
from qa_arch.manifest import from_extras
from qa_arch.training.inputs import load_sets
from qa_arch.training.jobs import require_files, require_hub

QUESTIONS = generate(10, seed=3)


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "all.json"
    path.write_text(json.dumps(write(QUESTIONS)), encoding="utf-8")
    return path


def test_existing_part_with_other_content_prevents_any_write(qa_arch, data_file, tmp_path):
    target = tmp_path / "parts"
    assert qa_arch("data", "split", "--data", data_file, "--out", target, "--seed", 1)[0] == 0
    (target / "train.json").unlink()
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    code, _, err = qa_arch("data", "split", "--data", data_file, "--out", target, "--seed", 2)
    assert (code, "calibration.json: already exists and was not changed" in err) == (2, True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert qa_arch("data", "split", "--data", data_file, "--out", target, "--seed", 1)[0] == 0
    assert {path.name for path in target.iterdir()} == {*before, "train.json"}


# Published counts without the pooler (590,592), which span models lack.
ENCODERS = {
    "bert": 109_482_240 - 590_592,
    "roberta": 124_645_632 - 590_592,
    "albert": 11_683_584 - 590_592,
    "distilbert": 66_362_880,
}
HEAD = 2 * 768 + 2


@pytest.fixture
def params(qa_arch):
    def call(*overrides):
        code, out, err = qa_arch("params", *overrides, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


def test_counts_of_baselines(params, qa_arch):
    for model, encoder in ENCODERS.items():
        counts = params(f"model={model}")
        assert counts["blocks"] == {"encoder": encoder, "span": HEAD}
        assert counts["total"] == counts["trainable"] == encoder + HEAD
        assert counts["word_vectors"] == 0
    assert params("model=bert", "encoder=minilm")["blocks"]["encoder"] == 22_713_216 - 147_840
    random = qa_arch("params", "model=bert", "debug=fast")[1]
    assert "initialised: 1 layer" in random
    assert "bert-base" not in random


@pytest.mark.parametrize(
    ("overrides", "total"),
    [
        (["boundary"], 882_452),
        (["boundary_b"], 1_085_852),
        (["bi_ans_ptr"], 1_425_003),
        (["boundary", "model.lstm=standard"], 949_202),
    ],
)
def test_match_lstm_has_the_published_counts(params, overrides, total, monkeypatch):
    """Wang & Jiang 2016, Table 2: 882K, 3.2M, 1.1M (+ b), 1.4M (Bi-Ans-Ptr); frozen 300-d vectors."""
    monkeypatch.delenv("QA_ARCH_GLOVE", raising=False)
    model, *rest = overrides
    counts = params(f"model=match_lstm/{model}", "glove.dim=300", *rest)
    assert counts["total"] == counts["trainable"] == sum(counts["blocks"].values()) == total


def test_word_vectors_set_the_width(params, qa_arch, tmp_path, monkeypatch):
    """A missing file is an error; a folder of vectors saved with a run is read too."""
    monkeypatch.delenv("QA_ARCH_GLOVE", raising=False)
    small = ("model=proposed", "debug=fast")
    code, _, err = qa_arch("params", *small, f"glove.path={tmp_path / 'absent.txt'}", "glove=file")
    assert (code, "no such file of word vectors" in err) == (4, True)
    WordVectors(("the", "mill"), np.eye(3, 5, -1, dtype=np.float32)).save(tmp_path)
    narrow = params(*small, "glove=file", f"glove.path={tmp_path}", "glove.keep=7")
    assert narrow["word_vectors"] is None
    note = "word vectors are not counted: a run keeps those of its data and the first 7 (glove.keep)"
    assert narrow["notes"] == [note]
    wide, same, without = (
        params(*small, *glove)
        for glove in (["glove=file", "glove.dim=6"], ["glove=file", "glove.dim=5"], ["glove=none"])
    )
    assert without["notes"] == []
    assert without["total"] < narrow["total"] == same["total"] < wide["total"]


TASKS = {
    "span": "bert",
    "sequence": "match_lstm/sequence",
    "selection": "qa_lstm/c",
    "classification": "question_types",
    "masked_lm": "pretrain/mlm",
    "causal_lm": "pretrain/causal",
    "denoising": "pretrain/denoising",
}
"""Task -> a model of it."""
INSTALLED = [task for task in TASKS if task in LOSSES or task in recipes()]
CORPORA = [task for task in INSTALLED if TASKS[task].startswith("pretrain/")]
CLASSES = ["types:synthetic:train"] if "types" in from_extras("formats") else []
"""Source of a classification set, if the extra that reads it is installed."""


def error_message(load, argument) -> str | None:
    try:
        load(argument)
    except DataError as error:
        return str(error)
    return None


def with_data(task: str, source: str) -> Config:
    config = validate(compose(["debug=fast", f"model={TASKS[task]}"]))
    data = replace(config.data, train=source, calibration=None, dev=None, hold_out_share=0.3)
    return replace(config, data=replace(data, hold_out_articles=0))


@pytest.mark.parametrize("task", INSTALLED)
def test_unsuitable_data_gets_the_error_of_the_task(task):
    """Checks of data before torch is imported agree with those of the tasks."""
    assert set(TASKS) >= {*LOSSES, *recipes()}
    for source in ("synthetic:train", *CLASSES):
        config = with_data(task, source)
        assert error_message(require_files, config) == error_message(load_sets, config)


@pytest.mark.skipif(not CORPORA, reason="no model of an installed extra reads a corpus")
@pytest.mark.parametrize("source", ["squad:{}/set.json", "{}/text.txt", "{}/texts", "hub:text:body"])
def test_missing_corpus_is_reported_for_every_kind_of_source(source, tmp_path):
    config = with_data(CORPORA[0], source.format(tmp_path))
    missing = error_message(require_files, config)
    assert source.startswith("hub:") if missing is None else missing.startswith("data.train: ")
    (tmp_path / "texts").mkdir()
    for name in ("set.json", "text.txt", "texts/more.txt"):
        (tmp_path / name).write_text("{}")
    assert error_message(require_files, config) is None


def test_cached_hub_dataset_needs_no_hub(monkeypatch, tmp_path):
    """Under its old name, at a revision, or in a folder."""
    (tmp_path / "rajpurkar___squad" / "default").mkdir(parents=True)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    own = ["model=bert", "debug=fast", "data=demo", "data.dev=null", "data.hold_out_articles=1"]
    for name in ("squad", "rajpurkar/squad@main", tmp_path):
        require_hub([validate(compose([*own, f"data.train=hub:{name}:train"]))])


def test_input_errors_and_missing_packages_are_reported_before_torch_is_imported(tmp_path):
    """Unknown runs, missing files, mistyped settings, classes that are not trusted."""
    run, data = tmp_path / "none", ["--data", "hub:some/set:validation"]
    calls = [
        ("ask", run, "--question", "Who?", "--context", "Ada."),
        ("predict", run, *data, "--out", tmp_path / "p"),
        ("predict", run, "--data", "x.jsonl", "--out", tmp_path / "p.jsonl"),
        ("evaluate", "--run", run, *data),
        ("compare", run, run),
    ]
    expected = {call: (5, str(run)) for call in calls}
    (zipped := tmp_path / "glove.zip").write_bytes(b"PK\3\4")
    proposed, foreign = ("train", "model=proposed", "data=demo"), ("model=bert", "model._target_=mine.Model")
    expected |= {
        (*proposed, f"glove.path={zipped}"): (4, "is compressed: unzip it"),
        (*proposed, "-m", "glove.path=no/glove.txt", "seed=1,2"): (4, "no/glove.txt: no such file"),
        (*proposed, "data.dev=no/dev.json", "data.open_dev=false", "glove.path=no.txt"): (
            4,
            "glove.path: no",
        ),
        ("train", "model=bert", "data=files", "data.train=no/t.json"): (4, "data.train: no/t.json"),
        ("train", "optim.lrr=1"): (2, "did you mean 'optim.lr'"),
        ("train", "trainer.epochs"): (2, "is not KEY=VALUE"),
        ("train", "debug=fast", "encoder=minilm"): (2, "encoder=minilm: would not be loaded"),
        ("train", "experiment=squad2"): (6, "bert-base-uncased, rajpurkar/squad_v2: no such folder, not dow"),
        ("train", *foreign): (2, "if you trust it, add --trust mine"),
        ("check-model", *foreign): (2, "if you trust it, add --trust mine"),
    }
    search = ("debug=fast", "hydra/sweeper=qa_optuna", "optim.lr=interval(1e-5,1e-4)")
    packages = {
        ("train", "-m", "debug=fast", "logger=mlflow", "seed=1,2"): ("mlflow", "[mlflow]', or logger=none"),
        ("train", "-m", *search): ("optuna", "[optuna]'"),
        ("train", "data=demo", "trainer.optimizer_bits=8"): ("bitsandbytes", "[8bit]', or use 32"),
        ("serve", "runs/x"): ("uvicorn", "[serve]'"),
        ("export", "runs/x", "--to", "onnx", "--out", "o"): ("onnxscript", "[onnx]'"),
        ("predict", "runs/x", "--data", "x.jsonl", "--out", "y.jsonl", "--on", "ray"): ("ray", "[ray]'"),
    }
    for call, (module, remedy) in packages.items():
        expected[call] = 6, f"{module} is not installed; in the checkout: pip install -e '.{remedy}"
    results = run_calls(*expected, missing=[module for module, _ in packages.values()])
    for (call, (code, message)), (actual, line, heavy) in zip(expected.items(), results, strict=True):
        assert (actual, heavy, message in line) == (code, [], True), (call, line)
        assert len(line.splitlines()) == 1


def test_commands_without_a_model_import_no_heavy_package(trained, tmp_path):
    """The modules of light packages, the help of every command, and commands that only read."""
    light = [f"qa_arch.{name}" for name in ("config", "metrics", "results", "data", "sweep")]
    data = write_json(tmp_path / "data.json", write(synthetic.named("dev")))
    help_calls = [("--help",), *((command, "--help") for command in COMMANDS)]
    empty_answers = {example.id: "" for example in synthetic.named("dev").examples}
    answers = write_json(tmp_path / "answers.json", empty_answers)
    adopted = ("adopt", "--predictions", answers, "--data", data, "--name", "x", "--folder", tmp_path / "x")
    calls = [*help_calls, ("stats", "--data", data), ("tables", trained), adopted]
    results = run_calls(*calls, ("list", "settings"), heavy=[*HEAVY, "hydra"], packages=light)
    assert results == [[0, "", []]] * len(calls) + [[0, "", ["hydra"]]]
    evaluate = ("evaluate", "--data", data, "--predictions", answers)
    heavier = [*HEAVY, "numpy", "qa_arch.evaluation", "qa_arch.data.synthetic"]
    ((code, err, heavy),) = run_calls(evaluate, heavy=heavier)
    assert (code, err.splitlines()[0], heavy) == (0, "protocol: SQuAD 2.0 (from the data)", [])

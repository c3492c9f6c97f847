"""Input errors and commands without a model need no heavy package: in a fresh interpreter, offline."""

from fresh import HEAVY, run_calls

from qa_arch.cli.main import COMMANDS
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.files import write_json


def test_input_errors_are_reported_before_torch_is_imported(tmp_path):
    """Unknown runs, missing files, mistyped settings."""
    run, data = tmp_path / "none", ["--data", "hub:some/set:validation"]
    calls = [
        ("ask", run, "--question", "Who?", "--context", "Ada."),
        ("predict", run, *data, "--out", tmp_path / "p"),
        ("predict", run, "--data", "x.jsonl", "--out", tmp_path / "p.jsonl"),
        ("evaluate", "--run", run, *data),
        ("serve", run),
        ("export", run, "--to", "onnx", "--out", tmp_path / "o"),
        ("compare", run, run),
        ("show", run),
    ]
    expected = {call: (5, str(run)) for call in calls}
    existing = tmp_path / "existing.json"
    existing.write_text("{}")
    files = ("data=files", f"data.train={existing}", "data.hold_out_articles=1")
    (zipped := tmp_path / "glove.zip").write_bytes(b"PK\3\4")
    # A closed dev set need not exist.
    closed = ("data.dev=no/dev.json", "data.open_dev=false", "glove.path=no.txt")
    expected |= {
        ("train", "model=proposed", "data=demo", "glove.path=no/glove.txt"): (4, "glove.path: no/glove.txt"),
        ("train", "model=proposed", "data=demo", f"glove.path={zipped}"): (4, "is compressed: unzip it"),
        ("train", "-m", "model=proposed", "data=demo", "glove.path=no/glove.txt", "seed=1,2"): (4, "glove"),
        ("train", "model=bert", *files, "data.dev=no/dev.json"): (4, "data.dev: no/dev.json"),
        ("train", "model=bert", "data=files", "data.train=no/t.json"): (4, "data.train: no/t.json"),
        ("train", "model=bert", "data=demo", "encoder.name=a/b/mine"): (2, "a/b/mine is not a folder"),
        ("train", "optim.lrr=1"): (2, "did you mean 'optim.lr'"),
        ("train", "trainer.epochs"): (2, "is not KEY=VALUE"),
        ("train", "debug=fast", "encoder=minilm"): (2, "encoder=minilm: would not be loaded"),
        ("train", "experiment=squad2"): (6, "bert-base-uncased, rajpurkar/squad_v2: no such folder, not dow"),
        ("train", "data=demo", "encoder.name=models/mine"): (
            6,
            "models/mine: no such folder, not downloaded",
        ),
        ("train", *closed, "data=demo", "model=proposed"): (4, "glove.path: no.txt"),
    }
    foreign = ("model=bert", "model._target_=mine.Model")
    for command in ("train", "params", "check-model"):
        expected[command, *foreign] = 2, "if you trust it, add --trust mine"
    expected["train", "data=demo", "+callbacks.x._target_=mine.C"] = 2, "if you trust it, add --trust mine"
    for (call, (code, message)), result in zip(expected.items(), run_calls(*expected), strict=True):
        assert (result[0], result[2]) == (code, []), (call, result)
        assert message in result[1]
        assert len(result[1].splitlines()) == 1


def test_missing_extras_are_reported_before_torch_is_imported():
    calls = {
        ("train", "debug=fast", "logger=tensorboard"): ("tensorboard", "[tensorboard]', or logger=none"),
        ("train", "-m", "debug=fast", "logger=mlflow", "seed=1,2"): ("mlflow", "[mlflow]', or logger=none"),
        ("train", "data=demo", "trainer.optimizer_bits=8"): ("bitsandbytes", "[8bit]', or use 32"),
        ("serve", "runs/x"): ("uvicorn", "[serve]'"),
        ("export", "runs/x", "--to", "onnx", "--out", "o"): ("onnxscript", "[onnx]'"),
        ("predict", "runs/x", "--data", "x.jsonl", "--out", "y.jsonl", "--on", "ray"): ("ray", "[ray]'"),
    }
    missing = [module for module, _ in calls.values()]
    results = run_calls(*calls, missing=missing)
    for (module, message), (code, line, heavy) in zip(calls.values(), results, strict=True):
        assert (code, heavy) == (6, []), line
        assert f"{module} is not installed; in the checkout: pip install -e '.{message}" in line


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

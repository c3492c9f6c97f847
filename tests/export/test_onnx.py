"""An exported graph gives the logits of its torch model for any batch; its folder loads like a run."""

import copy
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from broken_records import change_json

import qa_arch
from qa_arch.contract import logits_of
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, RunError
from qa_arch.export import onnx as graphs
from qa_arch.export.onnx import export_onnx, largest_difference
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.models.onnx_model import DESCRIPTION, OnnxModel, read_description
from qa_arch.qa.loading import average, load_predictor
from qa_arch.records import GRAPH, Point, Seconds
from qa_arch.types import Candidate, Prediction
from tests.export.conftest import CASES

pytestmark = pytest.mark.slow
INPUTS = {
    "roberta": {"ids", "mask", "context"},
    "bert": {"ids", "mask", "segments", "context"},
    "proposed": {"ids", "mask", "segments", "question", "context", "overlap", "vector"},
    "boundary": {"ids", "question", "context", "vector"},
}


def batches(predictor):
    """Batches of 1 and of 5 windows of generated text with different lengths."""
    table = predictor.table(generate(1, 5), cache=False)
    collate = Collator(table, vector_rows(predictor.vectors, table), labels=False)
    return [collate(rows) for rows in ([4], [0, 7, 8, 9, 2])]


@pytest.mark.parametrize("case", CASES)
def test_graph_gives_the_logits_of_the_model(case, predictors, exported, windows):
    predictor, folder = predictors[case], exported(case)
    description = read_description(folder)
    assert case not in INPUTS or set(description.inputs) == INPUTS[case]
    model = OnnxModel(folder / GRAPH, description)
    kinds = {"segments": predictor.segments, "vectors": predictor.vectors is not None}
    generated = [windows(B, T, **kinds) for B, T in ((1, 5), (1, 64), (3, 17))]
    for batch in (*generated, *batches(predictor)):
        difference = largest_difference(logits_of(predictor.model, batch), logits_of(model, batch))
        assert difference < graphs.MAX_DIFFERENCE


class OnGpu(torch.Tensor):
    """A tensor that has to be copied to the CPU first."""

    def numpy(self):
        raise TypeError("can't convert a cuda tensor to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_graph_in_an_ensemble_reads_batches_on_a_gpu(predictors, exported):
    model = OnnxModel(exported("bert") / GRAPH, read_description(exported("bert")))
    batch = batches(predictors["bert"])[0]
    actual = logits_of(model, batch._map(lambda x: x.as_subclass(OnGpu)))
    assert torch.equal(actual.start, logits_of(model, batch).start)


def test_graph_counts_in_an_ensemble_like_its_model(predictors, exported):
    """The probabilities of a verifier are averaged apart from those of start and end."""
    graph = OnnxModel(exported("proposed") / GRAPH, read_description(exported("proposed")))
    batch = batches(predictors["proposed"])[1]
    model = predictors["proposed"].model
    ours, theirs = (logits_of(member, batch) for member in (model, graph))
    other = replace(ours, verifier=-ours.verifier)
    difference = largest_difference(average([ours, other]), average([theirs, other]))
    assert difference < graphs.MAX_DIFFERENCE


@pytest.fixture
def reuse_graph(exported, monkeypatch):
    """``reuse_graph(case)``: export copies the graph of ``exported(case)`` instead of tracing again."""

    def use(case):
        description = read_description(exported(case))

        def copied(path, predictor):
            shutil.copy(exported(case) / GRAPH, path)
            return description.inputs, description.outputs

        monkeypatch.setattr(graphs, "write_graph", copied)

    return use


@pytest.mark.parametrize("case", ["bert", "albert", "proposed"])
def test_int8_logits_are_close(case, predictors, copied, reuse_graph, tmp_path):
    reuse_graph(case)
    scored = copied(predictors[case])
    point = Point(threshold=None, protocol="2.0", metric_version="1", metrics={"f1": 50.0})
    measured = {"scores": {"dev": {"forced": point}}, "rows": {"dev": "0"}}
    scored.record = replace(scored.record, **measured, seconds=Seconds(fit=2, predict=1))
    check = export_onnx(scored, tmp_path / "int8", precision="int8")
    predictor = load_predictor(tmp_path / "int8")
    record = predictor.record
    assert predictor.precision == record.precision == "int8"
    assert (record.scores, record.rows, record.seconds) == ({}, {}, Seconds(fit=2))
    assert 1e-4 < check.largest_difference < 1.0


def test_graph_with_other_logits_is_not_written(predictors, copied, reuse_graph, tmp_path):
    predictor = copied(predictors["bert"])
    predictor.model = copy.deepcopy(predictor.model)
    *_, bias = (p for name, p in predictor.model.named_parameters() if not name.startswith("encoder."))
    bias.data += 2e-4
    reuse_graph("bert")
    with pytest.raises(RunError, match=r"does not reproduce the model.*nothing was written"):
        export_onnx(predictor, tmp_path / "wrong")
    assert list(tmp_path.iterdir()) == []


def test_scattered_answers_of_other_words_count_as_different(predictors, monkeypatch):
    questions = generate(1, 0)

    def ranking(text):
        best = Candidate(text, -1, -1, 1.0, 1.0)
        return SimpleNamespace(best_predictions=[Prediction(e.id, best, -5.0, 1) for e in questions.examples])

    monkeypatch.setattr(graphs, "run_model", lambda *_, **__: (ranking("a b"), ranking("a c"), 0.0))
    model = SimpleNamespace(description=SimpleNamespace(precision="int8"))
    assert graphs.check(predictors["bert"], model, questions).same_answers == 0


def test_difference_is_infinite_if_one_side_is_not_finite(predictors):
    batch = batches(predictors["bert"])[0]
    logits = logits_of(predictors["bert"].model, batch)
    start = logits.start.clone()
    start[0, int(batch.context[0].nonzero()[0])] = float("nan")
    assert largest_difference(logits, replace(logits, start=start)) == float("inf")
    assert largest_difference(logits, logits) == 0.0


def test_untraceable_model_is_refused(predictors, tmp_path, monkeypatch):
    class Counting(type(predictors["bert"].model)):
        def forward(self, batch):
            logits = super().forward(batch)
            return logits if int(batch.mask.sum()) > 0 else None

    monkeypatch.setattr(predictors["bert"].model, "__class__", Counting)
    with pytest.raises(ConfigError, match="Counting: this model cannot be traced into a graph"):
        export_onnx(predictors["bert"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_unchanged(predictors, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        export_onnx(predictors["bert"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (GRAPH, r"model\.onnx: missing"),
        (DESCRIPTION, r"export\.json: cannot be read"),
        ("run.json", r"holds no run\.json"),
        ("tokenizer", r"no tokenizer\.json"),
        ({"outputs": ["start", "finish"]}, r"start, finish are not the logits"),
        ({"inputs": ["ids", "labels"]}, r"'labels' is not a field of a batch"),
        ({"inputs": ["ids"]}, r"model\.onnx: cannot be run \(.*missing.*\); export the run"),
        ({"inputs": ["ids", "vector"]}, r"export\.json: inputs: the batches of this model have no 'vector'"),
        ({"precision": "bf16"}, r"export\.json.*precision: 'bf16'"),
        ({"precision": "int4"}, r"export\.json.*precision: 'int4'"),
    ],
)
def test_damaged_folder_is_refused_by_file(damage, message, exported, tmp_path):
    """A file is missing, or the description is changed."""
    folder = shutil.copytree(exported("bert"), tmp_path / "copy")
    if damage == "tokenizer":
        shutil.rmtree(folder / damage)
    elif isinstance(damage, str):
        (folder / damage).unlink()
    else:
        change_json(folder / DESCRIPTION, **damage)
    for trust in (None, ["mine"]):  # which a graph does not use
        with pytest.raises(RunError, match=message):
            qa_arch.load(folder, trust=trust)


def test_precision_of_a_graph_is_fixed(exported, qa_arch, tmp_path):
    with pytest.raises(ConfigError, match="exported in fp32, which is fixed"):
        load_predictor(exported("bert"), precision="bf16")
    folder = shutil.copytree(exported("bert"), tmp_path / "int8")
    change_json(folder / DESCRIPTION, precision="int8")
    assert load_predictor(folder).precision == "int8"  # fp32 is the default of Python
    asked = ("ask", folder, "--question", "Who?", "--context", "Ada.", "--precision")
    assert qa_arch(*asked, "int8")[0] == 0
    code, _, err = qa_arch(*asked, "fp32")
    assert (code, "exported in int8, which is fixed; leave out --precision fp32" in err) == (2, True)


def test_precision_of_each_member_of_an_ensemble_is_named(exported, tmp_path):
    graph = exported("bert")
    members = [shutil.copytree(graph, tmp_path / name) for name in ("one", "two")]
    for member in members:
        change_json(member / DESCRIPTION, precision="int8")
    for precision in ("fp32", None):
        assert load_predictor(members, precision=precision).engine == "onnx int8"
        assert load_predictor([graph, members[0]], precision=precision).engine == "onnx int8 + onnx fp32"


def test_graph_contains_no_local_path(exported):
    import qa_arch.nn.heads

    checkout = qa_arch.nn.heads.__file__.rpartition("/qa_arch/")[0]
    assert checkout.encode() not in (exported("bert") / GRAPH).read_bytes()


def test_the_check_never_opens_a_closed_dev_set(predictors):
    config = predictors["bert"].config
    closed = replace(config.data, calibration=None, dev=config.data.calibration, open_dev=False)
    assert graphs.check_questions(replace(config, data=closed)).name.startswith("synthetic")
    opened = replace(closed, open_dev=True)
    assert graphs.check_questions(replace(config, data=opened)).name == "calibration"
    assert graphs.check_questions(config).name == "calibration"
    german = replace(config, data=replace(config.data, language="de"))
    assert graphs.check_questions(german).language == "de", "whose answers are scored by its rules"


@pytest.mark.parametrize("case", ["bert", "sequence"])
def test_exported_folder_answers_as_the_model(case, predictors, exported):
    questions = generate(2, 9)
    ours, theirs = predictors[case].rank(questions), load_predictor(exported(case)).rank(questions)
    assert [p.best for p in ours.best_predictions] != [None] * len(questions)
    for a, b in zip(ours.predictions(), theirs.predictions(), strict=True):
        assert (a.id, a.windows) == (b.id, b.windows)
        assert a.null_odds == pytest.approx(b.null_odds, abs=1e-4)
        assert (a.best.start, a.best.end, a.best.text) == (b.best.start, b.best.end, b.best.text)


@pytest.mark.parametrize("case", ["bert", "proposed"])
def test_window_logits_do_not_depend_on_the_batch(case, predictors, exported):
    model = load_predictor(exported(case)).model
    _, batch = batches(predictors[case])
    expected = logits_of(model, batch)
    for row in range(len(batch)):
        single = logits_of(model, batch._map(lambda x, row=row: x[row : row + 1]))
        torch.testing.assert_close(single.start[0], expected.start[row], rtol=0, atol=1e-5)
        torch.testing.assert_close(single.null[0], expected.null[row], rtol=0, atol=1e-5)

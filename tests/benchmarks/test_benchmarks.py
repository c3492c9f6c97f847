"""The benchmarks: rows, tables, peers and floors. Fast tests time nothing; peers must agree."""

import json
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from runpy import run_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from shapes import unchecked_shapes
from transformers import BertConfig, BertForQuestionAnswering

from baselines.transformer import TransformerSpan
from benchmarks import __main__ as runner
from benchmarks import (
    common_script,
    decoding,
    end_to_end,
    engines,
    inputs,
    peers,
    prediction,
    report,
    rows,
    startup,
    timing,
)
from benchmarks.first_attention import attentions, evenness, interaction
from benchmarks.preparation import differences
from benchmarks.targets import DATA, MINILM, TARGETS, Measurement, Need
from benchmarks.timing import Timed
from benchmarks.training import padding_overhead
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.features import tokenizers
from qa_arch.features.batches import BucketBatchSampler
from qa_arch.features.windows import prepare
from qa_arch.nn.encoder import Encoder
from qa_arch.qa.reader import Reader
from qa_arch.training.run import train
from qa_arch.types import Example, Gold

PASSAGE = "The bridge at Lowmere was built by Ada Stone in 1871, of oak and a little iron. " * 6
ROOT = Path(__file__).resolve().parents[2]
NAMES = [target.name for target in TARGETS]


def invented():
    def entry(number, question, text, start):
        return Example(f"q{number}", question, PASSAGE, "Bridge", (Gold(text, start),))

    return question_set(
        "invented",
        [
            entry(0, "  Who built the bridge?", "Ada Stone", PASSAGE.find("Ada Stone")),
            entry(1, "When was it built?", "1871", PASSAGE.find("1871", 300)),
            entry(2, "What is it made of?", "oak and a little iron", PASSAGE.rfind("oak and")),
            entry(3, "What comes first?", "The bridge", 0),
            Example("q4", "Who sank it?", PASSAGE, "Bridge"),
        ],
        "2.0",
    )


def test_every_target_has_a_measure_and_published_rows_are_targets():
    table = json.loads((runner.RESULTS / "table.json").read_text(encoding="utf-8"))["rows"]
    published = [row["name"] for row in table if row["name"] in NAMES]
    assert len(published) > 20
    assert len({*NAMES}) == len(NAMES)
    for module in {target.module for target in TARGETS}:
        measured = {target.name for target in TARGETS if target.module == module}
        assert import_module(f"benchmarks.{module}").ROWS.keys() == measured


def test_preparations_agree_and_differences_are_counted():
    squad = invented()
    tokenizer = tokenizers.build("wordpiece", [PASSAGE, *(e.question for e in squad.examples)], 200)
    table = prepare(squad, tokenizer, max_length=48, stride=12, max_question=24, segments=True)
    peer = peers.prepare(squad.examples, tokenizer, max_length=48, stride=12)
    assert len(table) > 2 * len(squad)
    assert 4 <= sum(start > 0 for start in peer.start) < len(table)
    assert differences(table, peer) == 0
    peer.end[0] += 1
    peer.ids[2][5] += 1
    assert differences(table, peer) == 2
    peer.ids.pop()
    assert differences(table, peer) == len(table)


def test_decodings_agree_and_a_difference_is_detected():
    inputs = decoding.random_inputs(12, 4)
    theirs = peers.post_process(*decoding.theirs(inputs))
    ours = decoding.ours(inputs)
    assert decoding.equal(ours, theirs)
    assert {text == "" for text in ours[0]} == {True, False}
    assert max(len(entries) for entries in ours[1]) >= 20
    assert list(inputs.sizes).count(2) == 4
    ours[1][3][1]["probability"] += 1e-4
    assert not decoding.equal(ours, theirs)


def test_sides_and_engines_take_turns():
    calls: list[str] = []
    pairs = timing.alternate(lambda: calls.append("a"), lambda: calls.append("b"), 3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert len(pairs.ours) == len(pairs.theirs) == 3
    calls.clear()
    loaded = {
        engine: SimpleNamespace(rank=lambda questions, table, name=name: calls.append(name))
        for engine, name in zip(engines.ENGINES, "abc", strict=False)
    }
    seconds = engines._alternate(loaded, "questions", "table", 2)
    assert "".join(calls) == "abc" + "bca"
    assert {len(times) for times in seconds.values()} == {2}


def test_rows_and_table():
    machine = rows.describe_machine() | {"load_after": [0.0]}
    reached = rows.as_row(TARGETS[0], Measurement(9.0, 8.5, Timed(0.2, 0.3), Timed(1.8, 1.8), "tiny"))
    missed, missing = rows.as_row(TARGETS[0], Measurement(7.0)), rows.as_row(TARGETS[1], None, "no data")
    assert (reached["name"], reached["ratio"], reached["reached"]) == ("prepare", 9.0, True)
    assert missed["reached"] is False
    assert (missing["ratio"], missing["reached"], missing["note"]) == (None, None, "not measured: no data")
    text = report.markdown([reached, missed, missing], machine)
    assert "| 9.00 × | ≥ 8 × | yes | 8.50 | 200 ms | 1800 ms | 0 s | tiny |" in text
    assert "**no**" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The runner with a page and a folder of its own; the names of the rows that it has measured so far."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "PAGE", tmp_path / "README.md")
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    runner.PAGE.write_text("# Title\n\n<!-- bench -->\nold\n<!-- end -->\n\nrest\n")
    names: list[str] = []

    def measure(target, quick):
        if target.name == "stop":
            raise KeyboardInterrupt
        names.append(target.name)
        return rows.as_row(target, None if target.name == "prepare" else Measurement(0.1), "no data here")

    monkeypatch.setattr(rows, "measure", measure)
    return names


def test_a_stopped_run_goes_on_and_only_full_runs_are_published(measured, monkeypatch, capsys):
    stopped = (*TARGETS[:3], replace(TARGETS[3], name="stop"))
    monkeypatch.setattr(runner, "TARGETS", stopped)
    with pytest.raises(KeyboardInterrupt):
        runner.main([])
    assert measured == NAMES[:3]
    measured.clear()
    monkeypatch.setattr(runner, "TARGETS", TARGETS)
    assert runner.main(["cli-help"]) == runner.main(["cli-help"]) == 0
    assert measured == ["cli-help"] * 2
    assert not runner.RESULTS.exists()
    assert runner.main([]) == 0
    assert measured[2:] == ["prepare", *(name for name in NAMES[3:] if name != "cli-help")]
    stored = json.loads((runner.RESULTS / "table.json").read_text())
    assert [row["name"] for row in stored["rows"]] == NAMES
    assert (runner.RESULTS / "table.md").read_text() in capsys.readouterr().out
    page = runner.PAGE.read_text()
    assert page == f"# Title\n\n<!-- bench -->\n\n{report.summary(stored)}\n<!-- end -->\n\nrest\n"
    assert "| qa-arch --help, whole process | - | 0.10 s | ≤ 0.3 s | yes |" in page
    assert "Not measured there: `prepare`." in page
    measured.clear()
    assert runner.main(["--quick"]) == 0  # other sizes
    assert measured == NAMES
    assert runner.PAGE.read_text() == page


def test_rows_of_other_code_are_measured_again_and_lacking_data_is_said_first(measured, monkeypatch, capsys):
    runner.main(["prepare", "cli-help"])
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("2 rows; 1 need SQuAD 2.0's dev set")
    assert first.endswith("which is not here: they are skipped: prepare")
    machine = rows.describe_machine()
    assert rows.saved("cli-help", machine, quick=False)["ratio"] == 0.1
    for changed in (machine | {"code": "other"}, machine | {"threads": 99}):
        assert rows.saved("cli-help", changed, quick=False) is None
    assert rows.saved("cli-help", machine, quick=True) is None


def test_a_row_is_measured_by_a_process_of_its_own_whose_errors_are_its_note(monkeypatch, capsys):
    (target,) = (target for target in TARGETS if target.name == "cli-help")
    called, programs = [], ["raise SystemExit(2)"]

    def command(*words):
        called.append(words)
        return [sys.executable, "-c", programs.pop()]

    monkeypatch.setattr(rows, "module_command", command)
    monkeypatch.setattr(sys, "argv", ["rows", "cli-help", "--quick"])
    monkeypatch.delitem(sys.modules, "benchmarks.rows")  # else runpy warns
    run_module("benchmarks.rows", run_name="__main__")
    row = json.loads(printed := capsys.readouterr().out)
    programs.append(f"import time; time.sleep(0.1); print({printed!r})")
    measured = rows.measure(target, quick=True)
    assert (measured | {"seconds": 0.0}, measured["seconds"] > 0, row["ratio"] > 0) == (row, True, True)
    lost = rows.measure(target, quick=True)
    assert (lost["ratio"], lost["note"]) == (None, "not measured: failed: its process ended with 2")
    absent = replace(target, needs=(Need("a unicorn", lambda: False), Need("air", lambda: True)))
    assert rows.measure(absent, quick=True)["note"] == "not measured: needs a unicorn"
    assert called == [("benchmarks.rows", "cli-help", "--quick")] * 2
    monkeypatch.setitem(startup.ROWS, "cli-help", lambda quick: 1 / 0)
    note = "not measured: failed: ZeroDivisionError: division by zero"
    assert rows.measure_here(target, True)["note"] == note


def test_batch_size_of_a_peer_is_chosen_once(measured):
    asked: list[int] = []

    def ask(batch, count):
        asked.append(batch)
        return {"wall": abs(batch - 8)}

    assert [prediction.best_batch(prediction.PIPELINE, ask, 5, quick=True) for _ in range(2)] == [8, 8]
    assert asked == [1, 1, 8, 32]


def test_padding_overhead_of_batches_by_length_is_below_three_percent_at_batch_32():
    assert padding_overhead(np.array([10, 5, 8]), [[0, 1], [2]]) == pytest.approx(28 / 23)
    # Lengths like those of SQuAD windows: median 165, ninth decile 289, at most 384.
    rng = np.random.default_rng(5)
    lengths = np.minimum(rng.lognormal(np.log(165), 0.44, 16_000), 384).astype(int)
    overhead = padding_overhead(lengths, BucketBatchSampler(lengths, batch_size=32))
    assert overhead < 1.03
    assert overhead - 1 < (padding_overhead(lengths, np.split(np.arange(16_000), 500)) - 1) / 5


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def questions():
    return subset(open_passages("synthetic:dev"), 12, inputs.SEED)


@pytest.fixture(scope="module")
def tokenizer(questions):
    return tokenizers.build("wordpiece", [e.context for e in questions.examples], 300)


@pytest.fixture
def predictor(tokenizer):
    encoder = Encoder.from_description({"model_type": "bert", "vocab_size": len(tokenizer), **SIZES})
    config = validate(compose(["model=bert", "debug=fast", "trainer.eval_batch_size=4"]))
    return Reader(TransformerSpan(encoder), tokenizer, None, config, segments=True)


def test_prediction_floor_reads_the_same_batches(predictor, questions):
    def shapes(run) -> list[torch.Size]:
        shapes: list[torch.Size] = []
        hook = predictor.model.register_forward_pre_hook(lambda model, args: shapes.append(args[0].ids.shape))
        run()
        hook.remove()
        return shapes

    passes = prediction.forward_passes(predictor, questions)
    assert shapes(passes) == shapes(lambda: prediction.texts_of(predictor, questions)) != []
    assert sum(shape[0] for shape in shapes(passes)) == len(predictor.table(questions, cache=False))


def test_common_script_trains_and_predicts_every_window(tokenizer, questions):
    torch.manual_seed(0)
    model = BertForQuestionAnswering(BertConfig(vocab_size=len(tokenizer), **SIZES))
    before = model.qa_outputs.weight.detach().clone()
    prepared = peers.prepare(questions.examples, tokenizer, max_length=64, stride=16)
    common_script.fine_tune(model, prepared)
    assert not torch.equal(model.qa_outputs.weight, before)
    features = peers.prepare_to_predict(questions.examples, tokenizer, max_length=64, stride=16)
    assert features.features["input_ids"][:] == prepared.ids
    assert [row for rows in features.windows for row in rows] == list(range(len(prepared.ids)))
    context_tokens = [
        sum(offset is not None for offset in row) for row in features.features["offset_mapping"]
    ]
    assert context_tokens == [sum(segments) - 1 for segments in prepared.segments]  # without the last [SEP]
    start, end = common_script.predict(model, features)
    assert start.shape == end.shape == (len(prepared.ids), 64)
    contexts = [example.context for example in questions.examples]
    texts, lists = peers.post_process(contexts, features.windows, features.features, start, end)
    assert len(texts) == len(questions)
    assert all(e["text"] in context for context, best in zip(contexts, lists, strict=True) for e in best)


def test_both_train_with_the_same_recipe_on_the_same_files(tmp_path):
    ours = end_to_end.our_command(tmp_path, "fp32")
    config = validate(compose(ours[2 : ours.index("--folder")]))
    assert (config.optim.lr, config.optim.warmup) == (common_script.LR, common_script.WARMUP)
    assert (config.trainer.batch_size, config.trainer.epochs) == (common_script.BATCH, common_script.EPOCHS)
    assert (config.features.max_length, config.features.stride) == (384, 128)
    assert config.optim.schedule == "linear"
    script = end_to_end.script_command(tmp_path, Path("model"))
    assert {config.data.train, config.data.dev} == set(script[4:6])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rows_are_measured_at_small_sizes(capsys):
    if not MINILM.is_met():
        pytest.skip(f"needs {MINILM.what}")
    names = ["decode-floor", "predict-floor", "memory-flat", "end-to-end"]
    assert runner.main([*names, "--quick"]) == 0
    table = capsys.readouterr().out
    without_data = set() if DATA.is_met() else {"predict-floor", "end-to-end"}
    for name in names:
        (row,) = (line for line in table.splitlines() if line.startswith(f"| `{name}`"))
        assert ("not measured" in row) == (name in without_data)


@pytest.mark.slow
def test_command_measures_a_run(tmp_path, capsys):
    small = ("model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null")
    train(
        validate(compose([*small, "features.max_length=64", "features.max_question=24"])),
        folder=tmp_path / "run",
    )
    page = Path(shutil.copy(ROOT / "docs/export.md", tmp_path))
    files = ["--page", str(page), "--json", str(tmp_path / "engines.json")]
    arguments = [str(tmp_path / "run"), "--data", "synthetic:dev", "--questions", "30", "--rounds", "1"]
    with unchecked_shapes():
        assert engines.main([*arguments, *files]) == 0
    results = json.loads((tmp_path / "engines.json").read_text())
    rows = {row["engine"]: row for row in results["rows"]}
    assert list(rows) == [str(engine) for engine in engines.ENGINES]
    assert rows["torch fp32"]["ratio"] == 1.0
    assert rows["onnx fp32"]["same_answers"] == rows["onnx fp32"]["same_spans"] == 100.0
    assert all(row["memory_mb"] > 50 for row in results["rows"])
    assert capsys.readouterr().out.strip() in page.read_text()


@pytest.mark.parametrize("width", [64, 384])
def test_initial_match_attention_is_nearly_uniform_without_cosine(width):
    """States of unit variance; half of the context states repeat a question state, with noise."""
    torch.manual_seed(0)
    question = torch.randn(4, 12, width)
    context = torch.cat([question[:, :10] + 0.5 * torch.randn(4, 10, width), torch.randn(4, 10, width)], 1)
    masks = torch.ones(4, 20, dtype=torch.bool), torch.ones(4, 12, dtype=torch.bool)
    weights_by_kind = attentions(context, question, *masks)
    matched, aligned = (evenness(weights) for weights in weights_by_kind.values())
    assert aligned < 0.6 < 0.9 < matched < 1
    matched, aligned = (interaction(weights[..., :-1]) for weights in weights_by_kind.values())
    assert matched < 0.3 < 0.9 < aligned


def test_interaction_is_what_rows_and_columns_do_not_explain():
    rows, columns = torch.randn(5, 1), torch.randn(1, 4)
    assert interaction((rows + columns).softmax(-1)) == pytest.approx(0, abs=1e-6)
    crossed = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert interaction((crossed + torch.tensor([1.0, -1.0])).softmax(-1)) == pytest.approx(0.5)
    assert evenness(torch.full((3, 5), 0.2)) == pytest.approx(1)
    assert evenness(torch.eye(5)) == 0

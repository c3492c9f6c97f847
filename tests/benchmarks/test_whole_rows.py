"""Rows measured against the common script and against floors; rows that lack data say so."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

from baselines.transformer import TransformerSpan
from benchmarks import __main__ as runner
from benchmarks import common_script, end_to_end, inputs, peers, prediction
from benchmarks.targets import DATA, MINILM
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.features import tokenizers
from qa_arch.nn.encoder import Encoder
from qa_arch.qa.reader import Reader

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

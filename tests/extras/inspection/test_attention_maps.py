"""Attention maps of a trained proposed model: of the right window, over the right characters."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from qa_arch.cli.main import main
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.extras.inspection.reading import attention_maps, inspect_question
from qa_arch.results.attention import ATTENTION, read_attention
from qa_arch.spans.loading import load_predictor


def test_maps_cover_the_window_with_the_answer(proposed):
    folder, config, matching = proposed
    predictor, questions = load_predictor(folder, device="cpu"), open_passages(config.data.dev)
    answered = predictor.read(questions).best_predictions
    ids = [example.id for example in questions.examples][::-1]
    maps = attention_maps(predictor, questions, answered, ids)
    assert [item.id for item in maps] == ids
    windows = {answer.id: answer for answer in answered}
    assert max(answer.windows for answer in answered) > 1
    examples = {example.id: example for example in questions.examples}
    for item in maps:
        example, best = examples[item.id], windows[item.id].best
        C, Q = len(item.context), len(item.question)
        assert item.weights.shape == (2, C, Q + 1)
        assert item.weights.astype(float).sum(-1) == pytest.approx(np.ones((2, C)), abs=5e-3)
        requested = example.question
        read = "".join(requested[a:b] for a, b in item.question)  # long questions lose their end
        assert len(read) > 10
        assert "".join(requested.split()).startswith(read)
        assert (item.context[1:, 0] >= item.context[:-1, 1]).all()
        assert item.context[0, 0] <= best.start
        assert best.end <= item.context[-1, 1]
        seen = example.context[item.context[0, 0] : item.context[-1, 1]]
        assert "".join(example.context[a:b] for a, b in item.context) == "".join(seen.split())
        if matching == "words":
            assert any(b - a > 1 for a, b in item.context)
    assert {item.fingerprint for item in maps} == {questions.fingerprint}


def test_company_and_order_change_nothing(proposed):
    folder, config, _ = proposed
    predictor, questions = load_predictor(folder, device="cpu"), open_passages(config.data.dev)
    answered = predictor.read(questions).best_predictions
    ids = [example.id for example in questions.examples][:4]
    together = attention_maps(predictor, questions, answered, ids)
    for item in together:
        (alone,) = attention_maps(predictor, questions, answered, [item.id])
        assert alone.weights.astype(float) == pytest.approx(item.weights.astype(float), abs=2e-3)
        assert (alone.context == item.context).all()


def test_the_command_leaves_the_file_beside_the_record(proposed, tmp_path, capsys):
    folder, config, _ = proposed
    questions = open_passages(config.data.dev)
    first, second, third = (example.id for example in questions.examples[:3])
    call = ["predict", str(folder), "--data", str(config.data.dev), "--out", str(tmp_path), "--device", "cpu"]
    assert main([*call, "--keep-attention", f"{first},{second}", third]) == 0
    assert ATTENTION in capsys.readouterr().out
    assert [item.id for item in read_attention(folder)] == [first, second, third]
    assert main([*call, "--keep-attention", "nobody"]) == DataError.exit_code
    assert "nobody" in capsys.readouterr().err


def test_models_without_match_lstm_are_refused_before_reading(tiny_run, tiny_config, tmp_path, capsys):
    call = ["predict", str(tiny_run), "--data", str(tiny_config.data.dev), "--out", str(tmp_path / "p")]
    assert main([*call, "--keep-attention", "x"]) == RunError.exit_code
    assert "no match-LSTM; --layer L takes the encoder's" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-attention", "x", "--layer", "7"], "no layer '7' (known: 1, all)"),
        (["--keep-attention", "x", "--layer", "1", "--head", "9"], "no head '9'"),
        (["--keep-attention", "x", "--head", "1"], "--head is for --layer L"),
        (["--layer", "1"], "say which attention --keep-attention saves"),
    ],
)
def test_wrong_heads_are_refused_before_reading(tiny_run, tiny_config, tmp_path, capsys, options, message):
    call = ["predict", str(tiny_run), "--data", str(tiny_config.data.dev), "--out", str(tmp_path / "p")]
    assert main([*call, *options]) == ConfigError.exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_the_encoders_attention_is_saved_with_layer(proposed, tmp_path, capsys):
    folder, config, _ = proposed
    copy = shutil.copytree(folder, tmp_path / "run")
    questions = open_passages(config.data.dev)
    id_ = questions.examples[1].id
    call = ["predict", str(copy), "--data", str(config.data.dev), "--out", str(tmp_path / "p")]
    assert main([*call, "--keep-attention", id_]) == 0
    assert main([*call, "--keep-attention", id_, "--layer", "all", "--head", "2"]) == 0
    saved = {item.key: item for item in read_attention(copy)}
    assert len(saved[id_, False].labels) == 2
    item = saved[id_, True]
    assert item.labels == ("layer 1, head 2", "layer 2, head 2", "layer 3, head 2")
    assert item.fingerprint == questions.fingerprint
    inspection = inspect_question(load_predictor(copy, device="cpu"), questions.examples[1])
    for layer, weights in zip(inspection.layers, item.weights, strict=False):
        assert weights.astype(float) == pytest.approx(layer.over_question("2"), abs=1e-3)

"""Attention behind the doors of the core, ``predict`` and the service, and the commands of the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.test_cheap_checks import told
from pages import commands
from reports import page_parts
from starlette.testclient import TestClient

from qa_arch.cli.main import main
from qa_arch.data.sources import open_passages
from qa_arch.extras.inspection.layers import ALL, MATCH
from qa_arch.extras.inspection.reading import attention_maps, inspect_question
from qa_arch.results.attention import ATTENTION, read_attention
from qa_arch.serving.app import create_app
from qa_arch.serving.reader import load
from qa_arch.spans.loading import load_predictor

PAGE = Path(__file__).resolve().parents[3] / "docs/extras/inspection.md"


def test_maps_cover_the_window_with_the_answer(proposed):
    folder, config, matching = proposed
    predictor, questions = load_predictor(folder, device="cpu"), open_passages(config.data.dev)
    answered = predictor.read(questions).best_predictions
    ids = [example.id for example in questions.examples][::-1]
    maps = attention_maps(predictor, questions, answered, ids, layer=MATCH, head=ALL)
    assert [item.id for item in maps] == ids
    windows = {answer.id: answer for answer in answered}
    assert max(answer.windows for answer in answered) > 1
    examples = {example.id: example for example in questions.examples}
    for item in maps:
        example, best = examples[item.id], windows[item.id].best
        C, Q = len(item.context), len(item.question)
        assert item.weights.shape == (2, C, Q + 1)
        assert item.weights.astype(float).sum(-1) == pytest.approx(np.ones((2, C)), abs=5e-3)
        read = "".join(example.question[a:b] for a, b in item.question)  # long questions lose their end
        assert len(read) > 10
        assert "".join(example.question.split()).startswith(read)
        assert (item.context[1:, 0] >= item.context[:-1, 1]).all()
        assert item.context[0, 0] <= best.start
        assert best.end <= item.context[-1, 1]
        seen = example.context[item.context[0, 0] : item.context[-1, 1]]
        assert "".join(example.context[a:b] for a, b in item.context) == "".join(seen.split())
        if matching == "words":
            assert any(b - a > 1 for a, b in item.context)
    assert {item.fingerprint for item in maps} == {questions.fingerprint}


def test_both_kinds_are_kept_beside_the_record(proposed, tmp_path, qa_arch):
    folder, config, _ = proposed
    copy = shutil.copytree(folder, tmp_path / "run")
    questions = open_passages(config.data.dev)
    first, second, third = (example.id for example in questions.examples[:3])
    call = ["predict", copy, "--data", config.data.dev, "--out", tmp_path / "p", "--keep-attention"]
    assert ATTENTION in qa_arch(*call, f"{first},{second}", third)[1]
    assert [item.id for item in read_attention(copy)] == [first, second, third]
    code, _, err = qa_arch(*call, "nobody")
    assert (code, "nobody" in err) == (4, True)
    assert qa_arch(*call, second, "--layer", "all", "--head", "2")[0] == 0
    saved = {item.key: item for item in read_attention(copy)}
    assert saved[second, False].labels == ("match-LSTM, forward", "match-LSTM, backward")
    item = saved[second, True]
    assert item.labels == ("layer 1, head 2", "layer 2, head 2", "layer 3, head 2")
    assert item.fingerprint == questions.fingerprint
    inspection = inspect_question(load_predictor(copy, device="cpu"), questions.examples[1])
    for layer, weights in zip(inspection.layers, item.weights, strict=False):
        assert weights.astype(float) == pytest.approx(layer.over_question("2"), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--keep-attention", "x"], 5, "no match-LSTM; --layer L takes the encoder's"),
        (["--keep-attention", "x", "--layer", "7"], 2, "no layer '7' (known: 1, all)"),
        (["--keep-attention", "x", "--layer", "1", "--head", "9"], 2, "no head '9'"),
        (["--keep-attention", "x", "--head", "1"], 2, "--head is for --layer L"),
        (["--layer", "1"], 2, "say which attention --keep-attention saves"),
        (["--keep-attention", "x", "--engine", "onnx"], 2, "is for a single model, read by torch"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_reading(
    tiny_run, tiny_config, tmp_path, qa_arch, options, code, message
):
    call = ["predict", tiny_run, "--data", tiny_config.data.dev, "--out", tmp_path / "p"]
    found, _, err = qa_arch(*call, *options)
    assert (found, message in err) == (code, True), err
    assert not (tmp_path / "p").exists()


def test_what_is_missing_is_told_before_torch(tmp_path):
    run, data = tmp_path / "none", ["--data", "hub:some/set:validation"]
    ((code, message, heavy),) = told(("inspect", run, *data, "--id", "x"))
    assert (code, heavy, str(run) in message) == (5, [], True)


def test_the_service_shows_the_match_lstm(proposed):
    folder, config, _ = proposed
    example = open_passages(config.data.dev).examples[0]
    reader = load(folder, device="cpu")
    body = {"question": example.question, "context": f"👍 {example.context}"}
    with TestClient(create_app({"proposed": reader}), base_url="http://localhost") as client:
        response = client.post("/v1/attention", json=body).json()
        weights = np.array(response["weights"])
        assert weights.shape == (len(response["context"]), len(response["question"]) + 1)
        assert weights.sum(axis=1) == pytest.approx(np.ones(len(weights)), abs=0.02)
        words = [body["context"][start:end] for start, end in response["context"]]
        assert "".join(words[1:]) in "".join(body["context"].split())
        error = client.post("/v1/attention", json={**body, "context": " "})
        assert (error.status_code, error.json()["error"]["field"]) == (422, "context")


def test_the_commands_of_the_page_do_what_they_say(proposed, tmp_path, monkeypatch, capsys):
    folder, config, _ = proposed
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "runs/RUN")
    first, second = (example.id for example in open_passages(config.data.dev).examples[:2])
    words = {"RUN": "runs/RUN", "dev-v2.0.json": config.data.dev, "ID1": first, "ID2": second}
    for call_ in commands(PAGE.read_text(encoding="utf-8")):
        capsys.readouterr()
        assert main([words.get(word, word) for word in call_]) == 0, (call_, capsys.readouterr().err)
    assert {"attention.html", "report.html"} <= {path.name for path in tmp_path.iterdir()}
    value, _ = page_parts(tmp_path / "report.html")
    assert [(item["id"], item["encoder"]) for item in value["attention"]["0"]] == [
        (second, True),
        (first, True),
        (second, False),
        (first, False),
    ]


def test_files_of_the_first_format_are_read(tmp_path):
    about = np.frombuffer(json.dumps({"format": 1, "questions": [["q", "f" * 64]]}).encode(), np.uint8)
    spans, weights = np.zeros((2, 2), np.int32), np.full((2, 2, 3), 1 / 3, np.float16)
    np.savez(tmp_path / "attention.npz", about=about, weights_0=weights, context_0=spans, question_0=spans)
    (item,) = read_attention(tmp_path)
    assert item.labels == ("match-LSTM, forward", "match-LSTM, backward")
    assert not item.encoder

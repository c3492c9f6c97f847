"""Attention in the service of the core, and the commands of the page."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.test_cheap_checks import told
from pages import commands
from starlette.testclient import TestClient

from qa_arch.cli.main import main
from qa_arch.data.sources import open_passages
from qa_arch.extras.inspection.reading import match_attention
from qa_arch.serving.app import create_app
from qa_arch.serving.reader import load
from qa_arch.spans.loading import load_predictor

once = pytest.mark.parametrize("proposed", ["words"], indirect=True)
PAGE = Path(__file__).resolve().parents[3] / "docs/extras/inspection.md"


def test_the_map_covers_the_window_with_the_answer(proposed):
    folder, config, matching = proposed
    predictor, questions = load_predictor(folder, device="cpu"), open_passages(config.data.dev)
    answers = predictor.read(questions).best_predictions
    assert max(answer.windows for answer in answers) > 1
    for example, answer in zip(questions.examples, answers, strict=True):
        item = match_attention(predictor, example)
        C, Q = len(item.context), len(item.question)
        assert item.weights.shape == (2, C, Q + 1)
        assert item.weights.astype(float).sum(-1) == pytest.approx(np.ones((2, C)), abs=5e-3)
        read = "".join(example.question[a:b] for a, b in item.question)  # long questions lose their end
        assert len(read) > 10
        assert "".join(example.question.split()).startswith(read)
        assert (item.context[1:, 0] >= item.context[:-1, 1]).all()
        assert item.context[0, 0] <= answer.best.start
        assert answer.best.end <= item.context[-1, 1]
        seen = example.context[item.context[0, 0] : item.context[-1, 1]]
        assert "".join(example.context[a:b] for a, b in item.context) == "".join(seen.split())
        if matching == "words":
            assert any(b - a > 1 for a, b in item.context)


def test_what_is_missing_is_told_before_torch(tmp_path):
    run, data = tmp_path / "none", ["--data", "hub:some/set:validation"]
    ((code, message, heavy),) = told(("inspect", run, *data, "--id", "x"))
    assert (code, heavy, str(run) in message) == (5, [], True)


@once
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


@once
def test_the_commands_of_the_page_do_what_they_say(proposed, tmp_path, monkeypatch, capsys):
    folder, config, _ = proposed
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "runs/RUN")
    first, second = (example.id for example in open_passages(config.data.dev).examples[:2])
    words = {"RUN": "runs/RUN", "dev-v2.0.json": config.data.dev, "ID1": first, "ID2": second}
    for call_ in commands(PAGE.read_text(encoding="utf-8")):
        capsys.readouterr()
        assert main([words.get(word, word) for word in call_]) == 0, (call_, capsys.readouterr().err)
    assert (tmp_path / "attention.html").is_file()

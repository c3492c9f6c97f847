"""Match-LSTM attention in Python and in the service, and the commands of docs/extras/inspection.md."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from fresh import run_calls
from pages import commands
from starlette.testclient import TestClient

from qa_arch.cli.main import main
from qa_arch.data.sources import open_passages
from qa_arch.extras.inspection.layers import MATCH
from qa_arch.extras.inspection.reading import inspect_question, match_attention
from qa_arch.qa.loading import load, load_predictor
from qa_arch.serving.app import create_app

words_only = pytest.mark.parametrize("proposed", ["words"], indirect=True)
PAGE = Path(__file__).resolve().parents[3] / "docs/extras/inspection.md"


def test_attention_map_covers_the_answers_window(proposed):
    folder, config, matching = proposed
    predictor, questions = load_predictor(folder, device="cpu"), open_passages(config.data.dev)
    answers = predictor.rank(questions).best_predictions
    assert max(answer.windows for answer in answers) > 1
    for example, answer in zip(questions.examples, answers, strict=True):
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
        assert context[0, 0] <= answer.best.start
        assert answer.best.end <= context[-1, 1]
        window = example.context[context[0, 0] : context[-1, 1]]
        assert "".join(example.context[a:b] for a, b in context) == "".join(window.split())
        if matching == "words":
            assert any(b - a > 1 for a, b in context)


def test_missing_run_is_reported_without_importing_torch(tmp_path):
    run, data = tmp_path / "none", ["--data", "hub:some/set:validation"]
    ((code, message, heavy),) = run_calls(("inspect", run, *data, "--id", "x"))
    assert (code, heavy, str(run) in message) == (5, [], True)


@words_only
def test_service_returns_match_lstm_attention(proposed):
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


@words_only
def test_commands_of_the_docs_page_run(proposed, tmp_path, monkeypatch, capsys):
    folder, config, _ = proposed
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "runs/RUN")
    first, second = (example.id for example in open_passages(config.data.dev).examples[:2])
    words = {"RUN": "runs/RUN", "dev-v2.0.json": config.data.dev, "ID1": first, "ID2": second}
    for command in commands(PAGE.read_text(encoding="utf-8")):
        capsys.readouterr()
        assert main([words.get(word, word) for word in command]) == 0, (command, capsys.readouterr().err)
    assert (tmp_path / "attention.html").is_file()

"""Attention behind the doors of the core: ``predict --keep-attention`` and the service."""

from __future__ import annotations

import numpy as np
import pytest
from cli.test_cheap_checks import told
from starlette.testclient import TestClient

from qa_arch.data.sources import open_passages
from qa_arch.serving.app import create_app
from qa_arch.serving.reader import load


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "out.jsonl", "--keep-attention", "q"), "give --out a folder"),
        (("--out", "folder", "--keep-attention", "q", "--engine", "onnx"), "a graph shows none"),
        (("--out", "folder", "--layer", "1"), "say which attention --keep-attention saves"),
    ],
)
def test_what_keeps_none_is_refused(qa_arch, trained, arguments, message):
    code, _, err = qa_arch("predict", trained, "--data", "synthetic:dev", *arguments)
    assert (code, message in err) == (2, True), err


def test_what_is_missing_is_told_before_torch(tmp_path):
    run, data = tmp_path / "none", ["--data", "hub:some/set:validation"]
    ((code, message, heavy),) = told(("inspect", run, *data, "--id", "x"))
    assert (code, heavy, str(run) in message) == (5, [], True)


def test_attention_of_a_real_model(proposed):
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

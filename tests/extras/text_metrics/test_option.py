"""``qa-arch evaluate --text-metrics``."""

import json

import pytest
from metrics.test_evaluate import TEXTS, data, data_11, evaluate, write  # noqa: F401


def test_text_metrics_leave_the_official_keys_unchanged(evaluate, data, data_11, tmp_path):  # noqa: F811
    pytest.importorskip("sacrebleu")
    target = tmp_path / "scores.json"
    plain = json.loads(evaluate(data, TEXTS)[1])
    code, out, _ = evaluate(data, TEXTS, "--text-metrics", "--out", target)
    scores = json.loads(out)
    assert code == 0
    assert json.loads(target.read_text("utf-8")) == scores
    metrics = scores.pop("text_metrics")
    assert list(scores.items()) == list(plain.items())
    # q1 "mill" against "red mill" 2/3, q2 right; unanswerable questions do not count.
    assert (metrics["questions"], metrics["rouge_1"]) == (2, pytest.approx(100 * (2 / 3 + 1) / 2))
    # A text with null odds above the threshold is no answer.
    na = write(tmp_path / "na.json", {"q1": 0.1, "q2": 0.8, "q3": 0, "q4": 0})
    _, out, _ = evaluate(data, TEXTS, "--na-prob", na, "--null-threshold", 0.5, "--text-metrics")
    assert json.loads(out)["text_metrics"]["rouge_1"] == pytest.approx(100 * (2 / 3) / 2)
    # A missing prediction counts as in the protocol: 0 in 1.1, left out in 2.0.
    for questions, file in ((2, data_11), (1, data)):
        _, out, _ = evaluate(file, {"q1": "red mill"}, "--text-metrics")
        metrics = json.loads(out)["text_metrics"]
        assert (metrics["questions"], metrics["rouge_1"]) == (questions, pytest.approx(100 / questions))


def test_perplexity_comes_from_the_n_best_file(evaluate, data, tmp_path):  # noqa: F811
    pytest.importorskip("sacrebleu")

    def candidates(*pairs):
        return [{"text": text, "probability": p, "start_logit": 0.0, "end_logit": 0.0} for text, p in pairs]

    lists = {"q1": candidates(("mill", 0.5), ("red mill", 0.1)), "q2": candidates(("théodore", 0.125))}
    nbest = write(tmp_path / "nbest.json", lists)
    code, out, _ = evaluate(data, TEXTS, "--text-metrics", "--nbest", nbest)
    assert (code, json.loads(out)["text_metrics"]["perplexity"]) == (0, pytest.approx(4.0))
    code, _, err = evaluate(data, TEXTS, "--nbest", nbest)
    assert (code, "add --text-metrics" in err) == (2, True)
    faults = ("mill", ["mill"], candidates(("mill", 1.5)), candidates(("mill", True)))
    for fault in ({"q1": fault} for fault in faults):
        code, _, err = evaluate(data, TEXTS, "--text-metrics", "--nbest", write(tmp_path / "bad.json", fault))
        assert (code, "bad.json: q1: " in err) == (4, True)

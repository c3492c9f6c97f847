"""The metric that the library ``evaluate`` loads from the package, offline."""

from importlib.resources import files

import evaluate
import pytest

from qa_arch.metrics.squad import score

FOLDER = str(files("qa_arch.metrics") / "qa_arch_squad_v2")
GOLDS = {"q1": ["the red mill", "old red mill"], "q2": ["a ferry"], "q3": [], "q4": []}
TEXTS = {"q1": "red mill house", "q2": "Ferry!", "q3": "", "q4": "some lamp"}
ODDS = {"q1": 0.5, "q2": 0.9, "q3": 0.1, "q4": 0.6}
PREDICTIONS = [
    {"id": id_, "prediction_text": text, "no_answer_probability": ODDS[id_]} for id_, text in TEXTS.items()
]
REFERENCES = [
    {"id": id_, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for id_, texts in GOLDS.items()
]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.mark.parametrize("threshold", [1.0, 0.55])
def test_scores_equal_ours_and_the_reference(gold_set, plain, threshold):
    metric = evaluate.load(FOLDER)
    scores = metric.compute(predictions=PREDICTIONS, references=REFERENCES, no_answer_threshold=threshold)
    ours = score(gold_set(GOLDS), TEXTS, null_scores=ODDS, threshold=threshold)
    assert scores == ours.flat()
    qas = [{"id": id_, "answers": [{"text": text} for text in texts]} for id_, texts in GOLDS.items()]
    reference = plain.evaluate_20([{"paragraphs": [{"qas": qas}]}], TEXTS, ODDS, threshold)
    assert {key: scores[key] for key in reference} == reference


def test_a_language_is_a_configuration():
    answer = {"id": "1", "prediction_text": "die Mühle", "no_answer_probability": 0.0}
    gold = {"id": "1", "answers": {"text": ["eine Mühle"], "answer_start": [0]}}
    exact = {
        language: evaluate.load(FOLDER, *language).compute(predictions=[answer], references=[gold])["exact"]
        for language in ((), ("de",))
    }
    assert exact == {(): 0.0, ("de",): 100.0}
    with pytest.raises(ValueError, match="xx is not a language of this metric: en, ar, de"):
        evaluate.load(FOLDER, "xx")


def test_combined_with_another_metric():
    both = evaluate.combine([evaluate.load(FOLDER), evaluate.load(FOLDER, "de")], force_prefix=True)
    scores = both.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert scores["qa_arch_squad_v2_0_f1"] == pytest.approx(70.0)
    assert {key.rpartition("_v2_")[2][0] for key in scores} == {"0", "1"}

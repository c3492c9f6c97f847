"""``experiments/table_2_3/rescored.py``: a prediction file becomes a row beside those that were trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.records import find_runs
from qa_arch.results.columns import comparison


@pytest.fixture
def call(script, tmp_path, monkeypatch):
    """``call(predictions)`` -> exit code; ten questions, each with one gold answer."""
    monkeypatch.chdir(tmp_path)
    dev = generate(2, 20, split="dev")
    examples = [e for e in dev.examples if e.answerable][:10]
    Path("dev.json").write_text(json.dumps(write(question_set("dev", examples, "1.1"))))

    def run(change) -> int:
        texts = {e.id: e.answers[0].text for e in examples}
        change(texts)
        Path("p.json").write_text(json.dumps(texts))
        return script("table_2_3/rescored.py").main(
            ["--dev", "dev.json", "--predictions", "p.json", "--record", "record"]
        )

    return run


def test_a_record_like_any_other(call, capsys) -> None:
    assert call(lambda texts: texts.update({next(iter(texts)): "no such words"})) == 0
    assert capsys.readouterr().out == "EM 90.00 F1 90.00: record\n"
    (row,) = comparison(find_runs(["record"])).rows
    assert (row["model"], row["exact"], row["f1"]) == ("published-predictions", 90.0, 90.0)


def test_a_question_without_a_prediction_is_no_zero(call, capsys) -> None:
    assert call(lambda texts: texts.popitem()) == 4
    assert "1 questions have no prediction, the first is" in capsys.readouterr().err
    assert not Path("record").exists()

"""The match-LSTM memorises 500 questions, so its errors on other questions are no bug in its arithmetic."""

from __future__ import annotations

import re

import numpy as np
import pytest

from qa_arch.cli.compose import compose
from qa_arch.config.files import write_json
from qa_arch.config.schema import validate
from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.spans.files import predictions
from qa_arch.spans.loading import load_predictor
from qa_arch.training.run import train
from qa_arch.types.text import QuestionSet

WIDTH = 50


def write_vectors(path, texts) -> None:
    """Write a random vector for each word, in GloVe's format."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    vectors = np.random.default_rng(0).normal(size=(len(words), WIDTH))
    lines = (f"{word} {' '.join(map(str, row))}" for word, row in zip(words, vectors.round(4), strict=True))
    path.write_text("\n".join(lines), encoding="utf-8")


def answerable(name, examples, count) -> QuestionSet:
    return question_set(name, [example for example in examples if example.answerable][:count], "1.1")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["boundary", "bi_ans_ptr"])
def test_match_lstm_memorises_500_questions(model, tmp_path):
    learned = answerable("learned", generate(70, 3, 1).examples, 500)
    held_out = answerable("held out", generate(2, 4, 1, "calibration").examples, 20)
    for name, questions in (("train", learned), ("calibration", held_out)):
        write_json(tmp_path / f"{name}.json", write(questions))
    write_vectors(tmp_path / "vectors.txt", (e.context + " " + e.question for e in learned.examples))
    overrides = [
        *(f"model=match_lstm/{model}", "model.dropout=0", "model.pointer_dropout=0", "decode=search"),
        *("data=files", f"data.train={tmp_path}/train.json", f"data.calibration={tmp_path}/calibration.json"),
        *(f"glove.path={tmp_path}/vectors.txt", f"glove.dim={WIDTH}", "features.cache_dir=null"),
        *("trainer=cpu", "trainer.batch_size=30", "trainer.epochs=40", "trainer.progress=false"),
        *("trainer.select=last", "optim.lr=0.005", "logger=none"),
    ]
    train(validate(compose(overrides)), folder=tmp_path / "run")
    answers = predictions(load_predictor(tmp_path / "run").read(learned), np.inf)
    correct = sum(
        answers[example.id] in {gold.text for gold in example.answers} for example in learned.examples
    )
    assert correct >= 0.98 * len(learned)

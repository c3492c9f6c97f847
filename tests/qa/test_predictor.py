"""Predictions of a trained run: any text is accepted, and batching does not change answers."""

from dataclasses import replace

import pytest
import torch

from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic import generate
from qa_arch.features.batches import BucketBatchSampler, Collator

PLAIN = "The baker of Harn sold forty loaves before noon. Her brother keeps the mill."


@pytest.mark.parametrize(
    ("question", "context"), [("Who?", ""), ("Who?", " \n\t\u00a0"), ("", PLAIN), ("", "")]
)
def test_empty_question_or_passage_has_no_answer(reader, question, context):
    (answer,) = reader.predict([(question, context)])
    assert answer.best is None
    assert answer.text(reader.null_threshold) == answer.text(float("inf")) == ""
    assert answer.windows == 0


def test_answers_do_not_depend_on_batching(reader):
    """In batches of any size and order, and one question at a time."""
    questions = generate(1, 5, 1, "dev")
    backwards = question_set("backwards", reversed(questions.examples), "2.0")
    expected = {a.id: a for a in reader.rank(questions, batch_size=32).predictions()}
    assert len({answer.windows for answer in expected.values()}) > 1
    readings = (
        reader.rank(questions, batch_size=1),
        reader.rank(questions, batch_size=7),
        reader.rank(backwards, batch_size=5),
    )
    single = [replace(reader.predict([(e.question, e.context)])[0], id=e.id) for e in questions.examples]
    for answer in (*single, *(answer for ranking in readings for answer in ranking.predictions())):
        other = expected[answer.id]
        assert answer.text(0.0) == other.text(0.0)
        assert answer.null_odds == pytest.approx(other.null_odds, abs=1e-4)
        assert (answer.best.start, answer.best.end) == (other.best.start, other.best.end)


def test_dropout_is_off_during_prediction(reader):
    questions = generate(1, 5, 1, "dev")
    table = reader.table(questions, cache=False)
    batches = BucketBatchSampler(table.lengths, batch_size=4, shuffle=False)
    reader.model.train()
    try:
        collate = Collator(table)
        with torch.inference_mode():
            noisy = [reader.model(collate(rows)).start for rows in batches]
            again = [reader.model(collate(rows)).start for rows in batches]
        assert any(not torch.equal(a, b) for a, b in zip(noisy, again, strict=True))
        first, second = (reader.rank(questions, table=table).predictions() for _ in range(2))
    finally:
        reader.model.eval()
    assert first == second


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_set_read_in_parts_has_the_answers_of_the_whole(reader, size):
    questions = generate(1, 5, 1, "dev")
    assert len(questions) % 4
    progress = []
    parts = list(reader.rank_parts(questions, size=size, watch=lambda *n: progress.append(n)))
    assert len(parts) == len(progress) == -(-len(questions) // size)
    assert progress[-1] == (len(questions), len(questions))
    actual = [answer for part in parts for answer in part.predictions()]
    for item, other in zip(actual, reader.rank(questions).predictions(), strict=True):
        assert item.id == other.id
        assert item.text(0.0) == other.text(0.0)
        assert item.null_odds == pytest.approx(other.null_odds, abs=1e-4)

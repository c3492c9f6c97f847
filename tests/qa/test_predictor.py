"""Trained runs as predictors: any text, batching, lower precision, and ensembles."""

import json
import math
import shutil
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from broken_records import change_record
from safetensors.torch import load_file, save_file
from torch import nn

from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, RunError
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import WordVectors
from qa_arch.nn.precision import cast_weights
from qa_arch.qa.loading import Ensemble, _row_mapping, _shared_words, average, load, load_predictor
from qa_arch.tensors import Batch, SpanLogits, StepLogits

PLAIN = "The baker of Harn sold forty loaves before noon. Her brother keeps the mill."


@pytest.fixture(scope="module")
def questions():
    return generate(1, 5, 1, "dev")


@pytest.mark.parametrize(("question", "context"), [("Who?", " \n\t\u00a0"), ("", PLAIN), ("", "")])
def test_empty_question_or_passage_has_no_answer(reader, question, context):
    (answer,) = reader.predict([(question, context)])
    assert (answer.best, answer.windows) == (None, 0)
    assert answer.text(reader.null_threshold) == answer.text(float("inf")) == ""


def test_answers_do_not_depend_on_batching(reader, questions):
    """In batches of any size and order, and one question at a time."""
    backwards = question_set("backwards", reversed(questions.examples), "2.0")
    expected = reader.rank(questions, batch_size=32).predictions()
    assert len({answer.windows for answer in expected}) > 1
    single = [replace(reader.predict([(e.question, e.context)])[0], id=e.id) for e in questions.examples]
    assert_same(single, expected)
    assert_same(reader.rank(questions, batch_size=7).predictions(), expected)
    assert_same(reader.rank(backwards, batch_size=5).predictions()[::-1], expected)


def assert_same(answers, expected):
    for answer, other in zip(answers, expected, strict=True):
        assert (answer.id, answer.text(0.0)) == (other.id, other.text(0.0))
        assert answer.null_odds == pytest.approx(other.null_odds, abs=1e-4)
        assert (answer.best.start, answer.best.end) == (other.best.start, other.best.end)


@pytest.mark.parametrize("size", [4, 1000])
def test_set_read_in_parts_has_the_answers_of_the_whole(reader, questions, size):
    assert len(questions) % 4
    progress = []
    parts = list(reader.rank_parts(questions, size=size, watch=lambda *n: progress.append(n)))
    assert len(parts) == len(progress) == -(-len(questions) // size)
    assert progress[-1] == (len(questions), len(questions))
    actual = [answer for part in parts for answer in part.predictions()]
    assert_same(actual, reader.rank(questions).predictions())


def test_dropout_is_off_during_prediction(reader, questions):
    table = reader.table(questions, cache=False)
    batch = Collator(table)([0, 1])
    reader.model.train()
    try:
        with torch.inference_mode():
            assert not torch.equal(reader.model(batch).start, reader.model(batch).start)
        first, second = (reader.rank(questions, table=table).predictions() for _ in range(2))
    finally:
        reader.model.eval()
    assert first == second


def test_lower_precision_changes_scores_little_and_fp32_not_at_all(span_run, reader, questions):
    """Only the encoder is in lower precision."""
    batch = Collator(reader.table(questions, cache=False), labels=False)([0, 3, 7, 8])
    model = load_predictor(span_run, device="cpu", precision="bf16").model
    with torch.inference_mode():
        exact, low = reader.model(batch), model(batch)
        fp32 = cast_weights(deepcopy(reader.model), "fp32")(batch)
    assert torch.equal(fp32.start, exact.start)
    finite = exact.start > -torch.inf
    assert torch.equal(low.start > -torch.inf, finite)
    error = (low.start - exact.start)[finite].abs().max() / exact.start[finite].std()
    assert 0 < error < 0.1
    assert low.start.dtype == torch.float32
    assert {p.dtype for p in model.encoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.span.parameters()} == {torch.float32}


@pytest.fixture
def second(span_run, tmp_path):
    """A copy of the run with perturbed weights."""
    folder = shutil.copytree(span_run, tmp_path / "second")
    path = folder / "model" / "model.safetensors"
    save_file({name: value + 0.05 * torch.randn_like(value) for name, value in load_file(path).items()}, path)
    return folder


def test_threshold_is_the_mean_of_the_members(span_run, second):
    change_record(second, threshold={"value": 3.0, "fitted_on": "calibration"})
    loaded = [load(run, device="cpu") for run in (span_run, second, [span_run, second])]
    first, other, both = loaded
    assert both.null_threshold == pytest.approx((first.null_threshold + 3.0) / 2)
    low, high = sorted(qa.predict([("Who wrote it?", PLAIN)])[0].null_odds for qa in (first, other))
    assert low - 1 < both.predict([("Who wrote it?", PLAIN)])[0].null_odds < high + 1
    change_record(second, threshold={"value": None, "fitted_on": "calibration"})
    assert load([span_run, second], device="cpu").null_threshold == math.inf


def test_different_windows_are_refused(span_run, second):
    for name, own, other in (("stride", 32, 5), ("max_length", 64, 60), ("max_question", 24, 20)):
        change_record(second, **{f"config__features__{name}": other})
        with pytest.raises(RunError, match=rf"features\.{name} is {other}, that of .* is {own}"):
            load([span_run, second], device="cpu")
        with pytest.raises(RunError, match=rf"features\.{name} is {own}, that of .* is {other}"):
            load([second, span_run], device="cpu")
        change_record(second, **{f"config__features__{name}": own})


def test_different_tokenizer_is_refused(span_run, second):
    path = second / "model" / "tokenizer" / "tokenizer.json"
    text = json.loads(path.read_text())
    text["normalizer"] = None
    path.write_text(json.dumps(text))
    with pytest.raises(RunError, match="tokenizer is not that of"):
        load([span_run, second], device="cpu")


def test_every_member_looks_up_words_as_if_alone():
    """As written, else in lower case, else unknown, whatever the other members know."""
    tables = [
        WordVectors(words, np.zeros((len(words) + 1, 2), np.float32))
        for words in (("apple", "Pear", "of"), ("Apple", "pear"), ("of",))
    ]
    index = _shared_words([*tables, None])
    for table in tables:
        own = _row_mapping(index, table).numpy()
        questions = ["Apple", "apple", "APPLE", "Pear", "pear", "Of", "of", "plum"]
        assert own[index.rows(questions)].tolist() == table.rows(questions).tolist()
    assert _shared_words([None, None]) is None


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(score) for score in scores]
    return [weight / sum(weights) for weight in weights]


def mean_softmax(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*map(softmax, rows), strict=True)]


def random_logits(seed: int, verifier: bool = False) -> SpanLogits:
    torch.manual_seed(seed)
    start, end = torch.randn(2, 3, 4) * 2
    start[:, 0], end[:, 3] = -math.inf, -math.inf
    null = torch.randn(2, 3)
    return SpanLogits(start, end, *null, torch.randn(3) if verifier else None, verifier_weight=0.5)


def test_probabilities_of_start_end_and_null_are_averaged():
    members = [random_logits(seed, verifier=True) for seed in range(3)]
    actual = average(members)
    for b in range(3):
        for name in ("start", "end"):
            of_member, (averaged,) = (
                [[*getattr(m, name)[b].tolist(), getattr(m, f"null_{name}")[b].item()] for m in some]
                for some in (members, [actual])
            )
            assert softmax(averaged) == pytest.approx(mean_softmax(of_member), abs=1e-6)
        odds = [[m.verifier_weight * m.verifier[b].item(), 0.0] for m in members]
        verified = torch.sigmoid(actual.verifier_weight * actual.verifier[b]).item()
        assert verified == pytest.approx(mean_softmax(odds)[0], abs=1e-6)
    assert average([random_logits(0), random_logits(1)]).verifier is None


def test_verifier_of_some_members_is_part_of_their_null():
    plain, verified = random_logits(0), random_logits(1, verifier=True)
    folded = verified.folded()
    torch.testing.assert_close(folded.null, verified.null)
    assert folded.verifier is None
    actual, expected = average([plain, verified]), average([plain, folded])
    for name in ("start", "end", "null_start", "null_end"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name))
    assert actual.verifier is None


def test_probabilities_of_each_step_are_averaged():
    torch.manual_seed(0)
    members = [StepLogits(torch.randn(2, 3, 4), torch.randn(2, 3)) for _ in range(2)]
    actual = average(members)
    for b, s in product(range(2), range(3)):
        rows = [[*m.token[b, s].tolist(), m.stop[b, s].item()] for m in members]
        step = [*actual.token[b, s].exp().tolist(), actual.stop[b, s].exp().item()]
        assert step == pytest.approx(mean_softmax(rows))


@pytest.mark.parametrize("count", [1, 3])
def test_ensemble_of_equal_members_equals_each_member(count):
    """On the same scale in every window, so windows of a question stay comparable."""
    single = random_logits(4)
    actual = average([single] * count)
    for name in ("start", "end", "null_start", "null_end", "null"):
        torch.testing.assert_close(getattr(actual, name), getattr(single, name))


def test_members_with_different_outputs_are_refused():
    two, three = (StepLogits(torch.zeros(3, n, 4), torch.zeros(3, n)) for n in (2, 3))
    for members in ([random_logits(0), two], [two, three]):
        with pytest.raises(ConfigError, match="must all"):
            average(members)


def test_each_member_reads_its_own_word_vectors():
    """Members with the same vectors in another order give the same scores."""

    class VectorScores(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.register_buffer("table", table)

        def forward(self, batch):
            scores = self.table[batch.vector].masked_fill(~batch.context, -math.inf)
            return SpanLogits(scores, scores, scores.new_zeros(len(batch)), scores.new_zeros(len(batch)))

    table = torch.randn(6)
    table[0] = 0.0
    order = torch.tensor([0, 3, 1, 5, 2, 4])  # row of each word in the other table
    other = torch.zeros(6).scatter(0, order, table)
    vector = torch.tensor([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
    context = torch.arange(6) > torch.tensor([[0], [1]])
    mask = torch.ones_like(context)
    batch = Batch(torch.arange(2), vector, mask, None, ~context, context, vector, context, vector)
    plain = VectorScores(table)(batch)
    actual = Ensemble([VectorScores(table), VectorScores(other)], [torch.arange(6), order])(batch)
    torch.testing.assert_close(actual.start, plain.start)

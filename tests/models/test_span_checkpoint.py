"""Checkpoints of the library's own classes: windows and logits equal the library's in every family."""

import math
from typing import NamedTuple

import pytest
import torch
from checkpoints import CONFIGS, make_checkpoint
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from qa_arch.data.question_sets import question_set
from qa_arch.features.batches import Collator
from qa_arch.qa.loading import load_predictor
from qa_arch.tensors import Batch, SpanLogits
from qa_arch.types import Example

SHORT = "Mira paints red boats in Velmora's harbour."
LONG = " ".join(
    f"On day {n} the ferry of Lomm carried {n + 20} goats, café au lait & mail." for n in range(14)
)
PAIRS = [
    ("Who paints?", SHORT),
    ("How many goats crossed on day 9?", LONG),
    ("What does [SEP] Mira paint, naïvely?", LONG),
]
TEXTS = [text for pair in PAIRS for text in pair]
WINDOW = {"max_length": 56, "stride": 12}
SETTINGS = {"features": {**WINDOW, "max_question": 36}}
SEGMENTED = {"bert", "albert", "electra", "splinter"}


class Case(NamedTuple):
    family: str
    folder: str


@pytest.fixture(scope="session", params=CONFIGS)
def case(request, tmp_path_factory) -> Case:
    folder = tmp_path_factory.mktemp("checkpoint") / f"tiny-{request.param}"
    return Case(request.param, str(make_checkpoint(request.param, folder, TEXTS)))


@pytest.fixture(scope="session")
def predictor(case):
    return load_predictor(case.folder, device="cpu", settings=SETTINGS)


def windows(predictor) -> Batch:
    examples = [Example(str(n), question, context) for n, (question, context) in enumerate(PAIRS)]
    table = predictor.table(question_set("pairs", examples, "2.0"), cache=False)
    assert table.truncated_questions == 0  # the library's call truncates none
    return Collator(table, labels=False)(range(len(table)))


def expected(case: Case) -> tuple[dict, tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and logits of the library's own tokenizer call and class on the same pairs."""
    tokenizer = AutoTokenizer.from_pretrained(case.folder)
    encoded = tokenizer(
        *map(list, zip(*PAIRS, strict=True)),
        truncation="only_second",
        return_overflowing_tokens=True,
        return_token_type_ids=case.family in SEGMENTED,
        padding=True,
        return_tensors="pt",
        **WINDOW,
    )
    encoded.pop("overflow_to_sample_mapping")
    if case.family not in SEGMENTED:
        encoded.pop("token_type_ids", None)
    model = AutoModelForQuestionAnswering.from_pretrained(case.folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        output = model(**encoded)
    return encoded, (output.start_logits, output.end_logits)


def logits_of(predictor, batch: Batch) -> SpanLogits:
    with torch.inference_mode():
        return predictor.model(batch)


def test_windows_and_logits_match_the_library(case, predictor):
    batch, (encoded, (start, end)) = windows(predictor), expected(case)
    assert len(batch) > len(PAIRS)
    assert torch.equal(batch.ids, encoded["input_ids"])
    assert torch.equal(batch.mask.long(), encoded["attention_mask"])
    assert (batch.segments is not None) == (case.family in SEGMENTED)
    if batch.segments is not None:
        assert set(batch.segments.unique().tolist()) == {0, 1}
        assert torch.equal(batch.segments, encoded["token_type_ids"])
    logits = logits_of(predictor, batch)
    assert logits.start[0][batch.context[0]].std() > 0.01, "the logits must depend on the inputs"
    assert len(set(logits.null.tolist())) == len(batch)
    for actual, theirs in ((logits.start, start), (logits.end, end)):
        torch.testing.assert_close(actual[batch.context], theirs[batch.context], rtol=0, atol=1e-6)
        assert (actual[~batch.context] == -math.inf).all()
    cls = AutoTokenizer.from_pretrained(case.folder).cls_token_id
    at_cls = (batch.ids == cls).long().argmax(1, keepdim=True)
    torch.testing.assert_close(logits.null_start, start.gather(1, at_cls)[:, 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(logits.null_end, end.gather(1, at_cls)[:, 0], rtol=0, atol=1e-6)


def test_window_logits_are_the_same_alone_and_in_a_batch(predictor):
    batch = windows(predictor)
    together = logits_of(predictor, batch)
    examples = [Example("0", *PAIRS[0])]
    table = predictor.table(question_set("p", examples, "2.0"), cache=False)
    alone = logits_of(predictor, Collator(table, labels=False)([0]))
    width = alone.start.shape[1]
    torch.testing.assert_close(alone.start[0], together.start[0, :width], rtol=0, atol=1e-5)
    torch.testing.assert_close(alone.null[0], together.null[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["bert", "deberta-v2"], indirect=True)
def test_lower_precision_changes_scores_little(case, predictor):
    low = load_predictor(case.folder, device="cpu", precision="bf16", settings=SETTINGS)
    batch = windows(predictor)
    exact, moved = logits_of(predictor, batch), logits_of(low, batch)
    assert moved.start.dtype == torch.float32
    error = (moved.start - exact.start)[batch.context].abs().max() / exact.start[batch.context].std()
    assert 0 < error < 0.15
    heads = [child for child in low.model.model.children() if child is not low.model.backbone]
    assert {p.dtype for head in heads for p in head.parameters()} == {torch.float32}
    for answer, other in zip(low.predict(PAIRS), predictor.predict(PAIRS), strict=True):
        assert answer.null_odds == pytest.approx(other.null_odds, abs=1.5)

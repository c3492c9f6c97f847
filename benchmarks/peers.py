"""The widely used question-answering script, reimplemented from its documented behaviour: lists and loops.

Before the model, each question is tokenised together with its passage, overflowing into windows padded to
one length, and a loop finds the answer's tokens. After it, a loop over the windows of each question pairs the
best starts with the best ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from qa_arch.types import Example, Gold

BATCH = 1000
"""Questions tokenised at once (``Dataset.map``'s default)."""

Offsets = Sequence[Sequence[int] | None]
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Per window: padded token ids, and first and last token of the answer, 0 if it has none."""

    ids: list[list[int]]
    start: list[int]
    end: list[int]
    segments: list[list[int]]
    mask: list[list[int]]


@dataclass(frozen=True, slots=True)
class PredictionInputs:
    """Windows to predict; ``post_process`` takes ``windows`` and ``features``."""

    windows: list[list[int]]
    features: Dataset


def prepare(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 384,
    stride: int = 128,
) -> Prepared:
    """Windows and labels of all examples."""
    prepared = Prepared([], [], [], [], [])
    for begin in range(0, len(examples), BATCH):
        part = examples[begin : begin + BATCH]
        encoded = _encode(part, tokenizer, max_length, stride)
        for row, example in enumerate(encoded["overflow_to_sample_mapping"]):
            start, end = _answer_tokens(encoded, row, part[example].answers)
            prepared.start.append(start)
            prepared.end.append(end)
        prepared.ids.extend(encoded["input_ids"])
        prepared.segments.extend(encoded["token_type_ids"])
        prepared.mask.extend(encoded["attention_mask"])
    return prepared


def prepare_to_predict(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 384,
    stride: int = 128,
) -> PredictionInputs:
    """The same windows without labels, with offsets that are None outside the context."""
    names = ("input_ids", "token_type_ids", "attention_mask", "offset_mapping")
    columns: dict[str, list] = {name: [] for name in names}
    windows: list[list[int]] = [[] for _ in examples]
    for begin in range(0, len(examples), BATCH):
        encoded = _encode(examples[begin : begin + BATCH], tokenizer, max_length, stride)
        for row, example in enumerate(encoded["overflow_to_sample_mapping"]):
            windows[begin + example].append(len(columns["input_ids"]))
            pairs = zip(encoded["offset_mapping"][row], encoded.sequence_ids(row), strict=True)
            columns["offset_mapping"].append([offset if part == 1 else None for offset, part in pairs])
            for name in names[:3]:
                columns[name].append(encoded[name][row])
    return PredictionInputs(windows, Dataset.from_dict(columns))


def _encode(
    part: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int, stride: int
) -> BatchEncoding:
    return tokenizer(
        [e.question.lstrip() for e in part],
        [e.context for e in part],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )


def _answer_tokens(encoded: BatchEncoding, row: int, answers: Sequence[Gold]) -> tuple[int, int]:
    """First and last token of the first answer in window ``row``; (0, 0) if not entirely in it."""
    if not answers:
        return 0, 0
    offsets, parts = encoded["offset_mapping"][row], encoded.sequence_ids(row)
    start, end = 0, len(parts) - 1
    while parts[start] != 1:
        start += 1
    while parts[end] != 1:
        end -= 1
    if offsets[start][0] > answers[0].start or offsets[end][1] < answers[0].end:
        return 0, 0
    while start < len(offsets) and offsets[start][0] <= answers[0].start and parts[start] == 1:
        start += 1
    while offsets[end][1] >= answers[0].end:
        end -= 1
    return start - 1, end + 1


def post_process(
    contexts: Sequence[str],
    windows: Sequence[Sequence[int]],
    features: Any,
    starts: np.ndarray,
    ends: np.ndarray,
    *,
    n_best: int = 20,
    limit: int = 30,
    threshold: float = 0.0,
) -> tuple[list[str], list[list[Entry]]]:
    """Per question: the text of the answer ("" for none) and the n-best list.

    Args:
        windows: per question, the rows of its windows in ``features`` and in the logits.
        features: a ``datasets.Dataset`` (or a list of dicts): the prepared columns and ``offset_mapping``,
            None outside the context. The script spends most of its time reading whole rows one by one.
        starts, ends: (N, T) logits, with "no answer" at position 0.
        limit: longest answer in tokens.
        threshold: "no answer" must win by more than this.
    """
    texts, lists = [], []
    for context, rows in zip(contexts, windows, strict=True):
        entries: list[Entry] = []
        null: Entry | None = None
        for row in rows:
            start, end = starts[row], ends[row]
            offsets = features[row]["offset_mapping"]
            features[row].get("token_is_max_context")  # decodes every row a second time, as the script does
            if null is None or null["score"] > start[0] + end[0]:
                null = _entry(0, 0, start[0], end[0])
            entries.extend(_pairs(start, end, offsets, n_best, limit))
        assert null is not None
        best, gap = _finish(context, entries, null, n_best)
        texts.append("" if gap > threshold else next(e["text"] for e in best if e["text"]))
        lists.append([{k: float(v) if isinstance(v, np.floating) else v for k, v in e.items()} for e in best])
    return texts, lists


def _pairs(start: np.ndarray, end: np.ndarray, offsets: Offsets, n_best: int, limit: int) -> Iterator[Entry]:
    """All valid pairs of the ``n_best`` starts and ends of one window."""
    best_ends = np.argsort(end)[: -n_best - 1 : -1].tolist()
    for s in np.argsort(start)[: -n_best - 1 : -1].tolist():
        for e in best_ends:
            first, last = offsets[s], offsets[e]
            if first is None or last is None or e < s or e - s + 1 > limit:
                continue
            yield _entry(first[0], last[1], start[s], end[e])


def _entry(begin: int, stop: int, start: float, end: float) -> Entry:
    return {"offsets": (begin, stop), "score": start + end, "start_logit": start, "end_logit": end}


def _finish(context: str, entries: list[Entry], null: Entry, n_best: int) -> tuple[list[Entry], float]:
    """(n-best list with texts and probabilities, null score minus that of the best span)."""
    ranked = sorted([*entries, null], key=lambda entry: entry["score"], reverse=True)[:n_best]
    if all(entry["offsets"] != (0, 0) for entry in ranked):
        ranked.append(null)
    scores = np.array([entry.pop("score") for entry in ranked])
    weights = np.exp(scores - np.max(scores))
    for entry, probability in zip(ranked, weights / weights.sum(), strict=True):
        begin, stop = entry.pop("offsets")
        entry["text"], entry["probability"] = context[begin:stop], probability
    top = next((entry for entry in ranked if entry["text"]), None)
    if top is None:
        return ranked, float("inf")
    return ranked, null["start_logit"] + null["end_logit"] - top["start_logit"] - top["end_logit"]

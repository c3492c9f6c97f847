"""Attention of a run's match-LSTM over chosen questions, as ``predict --keep-attention`` records it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from qa_arch.errors import DataError, RunError
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.features.windows import FeatureTable, Window, assemble
from qa_arch.nn.match_lstm import MatchLSTM
from qa_arch.nn.precision import mixed
from qa_arch.results.attention import AttentionMap
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.tasks import device_of
from qa_arch.types.text import Example, Prediction, QuestionSet


def attention_maps(
    predictor: SpanPredictor, questions: QuestionSet, answers: Sequence[Prediction], ids: Sequence[str]
) -> list[AttentionMap]:
    """The attention over each of the questions ``ids``, in the window that holds its answer.

    Raises DataError for ids of no question, RunError where the model has no match-LSTM.
    """
    match_lstm(predictor.model)
    chosen, best = choose(questions, answers, ids)
    table = predictor.table(chosen, cache=False)
    rows = np.array([window_of(table, q, answer) for q, answer in enumerate(best)], np.int64)
    size = predictor.config.trainer.eval_batch_size
    parts = (rows[first : first + size] for first in range(0, len(rows), size))
    return [item for part in parts for item in match_maps(predictor, chosen, table, part)]


def match_maps(
    predictor: SpanPredictor, questions: QuestionSet, table: FeatureTable, rows: np.ndarray
) -> list[AttentionMap]:
    """The match-LSTM's attention in the windows ``rows`` of ``table``, read in one batch."""
    model = predictor.model
    collate = Collator(table, vector_rows(predictor.vectors, table), labels=False)
    device = device_of(model)
    with torch.inference_mode(), mixed(predictor.precision, device.type):
        weights, context_mask, question_mask = _look(
            model, match_lstm(model), collate(rows.tolist()).to(device)
        )
    window = assemble(table, rows)
    maps = []
    for at, row in enumerate(rows):
        example = questions.examples[int(table.example[row])]
        C, Q = int(context_mask[at].sum()), int(question_mask[at].sum())
        unpadded = torch.cat([weights[at, :, :C, :Q], weights[at, :, :C, -1:]], dim=-1)
        maps.append(
            AttentionMap(
                example.id,
                questions.fingerprint,
                unpadded.cpu().numpy(),
                _units(table, window, at, window.context[at], C, 0),
                _units(table, window, at, window.question[at], Q, stripped(example)),
            )
        )
    return maps


def match_lstm(model: nn.Module) -> MatchLSTM:
    """The model's match-LSTM; RunError where it has none."""
    layer = find_match_lstm(model)
    if layer is None:
        raise RunError("attention: the model has no match-LSTM; --layer L takes the encoder's")
    return layer


def find_match_lstm(model: nn.Module) -> MatchLSTM | None:
    return next((module for module in model.modules() if isinstance(module, MatchLSTM)), None)


def choose(
    questions: QuestionSet, answers: Sequence[Prediction], ids: Sequence[str]
) -> tuple[QuestionSet, list[Prediction]]:
    known = {
        example.id: (example, answer) for example, answer in zip(questions.examples, answers, strict=True)
    }
    wanted = list(dict.fromkeys(ids))
    if absent := [id_ for id_ in wanted if id_ not in known]:
        raise DataError(f"--keep-attention: {questions.name} has no question {', '.join(absent[:5])}")
    chosen = replace(questions, examples=tuple(known[id_][0] for id_ in wanted))
    return chosen, [known[id_][1] for id_ in wanted]


def window_of(table: FeatureTable, question: int, answer: Prediction) -> int:
    """The first window of the question that holds its best span, or else its first."""
    rows = np.flatnonzero(table.example == question)
    if answer.best is not None:
        for row in rows:
            first, last = int(table.token_start[row]), int(table.token_end[row]) - 1
            if table.char_start[first] <= answer.best.start and answer.best.end <= table.char_end[last]:
                return int(row)
    return int(rows[0])


def _look(model: nn.Module, module: MatchLSTM, batch) -> tuple[Tensor, Tensor, Tensor]:
    """One forward pass; attention and masks as the match-LSTM had them."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(_, arguments: tuple[Tensor, ...]) -> None:
        seen.append((module.attention(*arguments), arguments[2], arguments[3]))

    handle = module.register_forward_pre_hook(keep)
    try:
        model(batch)
    finally:
        handle.remove()
    return seen[0]


def _units(
    table: FeatureTable, window: Window, at: int, mask: np.ndarray, count: int, shift: int
) -> np.ndarray:
    """(count, 2) characters of each unit: a piece, or all pieces of a word where these are fewer."""
    source = window.source[at][mask]
    spans = np.stack([table.char_start[source], table.char_end[source]], axis=1)
    if len(source) != count:
        word = table.word_number[source]
        source, word, spans = source[word >= 0], word[word >= 0], spans[word >= 0]
        first = np.flatnonzero(np.append(True, word[1:] != word[:-1]))
        spans = np.stack([spans[first, 0], np.maximum.reduceat(spans[:, 1], first)], axis=1)
    if len(spans) != count:
        raise RunError(f"attention over {count} units, but the text has {len(spans)}; please report it")
    return (spans + shift).astype(np.int32)


def stripped(example: Example) -> int:
    """Characters that the features leave out at the front of a question."""
    return len(example.question) - len(example.question.lstrip())

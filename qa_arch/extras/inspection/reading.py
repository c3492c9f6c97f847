"""All attention of a model over one question and a window of its passage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.extras.inspection.layers import (
    ALL,
    MATCH,
    AttentionLayer,
    Inspection,
    Part,
    Unit,
    attention_map,
    select_heads,
)
from qa_arch.extras.inspection.weights import attention_weights
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.features.windows import FeatureTable, Window, assemble
from qa_arch.nn.encoder import encoder_of
from qa_arch.nn.match_lstm import MatchLSTM
from qa_arch.nn.precision import mixed
from qa_arch.results.attention import AttentionMap
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.tasks import device_of
from qa_arch.types.tensors import Batch
from qa_arch.types.text import Example, Prediction, QuestionSet

NOTHING = Unit("(nothing)", "special", 0, 0)
"""The match-LSTM's word for units of the passage that match none of the question."""


def inspect_question(predictor: SpanPredictor, example: Example, *, window: int | None = None) -> Inspection:
    """Every layer and head in one window: ``window``, from 1, or that which holds the answer.

    Raises ConfigError for a blank text and for a window that there is not, RunError where the model has
    neither attention of an encoder nor a match-LSTM.
    """
    table, answer = _read(predictor, example)
    if window is not None and not 1 <= window <= len(table):
        raise ConfigError(f"--window: {window} is out of range, the passage is read in {len(table)}")
    row = _window_of(table, 0, answer) if window is None else window - 1
    layers = []
    if encoder_of(predictor.model) is not None:
        layers += _encoder_layers(predictor, example, table, row)
    if find_match_lstm(predictor.model) is not None:
        layers.append(_match_layer(predictor, example, table, row))
    if not layers:
        raise RunError("inspect: the model has neither an encoder with attention nor a match-LSTM")
    span = answer.at(predictor.null_threshold)
    first, last = int(table.token_start[row]), int(table.token_end[row]) - 1
    return Inspection(
        model=predictor.record.model if predictor.record else type(predictor.model).__name__,
        question=example.question,
        passage=example.context,
        window=row + 1,
        windows=len(table),
        first=int(table.char_start[first]),
        last=int(table.char_end[last]),
        answer=(span.start, span.end) if span is not None and span.start >= 0 else None,
        layers=tuple(layers),
    )


def attention_maps(
    predictor: SpanPredictor,
    questions: QuestionSet,
    answers: Sequence[Prediction],
    ids: Sequence[str],
    *,
    layer: str = MATCH,
    head: str | None = ALL,
) -> list[AttentionMap]:
    """How the passage looks at the question: of each of ``ids`` the window with its answer.

    ``layer`` and ``head`` are those of ``select_heads``. Raises DataError for ids of no question,
    ConfigError for a layer or head that there is not, RunError where the model has none of this kind.
    """
    known = {item.id: (item, answer) for item, answer in zip(questions.examples, answers, strict=True)}
    wanted = list(dict.fromkeys(ids))
    if absent := [id_ for id_ in wanted if id_ not in known]:
        raise DataError(f"--keep-attention: {questions.name} has no question {', '.join(absent[:5])}")
    chosen = replace(questions, examples=tuple(known[id_][0] for id_ in wanted))
    table = predictor.table(chosen, cache=False)
    maps = []
    for number, example in enumerate(chosen.examples):
        row = _window_of(table, number, known[example.id][1])
        if layer == MATCH:
            layers = [_match_layer(predictor, example, table, row)]
        else:
            layers = _encoder_layers(predictor, example, table, row)
        maps.append(attention_map(example.id, questions.fingerprint, select_heads(layers, layer, head)))
    return maps


def attention_of(predictor: SpanPredictor, question: str, context: str) -> AttentionMap:
    """What the match-LSTM looks at, in the window that holds the best span.

    Raises ConfigError for a blank text, RunError where the model has no match-LSTM.
    """
    example = Example("question", question, context)
    table, answer = _read(predictor, example)
    layer = _match_layer(predictor, example, table, _window_of(table, 0, answer))
    return attention_map(example.id, "", select_heads([layer], MATCH, ALL))


def check_heads(predictor: SpanPredictor, questions: QuestionSet, *, layer: str, head: str | None) -> None:
    """Raise what ``attention_maps`` would of any question: no such encoder, layer or head."""
    example = questions.examples[0]
    table = predictor.table(question_set(questions.name, [example], questions.protocol), cache=False)
    select_heads(_encoder_layers(predictor, example, table, 0), layer, head)


def find_match_lstm(model: nn.Module) -> MatchLSTM | None:
    return next((module for module in model.modules() if isinstance(module, MatchLSTM)), None)


def match_lstm(model: nn.Module) -> MatchLSTM:
    """The model's match-LSTM; RunError where it has none."""
    layer = find_match_lstm(model)
    if layer is None:
        raise RunError("attention: the model has no match-LSTM; --layer L takes the encoder's")
    return layer


def _read(predictor: SpanPredictor, example: Example) -> tuple[FeatureTable, Prediction]:
    """The windows of a question, and its answer."""
    for name, text in (("question", example.question), ("context", example.context)):
        if not text.strip():
            raise ConfigError(f"{name}: it is blank, so there is nothing to look at")
    questions = question_set("question", [example], "2.0")
    table = predictor.table(questions, cache=False)
    (answer,) = predictor.read(questions, table=table).best_predictions
    return table, answer


def _window_of(table: FeatureTable, question: int, answer: Prediction) -> int:
    """The first window of the question that holds its best span, or else its first."""
    rows = np.flatnonzero(table.example == question)
    if answer.best is not None:
        for row in rows:
            first, last = int(table.token_start[row]), int(table.token_end[row]) - 1
            if table.char_start[first] <= answer.best.start and answer.best.end <= table.char_end[last]:
                return int(row)
    return int(rows[0])


def _batch(predictor: SpanPredictor, table: FeatureTable, row: int) -> Batch:
    collate = Collator(table, vector_rows(predictor.vectors, table), labels=False)
    return collate([row]).to(device_of(predictor.model))


def _stripped(example: Example) -> int:
    """Characters that the features leave out at the front of a question."""
    return len(example.question) - len(example.question.lstrip())


# The encoder ----------------------------------------------------------------------------------------


def _encoder_layers(
    predictor: SpanPredictor, example: Example, table: FeatureTable, row: int
) -> list[AttentionLayer]:
    """Every layer of the encoder in the window ``row``, over all its tokens."""
    batch = _batch(predictor, table, row)
    units = _tokens(predictor, example, table, row)
    layers = attention_weights(predictor.model, batch, predictor.precision)
    heads = tuple(str(number) for number in range(1, layers[0].shape[1] + 1))
    return [
        AttentionLayer(str(number), heads, weights[0].cpu().numpy(), units, units)
        for number, weights in enumerate(layers, start=1)
    ]


def _tokens(predictor: SpanPredictor, example: Example, table: FeatureTable, row: int) -> tuple[Unit, ...]:
    """The tokens of the window; special is also what has no characters."""
    window = assemble(table, np.array([row]))
    shift = _stripped(example)
    pieces = predictor.tokenizer.convert_ids_to_tokens(window.ids[0].tolist())
    units = []
    for at, piece in enumerate(pieces):
        source = int(window.source[0, at])
        start, end = int(table.char_start[source]), int(table.char_end[source])
        if window.question[0, at] and end > start:
            start, end = start + shift, end + shift
            units.append(Unit(example.question[start:end], "question", start, end))
        elif window.context[0, at]:
            units.append(Unit(example.context[start:end], "passage", start, end))
        else:
            units.append(Unit(piece, "special", 0, 0))
    return tuple(units)


# The match-LSTM -------------------------------------------------------------------------------------


def _match_layer(predictor: SpanPredictor, example: Example, table: FeatureTable, row: int) -> AttentionLayer:
    model, batch = predictor.model, _batch(predictor, table, row)
    with torch.inference_mode(), mixed(predictor.precision, batch.ids.device.type):
        weights, context_mask, question_mask = _look(model, match_lstm(model), batch)
    C, Q = int(context_mask.sum()), int(question_mask.sum())
    unpadded = torch.cat([weights[0, :, :C, :Q], weights[0, :, :C, -1:]], dim=-1)
    window = assemble(table, np.array([row]))
    context = _units(table, window, window.context[0], C)
    question = _units(table, window, window.question[0], Q) + _stripped(example)
    return AttentionLayer(
        MATCH,
        ("forward", "backward"),
        unpadded.float().cpu().numpy(),
        _named(example.context, "passage", context),
        (*_named(example.question, "question", question), NOTHING),
    )


def _look(model: nn.Module, module: MatchLSTM, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """One forward pass; attention and masks as the match-LSTM had them."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen.append((module.attention(*arguments), arguments[2], arguments[3]))

    handle = module.register_forward_pre_hook(keep)
    try:
        model(batch)
    finally:
        handle.remove()
    return seen[0]


def _units(table: FeatureTable, window: Window, mask: np.ndarray, count: int) -> np.ndarray:
    """(count, 2) characters of each unit: a piece, or all pieces of a word where these are fewer."""
    source = window.source[0][mask]
    spans = np.stack([table.char_start[source], table.char_end[source]], axis=1)
    if len(source) != count:
        word = table.word_number[source]
        source, word, spans = source[word >= 0], word[word >= 0], spans[word >= 0]
        first = np.flatnonzero(np.append(True, word[1:] != word[:-1]))
        spans = np.stack([spans[first, 0], np.maximum.reduceat(spans[:, 1], first)], axis=1)
    if len(spans) != count:
        raise RunError(f"attention over {count} units, but the text has {len(spans)}; please report it")
    return spans.astype(np.int32)


def _named(text: str, part: Part, spans: np.ndarray) -> tuple[Unit, ...]:
    return tuple(Unit(text[start:end], part, start, end) for start, end in spans.tolist())

"""All attention of a model over one question and a window of its passage: ``qa-arch inspect``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.inspection.layers import (
    MATCH,
    AttentionLayer,
    Inspection,
    Part,
    Unit,
    attention_map,
    select_heads,
)
from qa_arch.extras.inspection.maps import choose, find_match_lstm, match_maps, stripped, window_of
from qa_arch.extras.inspection.weights import attention_weights
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.features.windows import FeatureTable, assemble
from qa_arch.nn.encoder import encoder_of
from qa_arch.results.attention import AttentionMap
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.tasks import device_of
from qa_arch.types.text import Example, Prediction, QuestionSet

NOTHING = Unit("(nothing)", "special", 0, 0)
"""The match-LSTM's word for units of the passage that match none of the question."""


def inspect_question(predictor: SpanPredictor, example: Example, *, window: int | None = None) -> Inspection:
    """Every layer and head in one window: ``window``, from 1, or that which holds the answer.

    Raises ConfigError for a blank text and for a window that there is not, RunError where the model has
    neither attention of an encoder nor a match-LSTM.
    """
    for name, text in (("question", example.question), ("context", example.context)):
        if not text.strip():
            raise ConfigError(f"{name}: it is blank, so there is nothing to look at")
    questions = question_set("question", [example], "2.0")
    table = predictor.table(questions, cache=False)
    (answer,) = predictor.read(questions, table=table).best_predictions
    if window is not None and not 1 <= window <= len(table):
        raise ConfigError(f"--window: {window} is out of range, the passage is read in {len(table)}")
    row = window_of(table, 0, answer) if window is None else window - 1
    layers = []
    if encoder_of(predictor.model) is not None:
        layers += encoder_layers(predictor, example, table, row)
    if find_match_lstm(predictor.model) is not None:
        layers.append(_match_layer(predictor, questions, table, row))
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


def encoder_maps(
    predictor: SpanPredictor,
    questions: QuestionSet,
    answers: Sequence[Prediction],
    ids: Sequence[str],
    *,
    layer: str,
    head: str | None,
) -> list[AttentionMap]:
    """How the passage looks at the question in the encoder: of each of ``ids`` the window with its answer.

    ``layer`` and ``head`` are those of ``select_heads``. Raises DataError for ids of no question,
    ConfigError for a layer or head that there is not.
    """
    chosen, best = choose(questions, answers, ids)
    table = predictor.table(chosen, cache=False)
    maps = []
    for number, (example, answer) in enumerate(zip(chosen.examples, best, strict=True)):
        layers = encoder_layers(predictor, example, table, window_of(table, number, answer))
        maps.append(attention_map(example.id, questions.fingerprint, select_heads(layers, layer, head)))
    return maps


def check_heads(predictor: SpanPredictor, questions: QuestionSet, *, layer: str, head: str | None) -> None:
    """Raise what ``encoder_maps`` would of any question: no such encoder, layer or head."""
    example = questions.examples[0]
    table = predictor.table(question_set(questions.name, [example], questions.protocol), cache=False)
    select_heads(encoder_layers(predictor, example, table, 0), layer, head)


def encoder_layers(
    predictor: SpanPredictor, example: Example, table: FeatureTable, row: int
) -> list[AttentionLayer]:
    """Every layer of the encoder in the window ``row``, over all its tokens."""
    collate = Collator(table, vector_rows(predictor.vectors, table), labels=False)
    batch = collate([row]).to(device_of(predictor.model))
    units = _tokens(predictor, example, table, row)
    return [
        AttentionLayer(str(number), _numbers(weights.shape[1]), weights[0].cpu().numpy(), units, units)
        for number, weights in enumerate(
            attention_weights(predictor.model, batch, predictor.precision), start=1
        )
    ]


def _tokens(predictor: SpanPredictor, example: Example, table: FeatureTable, row: int) -> tuple[Unit, ...]:
    """The tokens of the window; special is also what has no characters."""
    window = assemble(table, np.array([row]))
    shift = stripped(example)
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


def _match_layer(
    predictor: SpanPredictor, questions: QuestionSet, table: FeatureTable, row: int
) -> AttentionLayer:
    (example,) = questions.examples
    (item,) = match_maps(predictor, questions, table, np.array([row]))
    columns = (*_units(example.question, "question", item.question), NOTHING)
    rows = _units(example.context, "passage", item.context)
    return AttentionLayer(MATCH, ("forward", "backward"), item.weights.astype(np.float32), rows, columns)


def _units(text: str, part: Part, spans: np.ndarray) -> tuple[Unit, ...]:
    return tuple(Unit(text[start:end], part, start, end) for start, end in spans.tolist())


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(1, count + 1))

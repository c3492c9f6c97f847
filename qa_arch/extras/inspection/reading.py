"""Attention of a model over one question and a window of its passage.

Axes: ``B`` windows, ``N`` heads, ``T`` tokens; in ``(B, N, T, T)`` the first T attends to the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.inspection.layers import MATCH, MEAN, AttentionLayer, Inspection, Unit
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.features.windows import FeatureTable, Window, assemble
from qa_arch.nn.encoder import encoders_of
from qa_arch.nn.match_lstm import MatchLSTM
from qa_arch.nn.precision import Precision, mixed
from qa_arch.nn.reading import device_of
from qa_arch.qa.reader import Reader
from qa_arch.tensors import Batch
from qa_arch.types import Example, Prediction

NOTHING = Unit("(nothing)", "special", 0, 0)
"""The match-LSTM's attention target for units of the passage that match no unit of the question."""


def inspect_question(
    predictor: Reader,
    example: Example,
    *,
    window: int | None = None,
    only: str | None = None,
) -> Inspection:
    """Every layer and head in one window: number ``window``, from 1, or the one that contains the answer.

    ``only=MATCH`` skips the encoder. Raises ConfigError for a blank text or a window out of range, RunError
    if the model has no such attention.
    """
    for name, text in (("question", example.question), ("context", example.context)):
        if not text.strip():
            raise ConfigError(f"{name}: is blank; give a text")
    # Read as a set of one, by the same path as in evaluation; a question asked once needs no file.
    questions = question_set("question", [example], "2.0")
    table = predictor.table(questions, cache=False)
    (answer,) = predictor.rank(questions, table=table).best_predictions
    if window is not None and not 1 <= window <= len(table):
        raise ConfigError(f"--window: {window} is out of range, the passage is read in {len(table)} windows")
    row = _window_of(table, answer) if window is None else window - 1
    batch = Collator(table, vector_rows(predictor.vectors, table), labels=False)([row])
    batch = batch.to(device_of(predictor.model))
    matching = find_match_lstm(predictor.model)
    layers: list[AttentionLayer] = []
    if only is None and encoders_of(predictor.model):
        layers += _encoder_layers(predictor, example, table, row, batch)
    if matching is not None:
        layers.append(_match_layer(predictor, matching, example, table, row, batch))
    if not layers:
        if predictor.library == "onnx":
            raise RunError("attention: a graph has its results alone; inspect the run that was exported")
        raise RunError(
            "attention: the model has no match-LSTM" + (" and no encoder layers" if only is None else "")
        )
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


def inspect_written(predictor: Any, text: str) -> Inspection:
    """Self- and cross-attention of the decoder of a model that writes, over what it writes of ``text``.

    Its predictor has ``attend(text)``: pieces read, pieces written, and (name, (N, R, K) probabilities) of
    each layer, whose rows are the pieces written and whose columns those read, or for ``self`` written
    before.
    """
    if not text.strip():
        raise ConfigError("--context: is blank; give a text")
    read, written, maps = predictor.attend(text)
    rows = tuple(Unit(piece, "question", 0, 0) for piece in written)
    columns = {
        "cross": tuple(Unit(piece, "passage", 0, 0) for piece in read),
        "self": (Unit("(start)", "special", 0, 0), *rows[:-1]),
    }
    layers = tuple(
        AttentionLayer(
            name, tuple(map(str, range(1, len(weights) + 1))), weights, rows, columns[name.split()[1]]
        )
        for name, weights in maps
    )
    model = predictor.record.model
    return Inspection(model, "", text, 1, 1, 0, len(text), None, layers, " ".join(written))


def match_attention(predictor: Reader, example: Example) -> dict[str, Any]:
    """Attention of the match-LSTM in the window that contains the best span, as the service returns it;
    raises like ``inspect_question``."""
    layer = inspect_question(predictor, example, only=MATCH).layers[0]
    # The last column is the attention to none of the question.
    context, question = ([(u.start, u.end) for u in units] for units in (layer.rows, layer.columns[:-1]))
    weights = layer.head(MEAN).astype(float).round(4).tolist()
    return {"context": context, "question": question, "weights": weights}


def find_match_lstm(model: nn.Module) -> MatchLSTM | None:
    return next((module for module in model.modules() if isinstance(module, MatchLSTM)), None)


def _window_of(table: FeatureTable, answer: Prediction) -> int:
    """The first window that contains the best span, else window 0."""
    if (best := answer.best) is not None:
        for row in range(len(table)):
            first, last = int(table.token_start[row]), int(table.token_end[row]) - 1
            if table.char_start[first] <= best.start and best.end <= table.char_end[last]:
                return row
    return 0


def _leading_spaces(example: Example) -> int:
    """Number of leading characters that the features strip from a question."""
    return len(example.question) - len(example.question.lstrip())


# The encoder ----------------------------------------------------------------------------------------


def attention_weights(
    model: nn.Module, batch: Batch, precision: Precision = "fp32"
) -> tuple[Float[Tensor, "B N T T"], ...]:
    """Attention probabilities of each encoder layer, from the lowest up.

    The model, which has an encoder, reads ``batch`` with eager attention, as fused kernels return no
    probabilities. Raises RunError for encoders with sparse attention (Longformer) or none (FNet).
    """
    backbone = encoders_of(model)[0].backbone
    kind = backbone.config.model_type
    implementation = backbone.config._attn_implementation
    outputs: list[Any] = []
    options = {"output_attentions": True}
    backbone.set_attn_implementation("eager")
    try:
        with (
            torch.inference_mode(),
            mixed(precision, batch.ids.device.type),
            backbone.register_forward_pre_hook(lambda *call: (call[1], call[2] | options), with_kwargs=True),
            backbone.register_forward_hook(lambda *call: outputs.append(call[2])),
        ):
            model(batch)
    finally:
        backbone.set_attn_implementation(implementation)
    layers = getattr(outputs[0], "attentions", None) or ()
    if not layers:
        raise RunError(f"attention: {kind} returns no attention probabilities")
    B, T = batch.mask.shape
    for number, weights in enumerate(layers, start=1):
        if weights.shape != (B, weights.shape[1], T, T):
            raise RunError(
                f"attention: layer {number} of {kind}: is not full token-to-token attention, its shape is"
                f" {tuple(weights.shape)}"
            )
    return tuple(weights.float() for weights in layers)


def _encoder_layers(
    predictor: Reader, example: Example, table: FeatureTable, row: int, batch: Batch
) -> list[AttentionLayer]:
    """Encoder layers in the window ``row``; tokens without characters count as special."""
    window = assemble(table, np.array([row]))
    shift = _leading_spaces(example)
    units = []
    for t, piece in enumerate(predictor.tokenizer.convert_ids_to_tokens(window.ids[0].tolist())):
        source = int(window.source[0, t])
        start, end = int(table.char_start[source]), int(table.char_end[source])
        if window.question[0, t] and end > start:
            start, end = start + shift, end + shift
            units.append(Unit(example.question[start:end], "question", start, end))
        elif window.context[0, t]:
            units.append(Unit(example.context[start:end], "passage", start, end))
        else:
            units.append(Unit(piece, "special", 0, 0))
    layers = attention_weights(predictor.model, batch, predictor.precision)
    heads = tuple(str(number) for number in range(1, layers[0].shape[1] + 1))
    tokens = tuple(units)
    return [
        AttentionLayer(str(number), heads, weights[0].cpu().numpy(), tokens, tokens)
        for number, weights in enumerate(layers, start=1)
    ]


# The match-LSTM -------------------------------------------------------------------------------------


def _match_layer(
    predictor: Reader, module: MatchLSTM, example: Example, table: FeatureTable, row: int, batch: Batch
) -> AttentionLayer:
    """Attention of the match-LSTM while the model reads ``batch``, unpadded by the masks it received."""
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    hook = module.register_forward_pre_hook(
        lambda _, args: calls.append((module.attention(*args), args[2], args[3]))
    )
    with hook, torch.inference_mode(), mixed(predictor.precision, batch.ids.device.type):
        predictor.model(batch)
    weights, context_mask, question_mask = calls[0]
    C, Q = int(context_mask.sum()), int(question_mask.sum())
    # The last column, behind the padding, is the attention to nothing.
    unpadded = torch.cat([weights[0, :, :C, :Q], weights[0, :, :C, -1:]], dim=-1)
    window = assemble(table, np.array([row]))
    context = _spans(table, window, window.context[0], C)
    question = _spans(table, window, window.question[0], Q) + _leading_spaces(example)
    return AttentionLayer(
        MATCH,
        ("forward", "backward"),
        unpadded.float().cpu().numpy(),
        tuple(Unit(example.context[start:end], "passage", start, end) for start, end in context.tolist()),
        (
            *(Unit(example.question[start:end], "question", start, end) for start, end in question.tolist()),
            NOTHING,
        ),
    )


def _spans(table: FeatureTable, window: Window, mask: np.ndarray, count: int) -> np.ndarray:
    """Shape (count, 2): characters of each unit, which is a piece or, if these are too many, a word."""
    source = window.source[0][mask]
    spans = np.stack([table.char_start[source], table.char_end[source]], axis=1)
    if len(source) != count:
        word = table.word_number[source]
        source, word, spans = source[word >= 0], word[word >= 0], spans[word >= 0]
        first = np.flatnonzero(np.append(True, word[1:] != word[:-1]))
        spans = np.stack([spans[first, 0], np.maximum.reduceat(spans[:, 1], first)], axis=1)
    if len(spans) != count:
        raise RunError(f"attention: {count} units, but the text has {len(spans)}; please report it")
    return spans.astype(np.int32)

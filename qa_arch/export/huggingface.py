"""``qa-arch export --to hf``: a folder that plain transformers loads as a question-answering model."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    AutoConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from qa_arch.config.files import write_atomic
from qa_arch.errors import ConfigError
from qa_arch.export.folder import new_folder
from qa_arch.export.graph import sample
from qa_arch.export.model_card import CARD, model_card
from qa_arch.features.template import backend_of, probe, unlimited
from qa_arch.models.span_checkpoint import SpanCheckpoint
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_factory import quiet_loading
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.tensors import Batch, SpanLogits

LARGEST = 1e-5
"""The library's logits differ from ours by no more than this."""
_INSTEAD = "plain transformers has no class for that; qa-arch export --to onnx takes any span model"


def export_hf(predictor: SpanPredictor, out: str | Path) -> None:
    """Write model (safetensors), config, tokenizer and model card; loads with AutoModelForQuestionAnswering.

    The model is an encoder with one linear map to a start and an end score, whose null is the first token's.
    Raises ConfigError for any other, RunError where ``out`` is in the way.
    """
    encoder, head = _parts(predictor)
    model = library_model(encoder, head)
    _require_equal(predictor, model)
    tokenizer = library_tokenizer(predictor, encoder)
    with new_folder(out) as folder, quiet_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_atomic(folder / CARD, model_card(predictor))


def library_tokenizer(predictor: SpanPredictor, encoder: Encoder) -> PreTrainedTokenizerFast:
    """The predictor's tokenizer, which by itself writes the inputs that the encoder was trained on.

    Some give no segment ids, or zeros for question and context alike, where the encoder has two.
    """
    with unlimited(backend_of(predictor.tokenizer)) as limitless:
        backend = Tokenizer.from_str(limitless.to_str())
    segments = encoder.has_segments
    if segments and not any(backend.encode("a", "b").type_ids):
        backend.post_processor = _pairs(predictor, backend)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        model_max_length=encoder.max_tokens or predictor.config.features.max_length,
        **predictor.tokenizer.special_tokens_map,
    )


def _pairs(predictor: SpanPredictor, backend: Tokenizer) -> TemplateProcessing:
    """The special tokens of a pair as they stand, with the segments that our windows have."""
    template = probe(predictor.tokenizer, segments=True)
    before, between, after = (
        [f"{backend.id_to_token(token.id)}:{token.segment}" for token in part]
        for part in (template.before, template.between, template.after)
    )
    names = {id_: backend.id_to_token(id_) for id_ in backend.encode("a", "b").ids}
    return TemplateProcessing(
        single=[*before, "$A:0", *(name.rpartition(":")[0] + ":0" for name in after)],
        pair=[
            *before,
            f"$A:{template.question_segment}",
            *between,
            f"$B:{template.context_segment}",
            *after,
        ],
        special_tokens=[(name, id_) for id_, name in names.items()],
    )


def library_model(encoder: Encoder, head: nn.Linear) -> PreTrainedModel:
    """The library's question-answering class for the encoder's family, with copies of these weights."""
    description = encoder.describe()
    kind = description.pop("model_type")
    config = AutoConfig.for_model(kind, **(description | {"num_labels": 2}))
    qa_class = MODEL_FOR_QUESTION_ANSWERING_MAPPING.get(type(config), None)
    if qa_class is None:
        raise ConfigError(f"{kind}: {_INSTEAD}")
    model = qa_class(config)
    base = getattr(model, model.base_model_prefix, None)
    output = getattr(model, "qa_outputs", None)
    if base is None or not isinstance(output, nn.Linear) or output.weight.shape != head.weight.shape:
        raise ConfigError(f"{kind}: {qa_class.__name__} is no encoder with qa_outputs; {_INSTEAD}")
    try:
        base.load_state_dict(encoder.backbone.state_dict())
        output.load_state_dict(head.state_dict())
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(f"{kind}: {qa_class.__name__} has other weights ({reason}); {_INSTEAD}") from error
    return model.eval()


def _parts(predictor: SpanPredictor) -> tuple[Encoder, nn.Linear]:
    """The encoder, and the linear map that is all the model has beside it."""
    model = predictor.model
    if isinstance(model, SpanCheckpoint):
        raise ConfigError("a downloaded checkpoint is such a folder already; --to onnx makes a graph of it")
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, Encoder):
        raise ConfigError(f"{type(model).__name__}: it has no Hugging Face encoder; {_INSTEAD}")
    if encoder.fewer_heads is not None:
        raise ConfigError(
            f"{encoder.config.model_type}: heads were removed, and the library's classes take as many as fill"
            " the width; --to onnx writes the run as it is"
        )
    inside = {id(parameter) for parameter in encoder.parameters()}
    owners = [
        module
        for module in model.modules()
        if any(id(parameter) not in inside for parameter in module.parameters(recurse=False))
    ]
    head = owners[0] if len(owners) == 1 else None
    if not isinstance(head, nn.Linear) or head.weight.shape != (2, encoder.out_dim) or head.bias is None:
        raise ConfigError(
            f"{type(model).__name__}: it is more than an encoder with a linear span head; {_INSTEAD}"
        )
    return encoder, head


def _require_equal(predictor: SpanPredictor, model: PreTrainedModel) -> None:
    """ConfigError where the model does something else with the same weights."""
    batch = sample(predictor)
    with torch.inference_mode():
        ours, (start, end) = predictor.model(batch), library_logits(model, batch)
    same = isinstance(ours, SpanLogits) and ours.pair is None and ours.verifier is None
    if same:
        context = batch.context
        pairs = (
            (ours.start[context], start[context]),
            (ours.end[context], end[context]),
            (ours.null, start[:, 0] + end[:, 0]),
        )
        same = all(torch.allclose(a, b, rtol=0, atol=LARGEST) for a, b in pairs)
    if not same:
        raise ConfigError(
            f"{type(predictor.model).__name__}: its scores are not those of an encoder with a linear span"
            f" head; {_INSTEAD}"
        )


def library_logits(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end logits (B, T) of all tokens, from the library's own class."""
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    output = model(input_ids=batch.ids, attention_mask=batch.mask.long(), **segments)
    return output.start_logits, output.end_logits

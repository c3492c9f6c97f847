"""Any ``AutoModelForQuestionAnswering`` checkpoint as a span model, in the library's own class.

Axes: ``B`` windows, ``T`` tokens of a window.
"""

from __future__ import annotations

import inspect
import math
import shlex
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    AutoModelForQuestionAnswering,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from qa_arch.errors import BRIEF, ConfigError, UnavailableError, first_line
from qa_arch.features.windows import has_segment_ids, position_of_cls
from qa_arch.models.checkpoint_files import CheckpointFiles
from qa_arch.models.store import open_tokenizer
from qa_arch.nn.encoder import WithBackbone, check_padding
from qa_arch.nn.encoder_factory import LOADING_ERRORS, checkpoint_config, load_whole, reason_of
from qa_arch.tensors import Batch, SpanLogits

BEYOND_TEXT = {"bbox", "visual_feats", "xpath_tags_seq"}
"""Inputs of models that also read the layout or the image of a page."""
REMEDY = "fetch the checkpoint again"
OTHER = "name a checkpoint of an encoder with a span head (AutoModelForQuestionAnswering)"


class SpanCheckpoint(WithBackbone):
    """``model`` scores start and end of every token; the null score is that of token ``null_at``, [CLS]."""

    def __init__(self, model: PreTrainedModel, null_at: int) -> None:
        super().__init__()
        self.model, self.null_at = model, null_at
        for child in model.children():
            if child is not self.backbone:
                child.register_forward_pre_hook(_in_fp32)

    @property
    def backbone(self) -> PreTrainedModel:
        """The model without its scoring layers."""
        return self.model.base_model

    def forward(self, batch: Batch) -> SpanLogits:
        inputs = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
        if batch.segments is not None:
            inputs["token_type_ids"] = batch.segments
        with self.own_precision(batch.ids.device):
            output = self.model(**inputs)
        start, end = output.start_logits.float(), output.end_logits.float()
        return SpanLogits(
            # The library scores every token; a span may lie in the passage alone, "no answer" at [CLS].
            start=start.masked_fill(~batch.context, -math.inf),
            end=end.masked_fill(~batch.context, -math.inf),
            null_start=start[:, self.null_at],
            null_end=end[:, self.null_at],
        )


def _in_fp32(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Pre-hook that casts the output of a half-precision backbone for the layers on top of it."""
    return tuple(
        value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in inputs
    )


class LoadedCheckpoint(NamedTuple):
    model: SpanCheckpoint
    tokenizer: PreTrainedTokenizerBase
    segments: bool
    """Whether the model takes segment ids."""


def load_span_checkpoint(files: CheckpointFiles) -> LoadedCheckpoint:
    """Load model (in fp32) and tokenizer of ``files``; nothing is downloaded, and no code of theirs is run.

    Raises ConfigError unless it is a span model for plain text, UnavailableError for unreadable files.
    """
    source = files.source
    try:
        config = checkpoint_config(files.folder)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"{source}: its config.json cannot be used ({reason_of(error)}); {REMEDY}, or name another"
        ) from error
    _check_kind(source, config)
    tokenizer = open_tokenizer(str(files.folder), setting=source)
    null_at = position_of_cls(source, tokenizer)
    model = SpanCheckpoint(_load(files, config), null_at)
    try:
        check_padding(model.backbone, source)
    except LOADING_ERRORS as error:
        raise UnavailableError(f"{source}: cannot be used ({first_line(error, BRIEF)}); {REMEDY}") from error
    # If the tokenizer writes no segment ids, or its config leaves them out, the model was trained without.
    stated = tokenizer.init_kwargs.get("model_input_names", ("token_type_ids",))
    segments = model.has_segments and "token_type_ids" in stated and has_segment_ids(tokenizer)
    return LoadedCheckpoint(model.eval(), tokenizer, segments)


def _check_kind(source: str, config: PretrainedConfig) -> None:
    """Raise ConfigError unless the model is an encoder that scores spans of plain text."""
    kind = config.model_type
    if type(config) not in MODEL_FOR_QUESTION_ANSWERING_MAPPING:
        raise ConfigError(f"{source}: transformers has no question-answering class for '{kind}'; {OTHER}")
    if config.is_encoder_decoder:
        raise ConfigError(f"{source}: '{kind}' is an encoder-decoder; {OTHER}")
    model_class: Any = MODEL_FOR_QUESTION_ANSWERING_MAPPING[type(config)]
    # Layouts and images are no part of a question about a text.
    if more := BEYOND_TEXT & inspect.signature(model_class.forward).parameters.keys():
        inputs = ", ".join(more)
        raise ConfigError(f"{source}: '{kind}' also reads {inputs}, not plain text alone; {OTHER}")
    if config.num_labels != 2:
        raise ConfigError(
            f"{source}: its head has {config.num_labels} outputs, a span head two (start, end); {OTHER}"
        )


def _load(files: CheckpointFiles, config: PretrainedConfig) -> PreTrainedModel:
    """Load the library's model in fp32.

    Raises ConfigError if its span head was never trained, UnavailableError for unreadable files.
    """
    source = files.source
    try:
        model, missing = load_whole(
            AutoModelForQuestionAnswering,
            files.folder,
            config=config,
            # A pickle could run code of its author.
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except LOADING_ERRORS as error:
        reason = first_line(error, BRIEF)
        raise UnavailableError(f"{source}: its weights cannot be read ({reason}); {REMEDY}") from error
    untrained = [key for key in missing if not key.startswith(f"{model.base_model_prefix}.")]  # of the head
    if untrained:
        raise ConfigError(
            f"{source}: has no trained span head (its weights lack {untrained[0]}); train it with qa-arch"
            f" train encoder.name={shlex.quote(str(source))}"
        )
    if missing:
        raise UnavailableError(
            f"{source}: its weights lack {len(missing)} of the tensors of '{config.model_type}', such as"
            f" {missing[0]}; {REMEDY}"
        )
    return model

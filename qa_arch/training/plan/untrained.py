"""Parts of a run with random weights: no pre-trained weights are loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config
from qa_arch.config.schema import Encoder as EncoderSettings
from qa_arch.errors import UnavailableError
from qa_arch.features import tokenizers
from qa_arch.features.glove import WordVectors
from qa_arch.features.vectors import assumed_vectors, passage_vectors
from qa_arch.models.build import build_model
from qa_arch.models.encoders import TOKENIZER_KINDS, make_encoder, make_features, make_tokenizer
from qa_arch.nn.losses import build_loss
from qa_arch.tasks import task_of
from qa_arch.tasks.span import SpanParts
from qa_arch.training.machine import resident_bytes
from qa_arch.types.text import Example, Gold, QuestionSet

STAND_IN = "stand-in"
WORD = "window"


@dataclass(frozen=True)
class UntrainedParts:
    """Parts of a run with an untrained model."""

    parts: SpanParts
    real: bool
    """Whether the questions are those of the config, not a stand-in."""
    process: int
    """Resident bytes of this process before the model was built."""
    notes: tuple[str, ...]
    """Assumptions about unavailable inputs."""


def build_untrained(config: Config, trusted: Sequence[str]) -> UntrainedParts:
    """Load the data, or a stand-in if the hub is unreachable, and build the model with random weights.

    If word vectors are used but no file is named, zeros replace as many vectors as a run would keep.
    """
    notes: list[str] = []
    task = task_of(config.model)
    try:
        sets = task.load_splits(config.data)
        tokenizer = make_tokenizer(config.encoder, sets["train"], config.distillation.teacher)
    except UnavailableError as error:
        notes.append(f"windows of {config.features.max_length} tokens replace the questions: {error}")
        sets = {"train": full_window(config.features.max_length)}
        tokenizer = _any_tokenizer(config.encoder, sets["train"])
    encoder = make_encoder(config, tokenizer, blank=True)
    tables = {
        split: make_features(config, questions, tokenizer, encoder) for split, questions in sets.items()
    }
    if config.glove.use and not config.glove.path:
        words = {word for table in tables.values() for word in table.vocabulary}
        vectors: WordVectors | None = assumed_vectors(config.glove, config.glove.keep + len(words))
        notes.append(f"glove.path is not given: {len(vectors.matrix):,} vectors are assumed")  # type: ignore[union-attr]
    else:
        vectors = passage_vectors(config, tables)
    if config.distillation.teacher:
        notes.append("the teacher is not counted: where it reads along, it needs memory and time of its own")
    process = resident_bytes()
    model = build_model(config.model, encoder, vectors, trusted)
    process -= sum(p.numel() * p.element_size() for p in encoder.parameters())
    loss = build_loss(config, trusted)
    parts = SpanParts(sets, tables, vectors, model, loss, tokenizer, encoder)
    return UntrainedParts(parts, real=sets["train"].name != STAND_IN, process=process, notes=tuple(notes))


def full_window(length: int) -> QuestionSet:
    """One question about a passage that fills windows of ``length`` tokens with any tokenizer."""
    example = Example("0", f"Which {WORD}?", " ".join([WORD] * length), STAND_IN, (Gold(WORD, 0),))
    return QuestionSet(STAND_IN, (example,), "2.0", hashlib.sha256(str(example).encode()).hexdigest())


def _any_tokenizer(settings: EncoderSettings, questions: QuestionSet) -> PreTrainedTokenizerBase:
    kind = TOKENIZER_KINDS.get(settings.family or "", "wordpiece")
    return tokenizers.build(kind, [questions.examples[0].context], 400)  # type: ignore[arg-type]

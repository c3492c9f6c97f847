"""Inputs of the benchmarks: SQuAD 2.0's dev set below ``QA_ARCH_DATA``, and the installed MiniLM."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.targets import DEV_FILE, PUBLISHED_FILE, real
from qa_arch.config.schema import EncoderSettings
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.features.windows import FeatureTable, prepare
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_configs import resolve
from qa_arch.nn.encoder_factory import build_encoder
from qa_arch.types import Example, QuestionSet

SEED = 13


@cache
def questions(quick: bool) -> QuestionSet:
    """The 11,873 questions of SQuAD 2.0 dev, or a sample of 300."""
    dev = open_passages(str(real(DEV_FILE)))
    return subset(dev, 300, SEED) if quick else dev


@cache
def published_predictions(quick: bool) -> dict[str, str]:
    """Answers to ``questions`` by BERT (single model), published with the leaderboard."""
    answers = json.loads(real(PUBLISHED_FILE).read_text(encoding="utf-8"))
    return {example.id: answers[example.id] for example in questions(quick).examples}


def spread(count: int, quick: bool) -> QuestionSet:
    """``count`` questions, evenly spaced over the set."""
    dev = questions(quick)
    examples = dev.examples[:: len(dev) // count][:count]
    return question_set(f"{dev.name}.{count}", examples, dev.protocol)


def hub_row(example: Example) -> dict[str, Any]:
    """A question as SQuAD's columns on the hub: texts and starts of the answers are parallel lists."""
    texts, starts = [gold.text for gold in example.answers], [gold.start for gold in example.answers]
    columns = {"id": example.id, "title": example.title, "context": example.context}
    return {**columns, "question": example.question, "answers": {"text": texts, "answer_start": starts}}


def encoder(**given: Any) -> Encoder:
    """The encoder with these settings and no others; nothing is frozen."""
    settings: dict[str, Any] = dict.fromkeys(field.name for field in fields(EncoderSettings))
    encoder = build_encoder(EncoderSettings(**settings | {"freeze": "none"} | given))
    assert isinstance(encoder, Encoder)
    return encoder


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's tokenizer, which is that of bert-base-uncased."""
    return AutoTokenizer.from_pretrained(resolve("minilm"))


@cache
def features(quick: bool) -> FeatureTable:
    """Windows of ``questions``: 384 tokens with stride 128."""
    return prepare(questions(quick), tokenizer(), segments=True)

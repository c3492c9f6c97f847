"""qa_arch: train, score, compare and serve extractive question-answering models on SQuAD 2.0."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # X as X: what checkers take for exported
    from qa_arch.api import train as train
    from qa_arch.qa.answers import Answer as Answer
    from qa_arch.qa.answers import Query as Query
    from qa_arch.qa.answers import Span as Span
    from qa_arch.qa.loading import load as load
    from qa_arch.qa.loading import load_predictor as load_predictor
    from qa_arch.qa.reader import Reader as Reader
    from qa_arch.results.notebooks import Run as Run
    from qa_arch.results.notebooks import effects as effects
    from qa_arch.results.notebooks import runs as runs
    from qa_arch.serving.pipeline import patch_transformers as patch_transformers
    from qa_arch.serving.pipeline import pipeline as pipeline

__version__ = "0.2.0"

# What the libraries would tell their makers, unless the environment decides: some read it when imported.
for _name, _value in {
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers: posts the name of an encoder with pickled weights
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_ERROR_REPORTING": "false",
}.items():
    os.environ.setdefault(_name, _value)

_LAZY = {
    "train": "qa_arch.api",
    "runs": "qa_arch.results.notebooks",
    "Run": "qa_arch.results.notebooks",
    "effects": "qa_arch.results.notebooks",
    "load": "qa_arch.qa.loading",
    "load_predictor": "qa_arch.qa.loading",
    "Reader": "qa_arch.qa.reader",
    "Answer": "qa_arch.qa.answers",
    "Query": "qa_arch.qa.answers",
    "Span": "qa_arch.qa.answers",
    "pipeline": "qa_arch.serving.pipeline",
    "patch_transformers": "qa_arch.serving.pipeline",
}
"""Name -> module imported on first use, so that ``import qa_arch`` does not load torch."""
__all__ = ["__version__", *_LAZY]


if not TYPE_CHECKING:  # type checkers see only the names above

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'qa_arch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""qa_arch: train, score, compare and serve extractive question-answering models on SQuAD 2.0."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["Answer", "Query", "Reader", "Span", "__version__", "load"]

_LAZY = {
    "load": "qa_arch.serving.reader",
    "Reader": "qa_arch.serving.reader",
    "Answer": "qa_arch.serving.query",
    "Query": "qa_arch.serving.query",
    "Span": "qa_arch.serving.query",
}
"""Name -> module, imported on first use: importing the package loads no torch."""


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'qa_arch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""qa_arch: train, score, compare and serve extractive question-answering models on SQuAD 2.0."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str):
    """``qa_arch.load`` on first use, so that importing the package loads no torch."""
    if name == "load":
        from qa_arch.tasks.loading import load

        return load
    raise AttributeError(f"module 'qa_arch' has no attribute {name!r}")

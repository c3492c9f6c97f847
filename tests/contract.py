"""What the contract tests of all tasks share: every case built once, vectors of known words, and the checks
that do not depend on what a model says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from qa_arch.tasks import task_of


class Fleet(dict):
    """Every case, built on first use and always from the same random state."""

    def __init__(self, build: Callable[[str], Any]) -> None:
        super().__init__()
        self.build = build

    def __missing__(self, case: str) -> Any:
        torch.manual_seed(0)
        self[case] = self.build(case)
        return self[case]


def write_vectors(path: Path, texts: Iterable[str]) -> None:
    """Word vectors of width 5 for every word of ``texts``, in GloVe's form."""
    words = sorted({word for text in texts for word in text.split()})
    rows = np.random.default_rng(0).normal(size=(len(words), 5)).round(3)
    path.write_text(
        "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows, strict=True))
    )


def reads(model: nn.Module, batch: Any) -> Any:
    """What ``model`` says of ``batch``, without dropout and gradients."""
    with torch.inference_mode():
        return model.eval()(batch)


def outputs(contender: Any, split: str) -> Any:
    """The outputs of a contender's predictor for one of its splits."""
    predictor = task_of(contender.config.model).predictor(contender.config, contender.parts)
    return predictor.read(contender.parts.sets[split], table=contender.parts.tables[split], batch_size=3)


def check_gradients(model: nn.Module, loss: torch.Tensor, may_be_zero: tuple[str, ...] = ()) -> None:
    """A finite gradient at every trainable parameter; zero only where the name ends so."""
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.any() or name.endswith(may_be_zero), name


@contextmanager
def learned_by_heart(
    model: nn.Module, loss: Callable[[], torch.Tensor], *, steps: int, lr: float
) -> Iterator[None]:
    """``model`` after ``steps`` of AdamW on ``loss``; its weights are put back at the end."""
    selected = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    try:
        for _ in range(steps):
            model.train()
            optimizer.zero_grad()
            loss().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        yield
    finally:
        model.load_state_dict(selected)

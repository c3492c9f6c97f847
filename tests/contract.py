"""What the contract tests of all tasks share: every case built once, checks by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Fleet(dict):
    """Every case, built on first use and always from the same random state."""

    def __init__(self, build: Callable[[str], Any]) -> None:
        super().__init__()
        self.build = build

    def __missing__(self, case: str) -> Any:
        torch.manual_seed(0)
        self[case] = self.build(case)
        return self[case]


def title(check: Callable[..., None]) -> str:
    """The name of a check as a test's."""
    return check.__name__

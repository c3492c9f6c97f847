"""The span task under another name, with its own loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qa_arch.nn.losses import SpanLoss
from qa_arch.spans.task import SpanTask


class FirstSpanTask(SpanTask):
    name = "first_span"


@dataclass(frozen=True)
class FirstSpanLoss(SpanLoss):
    """The span loss, registered for ``first_span``."""

    tasks: ClassVar = ("first_span",)


TASK = FirstSpanTask()

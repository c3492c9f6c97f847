"""The answer as a sequence of passage words, chosen step by step until the model stops.

Wang & Jiang 2016, section 3.3: the first of their two answer pointers. The words need not stand side by side.
"""

from __future__ import annotations

from qa_arch.tasks.span import SpanTask
from qa_arch.types.tensors import StepLogits


class SequenceTask(SpanTask):
    """Like the span task, but decoded greedily: ``decode.search`` has no effect."""

    name = "sequence"
    output = StepLogits
    has_search = False


TASK = SequenceTask()

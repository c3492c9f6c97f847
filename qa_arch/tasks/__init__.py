"""The tasks, one module each; read ``span`` first.

A run takes a question through these steps, most of them by methods of its task::

    raw data -> Example           Task.open, Task.load_splits
    -> Feature                    Task.assemble, Predictor.table
    -> Batch                      Task.batches
    -> logits                     the model
    -> ranked answers             Task.collector, Predictor.read
    -> Scores                     Task.points
    -> run.json                   training.run, evaluation.trained_runs
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from qa_arch.config.schema import TASKS
from qa_arch.errors import ConfigError
from qa_arch.tasks.base import Task


def task_named(name: Any) -> Task:
    """The task of that name; ConfigError lists those that there are."""
    if name not in TASKS:
        raise ConfigError(f"model.task: {name!r} is not a choice (known: {', '.join(TASKS)})")
    return importlib.import_module(f"qa_arch.tasks.{name}").TASK


def task_of(model: Mapping[str, Any]) -> Task:
    """The task of a config's ``model`` section."""
    return task_named(model.get("task", "span"))

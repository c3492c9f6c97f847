"""Loggers that note their calls in a list; a config may name them with ``--trust stub_loggers`` only."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from pytorch_lightning.loggers import MLFlowLogger
from pytorch_lightning.loggers.logger import Logger

calls: list[tuple[str, Any]] = []


class Recorder(Logger):
    """Notes every call, draws random numbers in each, and fails in those that ``fails`` names."""

    name, version = "recorder", "0"

    def __init__(self, folder: str = "", note: str = "", fails: list[str] | None = None) -> None:
        super().__init__()
        self.fails = fails or []
        self._take("start", {"folder": folder, "note": note})

    def log_metrics(self, metrics, step=None):
        self._take("log_metrics", (step, metrics))

    def log_hyperparams(self, params):
        self._take("log_hyperparams", params)

    def save(self):
        self._take("save", None)

    def finalize(self, status):
        self._take("finalize", status)

    def _take(self, call: str, value: Any) -> None:
        random.random(), np.random.rand(), torch.rand(1)
        calls.append((call, value))
        if call in self.fails:
            raise ConnectionError("the service is gone")


class NoMLFlow(MLFlowLogger):
    """Lightning's MLflow logger on a client that notes how the run ended."""

    def __init__(self) -> None:
        self._initialized, self._run_id, self._checkpoint_callback = True, "1", None
        self._mlflow_client = SimpleNamespace(
            get_run=lambda run_id: run_id,
            set_terminated=lambda run_id, status: calls.append(("set_terminated", status)),
        )

    @property
    def experiment(self):
        return self._mlflow_client

    def log_metrics(self, metrics, step=None):
        calls.append(("log_metrics", (step, metrics)))

    def log_hyperparams(self, params):
        calls.append(("log_hyperparams", params))

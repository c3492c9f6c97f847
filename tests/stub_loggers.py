"""Loggers and a callback that record their calls; naming them in a config needs ``--trust stub_loggers``."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback
from pytorch_lightning.loggers import MLFlowLogger
from pytorch_lightning.loggers.logger import Logger

calls: list[tuple[str, Any]] = []


class Recorder(Logger):
    """Records every call, draws random numbers in each, and raises in those listed in ``fails``."""

    name, version = "recorder", "0"

    def __init__(self, folder: str = "", note: str = "", fails: list[str] | None = None) -> None:
        super().__init__()
        self.fails = fails or []
        self._record("start", {"folder": folder, "note": note})

    def log_metrics(self, metrics, step=None):
        self._record("log_metrics", (step, metrics))

    def log_hyperparams(self, params):
        self._record("log_hyperparams", params)

    def save(self):
        self._record("save", None)

    def finalize(self, status):
        self._record("finalize", status)

    def _record(self, call: str, value: Any) -> None:
        random.random(), np.random.rand(), torch.rand(1)
        calls.append((call, value))
        if call in self.fails:
            raise ConnectionError("the service is gone")


class Counter(Callback):
    """A callback that records its epochs."""

    def on_train_epoch_end(self, trainer, pl_module):
        calls.append(("epoch", trainer.current_epoch))


class NoMLFlow(MLFlowLogger):
    """Lightning's MLflow logger with a stub client that records how the run started and ended."""

    def __init__(self, tracking_uri: str | None = None, run_id: str | None = None) -> None:
        calls.append(("start", run_id))
        self._initialized, self._run_id, self._checkpoint_callback = True, run_id or "new", None
        self._mlflow_client = SimpleNamespace(
            get_run=lambda run_id: run_id,
            update_run=lambda run_id, status: calls.append(("update_run", status)),
            set_terminated=lambda run_id, status: calls.append(("set_terminated", status)),
        )

    @property
    def experiment(self):
        return self._mlflow_client

    def log_metrics(self, metrics, step=None):
        calls.append(("log_metrics", (step, metrics)))

    def log_hyperparams(self, params):
        calls.append(("log_hyperparams", params))

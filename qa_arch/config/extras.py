"""Optional packages: which extra installs them, and whether they are installed, without importing them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from qa_arch.config.schema import Config
from qa_arch.errors import UnavailableError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "8bit": ("bitsandbytes",),
    "compress": ("torch_pruning",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "plots": ("matplotlib",),
    "ray": ("ray",),
    "report": ("plotly",),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "batched"),
    "slurm": ("submitit",),
    "tensorboard": ("tensorboard",),
}
"""Extra of pyproject.toml -> modules that it needs."""
LOGGERS: Mapping[str, str] = {"TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}
"""Logger class -> the extra that it needs."""


def require(extra: str, what: str, instead: str = "") -> None:
    """Raise UnavailableError if a package of ``extra`` is missing.

    ``what`` is the setting or option that needs it; ``instead`` ends the message with an alternative.
    """
    for module in EXTRAS[extra]:
        if importlib.util.find_spec(module) is None:
            install = f"pip install 'qa-arch[{extra}]'"
            raise UnavailableError(f"{what}: {module} is not installed; {install}{instead}")


def require_logger(name: str) -> None:
    """``require`` the extra of the logger class ``name``, if it is in ``LOGGERS``."""
    if name in LOGGERS:
        require(LOGGERS[name], name, ", or logger=none")


def require_extras(config: Config) -> None:
    """``require`` the extras that the settings need."""
    require_logger(str(config.logger["_target_"]).rpartition(".")[2])
    if config.trainer.optimizer_bits == 8:
        require("8bit", "trainer.optimizer_bits", ", or use 32")

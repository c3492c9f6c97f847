"""Configs of older records, brought to the present schema in one place."""

from __future__ import annotations

from typing import Any


def upgrade(raw: Any) -> Any:
    """``raw`` with its ``logger`` section as it is now: a ``_target_`` and the arguments of that class.

    Records of schema 1 have a service's name, ``mode``, ``project`` and ``tags``. Whatever else is wrong is
    left to the reader of the schema.
    """
    logger = raw.get("logger") if isinstance(raw, dict) else None
    if not isinstance(logger, dict) or "_target_" in logger or "name" not in logger:
        return raw
    return {**raw, "logger": _LOGGERS.get(logger["name"], _wandb)(logger)}


def _none(_: dict[str, Any]) -> dict[str, Any]:
    return {"_target_": None}


def _tensorboard(_: dict[str, Any]) -> dict[str, Any]:
    return {
        "_target_": "pytorch_lightning.loggers.TensorBoardLogger",
        "save_dir": "{folder}",
        "name": "tensorboard",
        "version": "",
        "default_hp_metric": False,
    }


def _wandb(logger: dict[str, Any]) -> dict[str, Any]:
    target = "qa_arch.training.loggers.WandbLogger"
    return {**logger, "_target_": target, "name": "{name}", "group": "{group}", "save_dir": "{folder}"}


_LOGGERS = {"none": _none, "tensorboard": _tensorboard}

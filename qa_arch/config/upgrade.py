"""Configs of earlier versions, in the words of this one: the only place that knows the old settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BERT_MATCH = "qa_arch.models.bert_match.BertMatch"
HEADS: Mapping[str, dict[str, Any]] = {
    "boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": False},
    "bi_boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": True},
    "linear": {"_target_": "qa_arch.nn.heads.LinearHead"},
}
"""What ``model.pointer`` chose, before ``model.head`` did."""
TENSORBOARD = {
    "_target_": "pytorch_lightning.loggers.TensorBoardLogger",
    "save_dir": "{folder}",
    "name": "tensorboard",
    "version": "",
    "default_hp_metric": False,
}
WANDB = {
    "_target_": "qa_arch.training.loggers.WandbLogger",
    "name": "{name}",
    "group": "{group}",
    "save_dir": "{folder}",
}
"""What ``logger.name`` chose, before ``logger._target_`` did."""
SPAN_HEURISTICS = "baselines.heuristics."
RANKERS: Mapping[str, dict[str, dict[str, str]]] = {
    "selection": {
        "random-order": {"_target_": "baselines.rankers.RandomOrder"},
        "word-overlap": {"_target_": "baselines.rankers.WordOverlap"},
    },
    "classification": {
        "random-order": {"_target_": "baselines.rankers.RandomOrder"},
        "rules": {"_target_": "baselines.rankers.ClassRules"},
    },
}
"""By task: the rows that stood beside these models, whatever ``references`` named."""


def upgrade(config: Any) -> Any:
    """``config`` with replaced settings in their present form; what is of today, and every fault, stays."""
    if not isinstance(config, Mapping):
        return config
    forms = {"model": _with_head, "logger": _with_target}
    sections = {key: form(config[key]) for key, form in forms.items() if isinstance(config.get(key), Mapping)}
    if (rankers := _rankers(config)) is not None:
        sections["references"] = rankers
    return (
        config if all(config.get(key) is value for key, value in sections.items()) else {**config, **sections}
    )


def _with_head(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """``pointer`` and ``shortcut`` of the proposed model as a ``head``; what ``head`` says itself stands."""
    pointer = str(model.get("pointer"))
    if model.get("_target_") != BERT_MATCH or pointer not in HEADS:
        return model
    head = dict(HEADS[pointer])
    if pointer != "linear":
        head |= {"hidden": model.get("hidden", 150), "shortcut": model.get("shortcut", False)}
    elif model.get("shortcut"):
        head["shortcut"] = True  # a linear head has none, and is refused with it
    given = model.get("head") or {}
    rest = {key: value for key, value in model.items() if key not in ("pointer", "shortcut")}
    return {**rest, "head": given if "_target_" in given else {**head, **given}}


def _rankers(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference rows of a task that ranks, where the config still names those of spans."""
    model, references = config.get("model"), config.get("references")
    if not isinstance(model, Mapping) or not isinstance(references, Mapping) or not references:
        return None
    targets = [
        str(section.get("_target_")) for section in references.values() if isinstance(section, Mapping)
    ]
    of_spans = all(target.startswith(SPAN_HEURISTICS) for target in targets)
    return RANKERS.get(str(model.get("task"))) if of_spans else None


def _with_target(logger: Mapping[str, Any]) -> Mapping[str, Any]:
    """A service that was chosen by ``name``, as a ``_target_`` and the arguments of its class."""
    if "_target_" in logger or "name" not in logger:
        return logger
    if logger["name"] == "none":
        return {"_target_": None}
    if logger["name"] == "tensorboard":
        return dict(TENSORBOARD)
    return {**logger, **WANDB}

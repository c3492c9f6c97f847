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


def upgraded(config: Any) -> Any:
    """``config`` with the settings that were replaced in their present form; all else, and faults, stay."""
    if not isinstance(config, Mapping) or not isinstance(config.get("model"), Mapping):
        return config
    return {**config, "model": _with_head(config["model"])}


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

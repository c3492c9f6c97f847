"""Settings of a downloaded checkpoint: how texts are cut for it and its spans decoded.

How it was trained is not known, so its record has no such sections; ``run_config`` fills them with the
defaults of ``conf/``, which nothing that reads with a finished model looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qa_arch.config.find import conf_folder
from qa_arch.config.schema import Config, validate
from qa_arch.errors import ConfigError

CHECKPOINT = "qa_arch.models.span_checkpoint.SpanCheckpoint"
"""``model._target_`` of a checkpoint that was not trained here."""
CHECKPOINTS = "checkpoints"
"""Their experiment."""
SETTABLE = ("features", "decode")
"""The sections that its user may change; all others say what it is."""
Settings = Mapping[str, Mapping[str, Any]]
"""Section -> setting -> value."""


def is_checkpoint(config: Mapping[str, Any]) -> bool:
    """Whether a record's config is that of a downloaded checkpoint."""
    return config.get("model", {}).get("_target_") == CHECKPOINT


def checkpoint_settings(
    source: str,
    *,
    name: str,
    revision: str,
    precision: str,
    max_tokens: int | None,
    changes: Settings | None = None,
) -> dict[str, Any]:
    """The config of the checkpoint ``source``, read in ``precision``.

    Its windows and answers are SQuAD's conventions (384 tokens that overlap by 128, questions of 64, answers
    of 30), with ``changes`` in their place.

    Where the model reads at most ``max_tokens``, windows that nobody asked for shrink in proportion. Raises
    ConfigError for a change of another section, and for windows that are longer than the model reads.
    """
    changes = changes or {}
    for section in changes:
        if section not in SETTABLE:
            raise ConfigError(
                f"{section}: says what the checkpoint is, and cannot be set; {' and '.join(SETTABLE)} can"
            )
    features = _within(_choice("features/windows"), max_tokens) | dict(changes.get("features", {}))
    settings = {
        "name": CHECKPOINTS,
        "seed": 0,
        "data": {
            "name": "unknown",
            "train": [],
            "dev": None,
            "calibration": None,
            "hold_out_articles": 0,
            "hold_out_share": 0.0,
            "split_seed": 0,
            "train_questions": 0,
            "on_error": "raise",
            "open_dev": True,
        },
        "features": features,
        "encoder": {"name": source, "init": "pretrained"},
        "model": {
            "_target_": CHECKPOINT,
            "task": "span",
            "name": name,
            "revision": revision,
            "precision": precision,
        },
        "decode": _choice("decode/band") | dict(changes.get("decode", {})),
        "references": _choice("references/spans"),
    }
    longest = run_config(settings).features.max_length
    if max_tokens is not None and longest > max_tokens:
        raise ConfigError(
            f"features.max_length: {longest} is more than the {max_tokens} tokens that {source} can read"
        )
    return settings


def run_config(recorded: Mapping[str, Any]) -> Config:
    """The typed config of a record, ``validate``; that of a checkpoint is completed first."""
    if not is_checkpoint(recorded):
        return validate(recorded)
    defaults = {
        "runs_dir": "runs",
        "glove": _choice("glove/none"),
        "optim": _choice("optim/adamw"),
        "trainer": _choice("trainer/auto"),
        "logger": _choice("logger/none"),
    }
    encoder = recorded.get("encoder")
    if isinstance(encoder, Mapping):
        defaults["encoder"] = _choice("encoder/_base") | dict(encoder)
    return validate({**recorded, **defaults})


def linear_head_config(recorded: Mapping[str, Any]) -> Config:
    """The config of a checkpoint's record, its model given as our encoder with a linear span head."""
    linear = {key: value for key, value in _choice("model/bert").items() if key != "defaults"}
    config = run_config(recorded)
    return replace(config, model=linear | {"name": config.model["name"]})


def _choice(name: str) -> dict[str, Any]:
    """A choice of a config group that is made of plain values."""
    import yaml  # type: ignore[import-untyped]  # slow for what only asks whether a record is a checkpoint's

    return yaml.safe_load((conf_folder() / f"{name}.yaml").read_text(encoding="utf-8"))


def _within(windows: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
    """The settings of windows, in proportion to ``max_tokens`` where that is less."""
    longest = windows["max_length"]
    if max_tokens is None or max_tokens >= longest:
        return windows
    shrunk = {key: windows[key] * max_tokens // longest for key in ("max_length", "stride", "max_question")}
    return windows | shrunk

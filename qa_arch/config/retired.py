"""Configs of earlier versions in today's settings: the only place that knows the old ones.

Three tables say what a deletion leaves behind, so that every record stays readable and keeps its hash:
``RETIRED`` settings, classes that ``MOVED``, and settings that were replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qa_arch.config.find import choice
from qa_arch.errors import ConfigError

RETIRED: Mapping[str, Any] = {
    "data.made_up_share": 0.0,
    "data.made_up_kinds": None,
    "distillation.hidden_states": 0.0,
    "distillation.relations": 0.0,
    "distillation.outcomes": "boundaries",
    "distillation.hidden_distance": "mse",
    "distillation.relation_pairs": None,
    "distillation.relation_heads": None,
    "distillation.relation_layer": None,
    "pretraining.permute_sentences": True,
    "trainer.token_budget": None,
}
"""Deleted setting -> the value it always had. A config may have it at that value, which has no effect; the
hash of a run counts it wherever its section is there."""
RETIRED_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "qa_arch.extras.selection.models.QaLstm": {"k": 1, "type_dim": 0},
}
"""Class of a model -> its deleted arguments, as ``RETIRED`` has settings."""
MOVED: Mapping[str, str] = {
    "baselines.qa_lstm.QaLstm": "qa_arch.extras.selection.models.QaLstm",
    "baselines.question_types.QuestionTypes": "qa_arch.extras.selection.models.QuestionTypes",
    "baselines.rankers.ClassRules": "qa_arch.extras.selection.rankers.ClassRules",
    "baselines.rankers.RandomOrder": "qa_arch.extras.selection.rankers.RandomOrder",
    "baselines.rankers.WordOverlap": "qa_arch.extras.selection.rankers.WordOverlap",
    "qa_arch.nn.losses.ChoiceLoss": "qa_arch.extras.selection.models.ChoiceLoss",
    "qa_arch.nn.losses.HingeLoss": "qa_arch.extras.selection.models.HingeLoss",
    "qa_arch.models.language_models.CausalLM": "qa_arch.extras.pretraining.models.CausalLM",
    "qa_arch.models.language_models.MaskedLM": "qa_arch.extras.pretraining.models.MaskedLM",
    "qa_arch.nn.language_loss.TokenLoss": "qa_arch.extras.pretraining.models.TokenLoss",
}
"""The first dotted name of a class that was moved -> its name today. Hashes count the first one."""

BERT_MATCH = "qa_arch.models.bert_match.BertMatch"
HEADS: Mapping[str, dict[str, Any]] = {
    "boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": False},
    "bi_boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": True},
    "linear": {"_target_": "qa_arch.nn.heads.LinearHead"},
}
"""The heads that ``model.pointer`` chose, before ``model.head`` did."""
LOGGERS = ("none", "wandb", "tensorboard")
"""The loggers that ``logger.name`` chose, before ``logger._target_`` did: choices of ``conf/logger`` now."""
SPAN_HEURISTICS = "baselines.heuristics."
RANKERS: Mapping[str, dict[str, dict[str, str]]] = {
    "selection": {
        "random-order": {"_target_": "qa_arch.extras.selection.rankers.RandomOrder"},
        "word-overlap": {"_target_": "qa_arch.extras.selection.rankers.WordOverlap"},
    },
    "classification": {
        "random-order": {"_target_": "qa_arch.extras.selection.rankers.RandomOrder"},
        "rules": {"_target_": "qa_arch.extras.selection.rankers.ClassRules"},
    },
}
"""By task: the reference rows that these models always had, whatever ``references`` named."""


def upgrade(config: Any) -> Any:
    """``config`` in today's settings; what is of today, and every other fault, stays.

    Raises ConfigError for a retired setting at another value than it always had.
    """
    if not isinstance(config, Mapping):
        return config
    config = _without_retired(renamed(config, MOVED))
    forms = {"model": _with_head, "logger": _with_target}
    sections = {key: form(config[key]) for key, form in forms.items() if isinstance(config.get(key), Mapping)}
    if (rankers := _rankers(config)) is not None:
        sections["references"] = rankers
    return {**config, **sections}


def with_retired(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` as it was recorded before anything was retired or moved; hashes are computed from this."""
    whole = renamed(config, {today: first for first, today in MOVED.items()})
    for setting, value in _retired_of(config).items():
        section, _, key = setting.partition(".")
        if isinstance(whole.get(section), Mapping):
            whole[section] = {key: value, **whole[section]}
    return whole


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """``value`` with each ``_target_`` in it that ``names`` has under its other name."""
    if not isinstance(value, Mapping):
        return value
    named = {key: renamed(inner, names) for key, inner in value.items()}
    return named | {"_target_": names[target]} if (target := str(named.get("_target_"))) in names else named


def _retired_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """``RETIRED``, and the ``RETIRED_ARGUMENTS`` of the config's model."""
    model = config.get("model")
    target = str(model.get("_target_")) if isinstance(model, Mapping) else ""
    arguments = RETIRED_ARGUMENTS.get(MOVED.get(target, target), {})
    return {**RETIRED, **{f"model.{name}": value for name, value in arguments.items()}}


def _without_retired(config: dict[str, Any]) -> dict[str, Any]:
    for setting, value in _retired_of(config).items():
        name, _, key = setting.partition(".")
        section = config.get(name)
        if not isinstance(section, Mapping) or key not in section:
            continue
        if section[key] != value:
            raise ConfigError(
                f"{setting}: {section[key]!r} is no longer possible; the setting was removed, leave it out"
            )
        config = {**config, name: {own: inner for own, inner in section.items() if own != key}}
    return config


def _with_head(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """``pointer`` and ``shortcut`` of the proposed model as a ``head``; its own settings take precedence."""
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
    """A service that was chosen by ``name`` as today's choice of that name, with the settings that it had."""
    if "_target_" in logger or logger.get("name") not in LOGGERS:
        return logger
    today = choice(f"logger/{logger['name']}")
    return {**today, **{key: logger[key] for key in logger if key in today and key != "name"}}

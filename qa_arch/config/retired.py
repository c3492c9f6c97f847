"""Conversion of configs from earlier versions; no other module knows their settings.

Tables of ``RETIRED`` settings, ``MOVED`` classes and replaced settings keep every record readable and its
hash unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qa_arch.config.find import choice
from qa_arch.errors import ConfigError

RETIRED: Mapping[str, Any] = {
    "data.made_up_share": 0.0,
    "data.made_up_kinds": None,
    "decode.null_odds": "best",
    "distillation.hidden_states": 0.0,
    "distillation.relations": 0.0,
    "distillation.outcomes": "boundaries",
    "distillation.hidden_distance": "mse",
    "distillation.relation_pairs": None,
    "distillation.relation_heads": None,
    "distillation.relation_layer": None,
    "optim.layer_decay": 1.0,
    "pretraining.permute_sentences": True,
    "pretraining.span_length": 3.0,
    "trainer.token_budget": None,
}
"""Deleted setting -> the value it always had. A config may still contain it at that value, without effect;
the hash of a run includes it if its section exists."""
RETIRED_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "qa_arch.extras.selection.models.QaLstm": {"k": 1, "type_dim": 0},
}
"""Class of a model -> its deleted arguments, in the form of ``RETIRED``."""
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
"""Original dotted name of a moved class -> its current name. Hashes use the original."""
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "pretraining": {
        "mask_share": 0.15,
        "masked": 0.8,
        "replaced": 0.1,
        "whole_words": False,
        "span_length": 3.0,
        "permute_sentences": True,
    },
}
"""Section of an extra -> the values at which hashes omit it."""
HASHED: Mapping[str, Mapping[str, Any]] = {
    "selection": {
        "margin": 0.2,
        "negatives": 50,
        "max_question": 200,
        "max_answer": 200,
        "unknown_buckets": 100,
        "types": None,
    },
}
"""Section of an extra -> the values that hashes include where a config does not state it."""
READ_BY: Mapping[str, tuple[str, ...]] = {
    "selection": ("selection", "classification"),
    "pretraining": ("masked_lm",),
}
"""Section of an extra, which every config once had -> the tasks of the models that read it."""

BERT_MATCH = "qa_arch.models.bert_match.BertMatch"
HEADS: Mapping[str, dict[str, Any]] = {
    "boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": False},
    "bi_boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": True},
    "linear": {"_target_": "qa_arch.nn.heads.LinearHead"},
}
"""Heads that ``model.pointer`` selected before ``model.head`` existed."""
LOGGERS = ("none", "wandb", "tensorboard")
"""Loggers that ``logger.name`` selected before ``logger._target_`` did; now choices of ``conf/logger``."""
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
"""Task -> reference rows that its models always had, whatever ``references`` contained."""


def upgrade(config: Any) -> Any:
    """Convert ``config`` to current settings; everything else, including any error, is left unchanged.

    Raises ConfigError for a retired setting with another value than it always had.
    """
    if not isinstance(config, Mapping):
        return config
    config = _without_unread(_without_retired(renamed(config, MOVED)))
    upgrades = {"model": _with_head, "logger": _with_target}
    sections = {
        key: upgrade_section(config[key])
        for key, upgrade_section in upgrades.items()
        if isinstance(config.get(key), Mapping)
    }
    if (rankers := _rankers(config)) is not None:
        sections["references"] = rankers
    return {**config, **sections}


def with_retired(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` as recorded before anything was retired or moved; hashes are computed from this."""
    original = renamed(config, {current: first for first, current in MOVED.items()})
    original |= {name: values for name, values in HASHED.items() if original.get(name, 0) is None}
    for setting, value in _retired_settings(config).items():
        section, _, key = setting.partition(".")
        if isinstance(original.get(section), Mapping):
            original[section] = {key: value, **original[section]}
    return original


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Replace every ``_target_`` in ``value``, at any depth, by its new name in ``names``."""
    if not isinstance(value, Mapping):
        return value
    section = {key: renamed(inner, names) for key, inner in value.items()}
    target = str(section.get("_target_"))
    return section | {"_target_": names[target]} if target in names else section


def _retired_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """``RETIRED``, and the ``RETIRED_ARGUMENTS`` of the config's model."""
    model = config.get("model")
    target = str(model.get("_target_")) if isinstance(model, Mapping) else ""
    arguments = RETIRED_ARGUMENTS.get(MOVED.get(target, target), {})
    return {**RETIRED, **{f"model.{name}": value for name, value in arguments.items()}}


def _without_retired(config: dict[str, Any]) -> dict[str, Any]:
    for setting, value in _retired_settings(config).items():
        name, _, key = setting.partition(".")
        section = config.get(name)
        if not isinstance(section, Mapping) or key not in section:
            continue
        if section[key] != value:
            raise ConfigError(
                f"{setting}: {section[key]!r} is no longer supported; the setting was removed, leave it out"
            )
        config = {**config, name: {own: inner for own, inner in section.items() if own != key}}
    return config


def _without_unread(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out the sections that the config's model does not read, and a setting that never had a value."""
    model = config.get("model")
    task = model.get("task") if isinstance(model, Mapping) else None
    config = {key: value for key, value in config.items() if task in READ_BY.get(key, (task,))}
    section = config.get("selection")
    if isinstance(section, Mapping) and section.get("types", 0) is None:
        config["selection"] = {key: value for key, value in section.items() if key != "types"}
    return config


def _with_head(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert ``pointer`` and ``shortcut`` of the proposed model to a ``head``, unless set explicitly."""
    pointer = str(model.get("pointer"))
    if model.get("_target_") != BERT_MATCH or pointer not in HEADS:
        return model
    head = dict(HEADS[pointer])
    if pointer != "linear":
        head |= {"hidden": model.get("hidden", 150), "shortcut": model.get("shortcut", False)}
    elif model.get("shortcut"):
        head["shortcut"] = True  # rejected later, as a linear head has none
    explicit = model.get("head") or {}
    rest = {key: value for key, value in model.items() if key not in ("pointer", "shortcut")}
    return {**rest, "head": explicit if "_target_" in explicit else {**head, **explicit}}


def _rankers(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Reference rows of a ranking task whose config still lists those of spans."""
    model, references = config.get("model"), config.get("references")
    if not isinstance(model, Mapping) or not isinstance(references, Mapping) or not references:
        return None
    targets = [
        str(section.get("_target_")) for section in references.values() if isinstance(section, Mapping)
    ]
    are_for_spans = all(target.startswith(SPAN_HEURISTICS) for target in targets)
    return RANKERS.get(str(model.get("task"))) if are_for_spans else None


def _with_target(logger: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a logger selected by ``name`` to the current choice of that name, with its own settings."""
    if "_target_" in logger or logger.get("name") not in LOGGERS:
        return logger
    current = choice(f"logger/{logger['name']}")
    return {**current, **{key: logger[key] for key in logger if key in current and key != "name"}}

"""Rewrite run records of earlier schemas in schema 4, and the names of moved classes in all records.

    python experiments/migrate_records.py [FOLDER ...]      # default: experiments/

Migrates every ``run.json`` at or below the folders with its question rows and the ``config.yaml`` beside it;
scores, thresholds and null odds stay as they are. Hashes are stored as the code of schema 2 computes them,
and never computed again: a record of schema 3 keeps its own. Schema 4 has other names of operating points,
of scores of an epoch and of a value of ``trainer.select``: ``RENAMED``. After a class was moved or a setting
removed, extend ``MOVED`` or ``RETIRED`` and run this again; a second run changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qa_arch.config.compose import to_yaml
from qa_arch.data.sources import local, open_passages
from qa_arch.errors import DataError, QaArchError, RunError
from qa_arch.files import file_hash, read_json, read_yaml, write_atomic, write_json
from qa_arch.metrics.squad import score_questions
from qa_arch.records import (
    DEV,
    QUESTIONS,
    RECORD,
    SCHEMA,
    parse_record,
    questions_folder,
    read_questions,
    write_questions,
)
from qa_arch.training.jobs import CONFIG

EXPERIMENTS = Path(__file__).resolve().parent

# What schema 2 knew: hashes are computed from these, so nothing here may change -----------------------

RETIRED_BEFORE_3: Mapping[str, Any] = {
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
    "trainer.token_budget": None,
}
"""Deleted setting -> the value it always had; the hash includes it if its section exists."""
QA_LSTM_BEFORE_3 = {"k": 1, "type_dim": 0}
"""Deleted arguments of the model ``QaLstm``, in the same form."""
MOVED_BEFORE_3: Mapping[str, str] = {
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
"""Original name of a moved class -> its name in schema 2. Hashes use the original."""
NEUTRAL = frozenset(
    (
        *("runs_dir", "name", "logger", "features.cache_dir", "model.kernel"),
        *("trainer.workers", "trainer.progress", "trainer.checkpoint_minutes"),
        *("trainer.eval_batch_size", "trainer.log_every"),
    )
)
"""Settings that no hash includes, as they change no result."""
PLACES = ("data.train", "data.calibration", "data.dev", "glove.path", "distillation.teacher")
"""Settings that a hash with the content of the sets does not include."""
OPTIONAL: Mapping[str, Any] = {
    "loss": None,
    "compression": None,
    "calibration": {"prior": None, "fit": "exact"},
    "calibration.fit": "exact",
    "pretraining": {
        **{"mask_share": 0.15, "masked": 0.8, "replaced": 0.1, "whole_words": False, "span_length": 3.0},
        "permute_sentences": True,
    },
    "data.made_up_share": 0.0,
    "data.made_up_kinds": None,
    "decode.null_odds": "best",
    "encoder.positions": None,
    "encoder.pre_norm": None,
    "encoder.tokenizer": None,
    "trainer.global_batch": None,
    "distillation": {
        **{"teacher": None, "soft_targets": 0.0, "temperature": 1.0, "labels": 1.0, "layers": "none"},
        **{"hidden_states": 0.0, "hidden_distance": "mse", "outcomes": "boundaries", "relations": 0.0},
        **{"relation_layer": None, "relation_heads": None, "relation_pairs": None},
    },
}
"""Setting -> the value at which the hash left it out."""
KNOWN = {
    "data": (
        *("name", "fingerprint", "protocol", "questions", "unanswerable", "titles", "windows", "skipped"),
        *("truncated_questions", "lost_answers", "candidates", "answers", "left_out"),
    ),
    "scores": ("threshold", "protocol", "metric_version", "overlap", "engine"),
    "epochs": (
        *("epoch", "step", "train_loss", "train_seconds", "validation_seconds", "windows"),
        *("windows_per_second", "lr"),
    ),
}
"""Fields that schema 2 moved out of the flat mappings of schema 1."""
BERT_MATCH = "qa_arch.models.bert_match.BertMatch"
HEADS: Mapping[str, dict[str, Any]] = {
    "boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": False},
    "bi_boundary": {"_target_": "qa_arch.nn.pointer.PointerHead", "bidirectional": True},
    "linear": {"_target_": "qa_arch.nn.heads.LinearHead"},
}
"""Heads that ``model.pointer`` selected before ``model.head`` existed."""
RANKERS: Mapping[str, tuple[str, str]] = {
    "selection": ("word-overlap", "qa_arch.extras.selection.rankers.WordOverlap"),
    "classification": ("rules", "qa_arch.extras.selection.rankers.ClassRules"),
}
"""Task -> the reference that its models always had besides a random order, whatever ``references`` said."""
LOGGERS: Mapping[str, dict[str, Any]] = {
    "none": {"_target_": None},
    "wandb": {
        **{"_target_": "qa_arch.training.loggers.WandbLogger", "mode": "auto", "texts": False, "tags": []},
        **{"project": "qa_arch", "name": "{name}", "group": "{group}", "save_dir": "{folder}"},
    },
    "tensorboard": {
        **{"_target_": "pytorch_lightning.loggers.TensorBoardLogger", "save_dir": "{folder}"},
        **{"name": "tensorboard", "version": "", "default_hp_metric": False},
    },
}
"""Loggers that ``logger.name`` selected before ``logger._target_`` did."""
_COUNTED = (
    "d5fc6dfc4ae3e44ddd242c33839ab59e726d8aee9026823a4dbe82bb428e9bd7",
    "1140bbe8495dca39f62db59af38486806fede16889f37b0f58722cdd468f40c4",
    "0e1505d08e2ddd99d0a46b978bb4c184a60db4d543318024ff6f2a6a3c96560f",
    "132e6ae9faaa11907d1075b285c8e9fe949186fd3e5d06e03a1cf371efecf468",
    "3d71f186dc3dc86c5a7c495c4b8ed9f74e3939d8b62499abb435396f2576c67a",
    "44416ab7a75d4f36149b06dc89338c931636863b5a01880600832e28176f2844",
    "b0e54713b82db2fafe0b0f4d435f2cc3c45820b0b5d0648c60193616d2cebb2d",
    "82c3f22bed13c2b17491126629b8630a2c613b0733497ad60ef1878ef8e41029",
    "657de038b52db9a6dcfd46523f56b5d7a162e25a18899a05aef15ec3638ae476",
    "a69f13b245d84b4cd99c99d586f14f78f789291f1e9b56b199242133fccf938f",
    "412144b139a340a68449f47c8c6a20631388572694f94e7787d22df69ad56a77",
    "cdeb20052aa14605ed071c2a1582cbc2f2e68e932e939e0b260fafa9c3e317a2",
    "d9cf28adcb4d6b8f1802383a80682b15800b6e8ac787b8232104b8baf45ee0ee",
    "da997681d8f25a04c9420774ea95ac3126ea41a65a61c54168e83e5da5fababa",
    "53ba101a75dca35573cf6a0d9e39a61573f06139ba6a56a65abf26c3e2185c48",
    "f0e080ca06cbb3720ab482994baf2f42a5342ed588d56130cc251f57815ca883",
)
SETS: Mapping[str, str] = dict(zip(_COUNTED[::2], _COUNTED[1::2], strict=True))
"""Hash of a training set that counted plausible answers -> its hash without them. The runs of a registered
experiment keep the hash that their registration states."""

# To be extended as classes move and settings go -------------------------------------------------------

MOVED: dict[str, str] = {
    **MOVED_BEFORE_3,
    BERT_MATCH: "qa_arch.models.proposed.BertMatch",
    "qa_arch.extras.selection.rankers.WordOverlap": "qa_arch.extras.selection.rankers.OverlapRanker",
}
"""Name of a class in a record -> its name now; names are followed to the last."""
RETIRED: dict[str, Any] = {**RETIRED_BEFORE_3, "selection.types": None, "pretraining.span_length": 3.0}
"""Deleted setting -> the value that it has in every record. It is taken out of configs; another value is an
error."""
READ_BY: Mapping[str, tuple[str, ...]] = {
    "selection": ("selection", "classification"),
    "pretraining": ("masked_lm",),
}
"""Section that every config once had -> the tasks of the models that read it; others no longer have it."""
RENAMED: Mapping[str, str] = {
    "margin_0": "threshold_0",
    "never_null": "forced",
    "calibration_f1_at_0": "calibration_threshold_0_f1",
    "calibration_spans_f1": "calibration_forced_f1",
    "calibration_spans_auc": "calibration_forced_auc",
    "spans_auc": "forced_auc",
    "extra": "details",
}
"""Operating points, scores of an epoch, facts of a set and a value of ``trainer.select``: name in schema 3 ->
name now."""
CSV_LOGGER = "qa_arch.training.loggers.CsvLogger"
"""Replaced by Lightning's."""


def main(folders: Collection[str]) -> int:
    """Migrate the records at or below ``folders``; returns 1 if some could not be."""
    migrated = unchanged = 0
    problems = []
    for top in map(Path, folders or [EXPERIMENTS]):
        paths = [top] if top.name == RECORD else sorted(top.rglob(RECORD))
        if not paths:
            problems.append(f"{top}: holds no {RECORD}")
        for path in paths:
            try:
                changed = migrate(path)
            except QaArchError as error:
                problems.append(str(error))
                continue
            except (LookupError, AttributeError, TypeError) as error:
                problems.append(f"{path}: damaged ({error!r}); copy it again")
                continue
            migrated, unchanged = migrated + changed, unchanged + (not changed)
    print(f"{migrated} records migrated, {unchanged} unchanged")
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


def migrate(path: Path) -> bool:
    """Rewrite the record at ``path`` and the config beside it, of an earlier schema also its question rows;
    whether one of them changed.

    Raises RunError, before anything is written, for a record that is running or cannot be migrated.
    """
    raw = read_json(path, "copy it again")
    if not isinstance(raw, dict) or raw.get("schema") not in (1, 2, 3, SCHEMA) or "config" not in raw:
        raise RunError(f"{path}: not a record of schema 1 to {SCHEMA}")
    new = raw
    if raw["schema"] != SCHEMA and raw["status"] == "running":
        raise RunError(f"{path}: still running; finish it first, with the code that began it")
    if raw["schema"] < 3:
        new = to_schema_3(with_nested(raw) if raw["schema"] == 1 else raw, path)
    if raw["schema"] != SCHEMA:
        new = to_schema_4(new)
    new = {**new, "config": current(new["config"], path)}
    parse_record(new, path)
    composed = path.with_name(CONFIG)
    before = read_yaml(composed) if composed.is_file() else {}
    after = current(before, composed)
    if raw["schema"] < 3:
        new["rows"] = {split: rewrite_rows(path.parent, raw, split) for split in scored(path.parent, raw)}
    if new != raw:
        write_json(path, new)
    if after != before:
        write_atomic(composed, to_yaml(after))
    return new != raw or after != before


# Records ----------------------------------------------------------------------------------------------


def with_nested(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A record of schema 1 in schema 2: nested points, epochs and splits; ``margin`` is ``threshold``."""

    def nest(kind: str, flat: Mapping[str, Any], others: str = "metrics") -> dict[str, Any]:
        known = {key: value for key, value in flat.items() if key in KNOWN[kind]}
        return {**known, others: {key: value for key, value in flat.items() if key not in KNOWN[kind]}}

    new = {**raw, "schema": 2}
    if margin := new.pop("margin", None):
        new["threshold"] = margin
    names = {"global": "global_size"}
    new["batch"] = {names.get(key, key): size for key, size in raw["batch"].items()}
    new["epochs"] = [nest("epochs", epoch) for epoch in raw["epochs"]]
    new["data"] = {split: nest("data", facts, "extra") for split, facts in raw["data"].items()}
    for key in ("scores", "references"):
        new[key] = {
            split: {name: nest("scores", point) for name, point in points.items()}
            for split, points in raw[key].items()
        }
    return new


def to_schema_3(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A record of schema 2 with both hashes, today's settings and today's hashes of its sets."""
    config, registered = raw["config"], registered_hash(raw, path)
    new: dict[str, Any] = {}
    for key, value in raw.items():
        if key == "config_hash":
            new["settings_hash"] = registered or schema_2_hash(config)
            new["run_hash"] = value
        elif key in ("parent", "encoder", "teacher") and value:
            new[key] = {"run_hash" if name == "config_hash" else name: inner for name, inner in value.items()}
        else:
            new[key] = value
    if not registered:
        new["data"] = {
            split: {**facts, "fingerprint": SETS.get(facts.get("fingerprint"), facts.get("fingerprint"))}
            for split, facts in raw["data"].items()
        }
    return new


def to_schema_4(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A record of schema 3 with today's names of operating points, facts and scores of an epoch."""
    data, scores = ({split: renamed(own) for split, own in raw[key].items()} for key in ("data", "scores"))
    epochs = [{**epoch, "metrics": renamed(epoch["metrics"])} for epoch in raw["epochs"]]
    return {**raw, "schema": SCHEMA, "data": data, "scores": scores, "epochs": epochs}


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` under the names that ``RENAMED`` gives them."""
    return {RENAMED.get(key, key): value for key, value in values.items()}


def registered_hash(raw: Mapping[str, Any], path: Path) -> str | None:
    """The value that the registration of the run's experiment lists for it: over settings and the content of
    its sets, wherever these lay. None if the run is not registered."""
    prints = {split: raw["data"].get(split, {}).get("fingerprint") for split in ("train", "calibration")}
    for folder in (*path.resolve().parents, EXPERIMENTS / str(raw["config"].get("name"))):
        if (folder / "registered.json").is_file():
            registration = read_json(folder / "registered.json", "restore the file")
            dev = registration["sets"][DEV]["fingerprint"]
            own = schema_2_hash(raw["config"], {k: str(v) for k, v in {**prints, DEV: dev}.items()})
            if any(own in seeds.values() for seeds in registration["runs"].values()):
                return own
    return None


# Hashes of schema 2 -----------------------------------------------------------------------------------


def schema_2_hash(config: Mapping[str, Any], prints: Mapping[str, str] | None = None) -> str:
    """SHA-256 of the config without ``NEUTRAL``, ``OPTIONAL`` and, if ``prints`` are given, ``PLACES``."""
    original = with_names(config, {today: first for first, today in MOVED_BEFORE_3.items()})
    for setting, value in retired_settings(config, RETIRED_BEFORE_3).items():
        section, _, key = setting.partition(".")
        if isinstance(original.get(section), Mapping):
            original[section] = {key: value, **original[section]}
    dropped = NEUTRAL | {*(PLACES if prints is not None else ())}
    text = json.dumps(
        [relevant(original, "", dropped), dict(prints or {})], sort_keys=True, ensure_ascii=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def relevant(value: Any, path: str, dropped: Collection[str]) -> Any:
    """``value`` without the dotted settings ``dropped`` and those that ``OPTIONAL`` leaves out."""
    if not isinstance(value, Mapping):
        return value
    named = ((key, f"{path}.{key}" if path else str(key)) for key in value)
    return {
        str(key): relevant(value[key], full, dropped)
        for key, full in named
        if full not in dropped and not is_optional(full, value[key])
    }


def is_optional(path: str, value: Any) -> bool:
    """Whether the value is the one at which the hash leaves the setting out; lacking keys have theirs."""
    if path not in OPTIONAL:
        return False
    default = OPTIONAL[path]
    sections = isinstance(default, Mapping) and isinstance(value, Mapping)
    return default == ({**default, **value} if sections else value)


# Configs ----------------------------------------------------------------------------------------------


def current(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The config in the file ``path`` as today's code reads it."""
    config = without_retired(with_current_sections(config), RETIRED, path)
    return dict(with_names(without_unread(config), MOVED))


def with_names(value: Any, names: Mapping[str, str]) -> Any:
    """Replace every ``_target_`` in ``value``, at any depth, by its last name in ``names``."""
    if isinstance(value, list):
        return [with_names(inner, names) for inner in value]
    if not isinstance(value, Mapping):
        return value
    section = {key: with_names(inner, names) for key, inner in value.items()}
    while (target := section.get("_target_")) in names:
        section["_target_"] = names[target]
    return section


def retired_settings(config: Mapping[str, Any], retired: Mapping[str, Any]) -> dict[str, Any]:
    """``retired``, and the deleted arguments of the config's model."""
    model = config.get("model") or {}
    target = str(model.get("_target_"))
    is_qa_lstm = target.rpartition(".")[2] == "QaLstm"
    return {
        **retired,
        **({f"model.{key}": value for key, value in QA_LSTM_BEFORE_3.items()} if is_qa_lstm else {}),
    }


def without_retired(config: Mapping[str, Any], retired: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The config without deleted settings; RunError if one has another value than it always had."""
    config = dict(config)
    for setting, value in retired_settings(config, retired).items():
        name, _, key = setting.partition(".")
        section = config.get(name)
        if not key and name in config:
            if config.pop(name) != value:
                raise RunError(f"{path}: config.{setting}: is not {value!r} as in all others")
        elif key and isinstance(section, Mapping) and key in section:
            if section[key] != value:
                raise RunError(
                    f"{path}: config.{setting}: is {section[key]!r}, not {value!r} as in all others"
                )
            config[name] = {own: inner for own, inner in section.items() if own != key}
    return config


def without_unread(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without the sections that its model does not read, with today's CSV logger, and with the
    steps of the former command ``compress`` numbered."""
    task = (config.get("model") or {}).get("task")
    config = {key: value for key, value in config.items() if task in READ_BY.get(key, (task,))}
    if (config.get("logger") or {}).get("_target_") == CSV_LOGGER:
        target = "pytorch_lightning.loggers.CSVLogger"
        config["logger"] = {"_target_": target, "save_dir": "{folder}", "name": "csv"}
    if not isinstance(config.get("compression"), Mapping):
        steps = config.pop("compression", None) or ()
        config |= {"compression": {str(n): step for n, step in enumerate(steps, 1)}} if steps else {}
    return config


def with_current_sections(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with ``model.head``, ``logger`` and ``references`` as schema 2 reads earlier ones, and
    ``trainer.select`` as schema 4 does."""
    new = dict(config)
    trainer = config.get("trainer") or {}
    if (select := trainer.get("select")) in RENAMED:
        new["trainer"] = {**trainer, "select": RENAMED[select]}
    model = config.get("model") or {}
    pointer = str(model.get("pointer"))
    if model.get("_target_") == BERT_MATCH and pointer in HEADS:
        head = dict(HEADS[pointer])
        if pointer != "linear":
            head |= {"hidden": model.get("hidden", 150), "shortcut": model.get("shortcut", False)}
        rest = {key: value for key, value in model.items() if key not in ("pointer", "shortcut")}
        new["model"] = {**rest, "head": {**head, **(model.get("head") or {})}}
    logger = config.get("logger")
    if isinstance(logger, Mapping) and "_target_" not in logger:
        current = LOGGERS[logger["name"]]
        own = {key: value for key, value in logger.items() if key in current and key != "name"}
        new["logger"] = {**current, **own}
    references = config.get("references") or {}
    targets = [str(item.get("_target_")) for item in references.values() if isinstance(item, Mapping)]
    if (
        references
        and model.get("task") in RANKERS
        and all(t.startswith("baselines.heuristics.") for t in targets)
    ):
        name, target = RANKERS[model["task"]]
        random_order = {"_target_": "qa_arch.extras.selection.rankers.RandomOrder"}
        new["references"] = {"random-order": random_order, name: {"_target_": target}}
    return new


# Question rows ----------------------------------------------------------------------------------------


def scored(run: Path, raw: Mapping[str, Any]) -> Iterator[str]:
    """The splits whose question rows the run has."""
    return (split for split in raw["scores"] if (questions_folder(run, split) / QUESTIONS).is_file())


def rewrite_rows(run: Path, raw: Mapping[str, Any], split: str) -> str:
    """Write the rows of ``split`` again, in the types of schema 3; returns the hash of the file."""
    folder = questions_folder(run, split)
    stated, before = raw.get("rows", {}).get(split), file_hash(folder / QUESTIONS)
    columns = read_questions(folder)
    if "abstained" in columns and "span_f1" not in columns:
        columns |= span_scores(raw, split, columns)
    with TemporaryDirectory() as scratch:
        is_new = write_questions(scratch, columns) == before  # a run of this script was stopped in between
    if stated not in (None, before) and not is_new:
        raise RunError(
            f"{folder / QUESTIONS}: are not the rows that the scores belong to; copy the run again"
        )
    return write_questions(folder, columns)


def span_scores(raw: Mapping[str, Any], split: str, columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Scores of the best spans, also where none was given; the first records lack them.

    Opens the set below ``$QA_ARCH_DATA``; raises DataError if it is not there or another one.
    """
    questions = open_passages(local(raw["config"]["data"][split]))
    if questions.fingerprint != raw["data"][split]["fingerprint"]:
        raise DataError(f"{questions.name}: is not the set that was scored")
    spans = zip(questions.examples, columns["start"], columns["end"], strict=True)
    scored = score_questions(
        questions, {e.id: e.context[max(start, 0) : max(end, 0)] for e, start, end in spans}
    )
    return {"span_exact": [score.exact for score in scored], "span_f1": [score.f1 for score in scored]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

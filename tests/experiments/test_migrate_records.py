"""The script that migrates records: from earlier schemas, and after classes have moved."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripts import load

from qa_arch.config.compose import to_yaml
from qa_arch.config.schema import LOSSES, recipe_of, recipes, validate
from qa_arch.config.target import locate
from qa_arch.errors import RunError
from qa_arch.files import read_yaml
from qa_arch.models.store import check_model
from qa_arch.nn.losses import build_loss
from qa_arch.records import QUESTIONS, RECORD, read_questions, read_record
from qa_arch.training.jobs import CONFIG
from qa_arch.training.loggers import check_loggers

migration = load("migrate_records.py")

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
COMMITTED = {path: json.loads(path.read_text())["config"] for path in sorted(EXPERIMENTS.rglob(RECORD))}
TRAINED = {
    path: config
    for path, config in COMMITTED.items()
    if not config.get("compression")  # by a command that is gone
    and "_target_" in config.get("model", {})
    and config["model"].get("task", "span") in {*LOSSES, *recipes()}
}
POINTER, LINEAR = "qa_arch.nn.pointer.PointerHead", "qa_arch.nn.heads.LinearHead"
BERT_MATCH = "qa_arch.models.bert_match.BertMatch"
WANDB = {"_target_": "qa_arch.training.loggers.WandbLogger", "mode": "offline", "texts": False, "tags": ["a"]}

SELECTION = {
    **{"margin": 0.2, "negatives": 50, "max_question": 200, "max_answer": 200, "unknown_buckets": 100},
    "types": None,
}
"""A section that every config had."""
SCHEMA_3_NAMES = {
    "threshold_0": "margin_0",
    "forced": "never_null",
    "calibration_threshold_0_f1": "calibration_f1_at_0",
    "calibration_forced_f1": "calibration_spans_f1",
    "calibration_forced_auc": "calibration_spans_auc",
    "details": "extra",
}


@pytest.fixture
def run(tmp_path):
    """A copy of a committed run of the demo, whose folder is named after its settings."""
    return Path(shutil.copytree(next(EXPERIMENTS.glob("demo/records/bert-*")), tmp_path / "run"))


def earlier(run: Path, schema: int) -> dict:
    """Rewrite the record in an earlier schema; returns what was there before."""
    text = (run / RECORD).read_text()
    now = json.loads(text)
    for name, before in SCHEMA_3_NAMES.items():
        text = text.replace(f'"{name}":', f'"{before}":')
    if schema == 3:
        (run / RECORD).write_text(json.dumps({**json.loads(text), "schema": 3}))
        (run / CONFIG).write_text(to_yaml(now["config"]))
        return now
    old = {**json.loads(text), "schema": schema, "config_hash": now["run_hash"]}
    for key in ("settings_hash", "run_hash", "rows"):
        del old[key]
    config = old["config"] = json.loads(json.dumps(now["config"]))
    config["optim"]["layer_decay"], config["selection"] = 1.0, SELECTION
    if schema == 1:
        old["margin"] = old.pop("threshold")
        old["batch"] = {"global" if k == "global_size" else k: v for k, v in old["batch"].items()}
        old["epochs"] = [{**epoch.pop("metrics"), **epoch} for epoch in old["epochs"]]
        old["data"] = {split: {**facts.pop("extra", {}), **facts} for split, facts in old["data"].items()}
        for key in ("scores", "references"):
            old[key] = {
                split: {name: {**point.pop("metrics"), **point} for name, point in points.items()}
                for split, points in old[key].items()
            }
    (run / RECORD).write_text(json.dumps(old))
    (run / CONFIG).write_text(to_yaml(config))
    return now


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_record_of_an_earlier_schema_is_refused_until_it_is_migrated(run, schema):
    """Hashes are those that its code stored and its folder bears; the rows are written in the new types."""
    record, rows = read_record(run), (run / QUESTIONS).read_bytes()
    now = earlier(run, schema)
    if schema < 3:
        pq.write_table(pa.table(read_questions(run)), run / QUESTIONS)
    with pytest.raises(
        RunError, match=rf"record of schema {schema}, .*python experiments/migrate_records.py"
    ):
        read_record(run)
    assert migration.migrate(run / RECORD)
    assert json.loads((run / RECORD).read_text())["run_hash"] == now["run_hash"]
    assert read_record(run) == record
    assert record.settings_hash[:8] in str(*EXPERIMENTS.glob("demo/records/bert-*"))
    assert (run / QUESTIONS).read_bytes() == rows
    assert read_yaml(run / CONFIG) == record.config
    assert not migration.migrate(run / RECORD)


def test_longer_table_renames_classes_and_keeps_hashes(run, monkeypatch, capsys):
    before = read_record(run)
    target = before.config["model"]["_target_"]
    monkeypatch.setitem(migration.MOVED, target, "qa_arch.elsewhere.Model")
    monkeypatch.setitem(migration.MOVED, "qa_arch.elsewhere.Model", "qa_arch.models.last.Model")
    monkeypatch.setitem(migration.RETIRED, "optim.lr", before.config["optim"]["lr"])
    assert migration.main([str(run)]) == 0
    after = read_record(run)
    assert after.config["model"]["_target_"] == "qa_arch.models.last.Model"
    assert after.config["optim"].keys() == before.config["optim"].keys() - {"lr"}
    for name in ("settings_hash", "run_hash", "rows"):
        assert getattr(after, name) == getattr(before, name)
    monkeypatch.setitem(migration.RETIRED, "seed", 5)
    assert migration.main([str(run)]) == 1
    assert "config.seed: is not 5 as in all others" in capsys.readouterr().err
    assert read_record(run) == after


def test_running_record_and_rows_of_other_scores_are_left_alone(run):
    earlier(run, 2)
    raw, rows = json.loads((run / RECORD).read_text()), read_questions(run)
    pq.write_table(pa.table(rows), run / QUESTIONS)
    for changes, message in (
        ({"status": "running"}, "still running"),
        ({"rows": {"dev": "0"}}, "not the rows that the scores belong to"),
        ({"config": {**raw["config"], "optim": {"layer_decay": 0.9}}}, "optim.layer_decay: is 0.9"),
        ({"schema": 5}, "not a record of schema 1 to 4"),
    ):
        (run / RECORD).write_text(json.dumps({**raw, **changes}))
        written = [(run / name).read_bytes() for name in (RECORD, CONFIG, QUESTIONS)]
        with pytest.raises(RunError, match=message):
            migration.migrate(run / RECORD)
        assert [(run / name).read_bytes() for name in (RECORD, CONFIG, QUESTIONS)] == written


RANKERS = "qa_arch.extras.selection.rankers."
RANDOM = {"random": {"_target_": "baselines.heuristics.RandomSpan"}}
ORDERS = {
    "random-order": {"_target_": f"{RANKERS}RandomOrder"},
    "word-overlap": {"_target_": f"{RANKERS}WordOverlap"},
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"model": {"_target_": BERT_MATCH, "pointer": "bi_boundary"}},
            {"head": {"_target_": POINTER, "bidirectional": True, "hidden": 150, "shortcut": False}},
        ),
        (
            {"model": {"_target_": BERT_MATCH, "pointer": "boundary", "hidden": 20, "head": {"hidden": 7}}},
            {"head": {"_target_": POINTER, "bidirectional": False, "hidden": 7, "shortcut": False}},
        ),
        ({"model": {"_target_": BERT_MATCH, "pointer": "linear"}}, {"head": {"_target_": LINEAR}}),
        ({"trainer": {"select": "spans_auc"}}, {"select": "forced_auc"}),
        ({"logger": {"name": "wandb", "mode": "offline", "tags": ["a"]}}, WANDB),
        ({"model": {"task": "selection"}, "references": RANDOM}, ORDERS),
    ],
)
def test_sections_of_earlier_configs_become_current_ones(before, after):
    section = migration.with_current_sections(before)[[*before][-1]]
    assert section.items() >= after.items()


def test_steps_of_compression_are_numbered_and_no_steps_left_out():
    steps = [{"method": "layers", "layers": 3}, {"method": "int8"}]
    numbered = {"compression": {"1": steps[0], "2": steps[1]}}
    assert migration.without_unread({"compression": steps}) == numbered
    assert migration.without_unread(numbered) == numbered
    assert migration.without_unread({"compression": None}) == {}


def test_every_committed_config_describes_a_model_and_a_loss():
    for path, config in TRAINED.items():
        current = validate(config)
        if recipe_of(current.model) is not None:
            assert locate(current.model["_target_"]), path
            continue
        assert check_model(current.model), path
        assert build_loss(current), path
    loggers = {json.dumps(config["logger"]) for config in COMMITTED.values() if "logger" in config}
    for logger in loggers:
        check_loggers(json.loads(logger))

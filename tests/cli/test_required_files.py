"""Data checks before torch is imported agree with those of the tasks."""

from dataclasses import replace

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import LOSSES, Config, recipes, validate
from qa_arch.errors import DataError
from qa_arch.manifest import from_extras
from qa_arch.training.inputs import load_sets
from qa_arch.training.jobs import require_files, require_hub

TASKS = {
    "span": "bert",
    "sequence": "match_lstm/sequence",
    "selection": "qa_lstm/c",
    "classification": "question_types",
    "masked_lm": "pretrain/mlm",
    "causal_lm": "pretrain/causal",
    "denoising": "pretrain/denoising",
}
"""Task -> a model of it."""
INSTALLED = [task for task in TASKS if task in LOSSES or task in recipes()]
CORPORA = [task for task in INSTALLED if TASKS[task].startswith("pretrain/")]
CLASSES = ["types:synthetic:train"] if "types" in from_extras("formats") else []
"""Source of a classification set, if the extra that reads it is installed."""


def error_message(load, argument) -> str | None:
    try:
        load(argument)
    except DataError as error:
        return str(error)
    return None


def with_data(task: str, source: str) -> Config:
    config = validate(compose(["debug=fast", f"model={TASKS[task]}"]))
    data = replace(config.data, train=source, calibration=None, dev=None, hold_out_share=0.3)
    return replace(config, data=replace(data, hold_out_articles=0))


def test_every_task_has_a_model():
    assert set(TASKS) >= {*LOSSES, *recipes()}


@pytest.mark.parametrize("source", ["synthetic:train", *CLASSES])
@pytest.mark.parametrize("task", INSTALLED)
def test_unsuitable_data_gets_the_error_of_the_task(task, source):
    config = with_data(task, source)
    assert error_message(require_files, config) == error_message(load_sets, config)


@pytest.mark.parametrize("task", CORPORA)
@pytest.mark.parametrize(
    "source", ["squad:{}/set.json", "{}/set.json", "{}/text.txt", "{}/texts", "hub:text:body"]
)
def test_missing_corpus_is_reported_for_every_kind_of_source(task, source, tmp_path):
    config = with_data(task, source.format(tmp_path))
    missing = error_message(require_files, config)
    assert source.startswith("hub:") if missing is None else missing.startswith("data.train: ")
    (tmp_path / "texts").mkdir()
    for name in ("set.json", "text.txt", "texts/more.txt"):
        (tmp_path / name).write_text("{}")
    assert error_message(require_files, config) is None


@pytest.mark.parametrize("source", ["hub:squad:train", "hub:rajpurkar/squad@main:train", "hub:{}:train"])
def test_cached_hub_dataset_needs_no_hub(monkeypatch, tmp_path, source):
    """Under its old name, at a revision, or in a folder."""
    (tmp_path / "rajpurkar___squad" / "default").mkdir(parents=True)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    settings = [f"data.train={source.format(tmp_path)}", "data.dev=null", "data.hold_out_articles=1"]
    require_hub([validate(compose(["model=bert", "debug=fast", "data=demo", *settings]))])

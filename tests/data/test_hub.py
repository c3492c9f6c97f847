"""Hub data sets: names, flat columns, and error messages without a network."""

import json
from types import SimpleNamespace

import pytest
from datasets import Dataset

from qa_arch.data.sources import open_passages
from qa_arch.data.squad import read
from qa_arch.errors import DataError, UnavailableError

CONTEXT = "Café Lune opened in Lyon. It closes at 10½."
ROWS = [
    {"id": "a", "title": "Lune", "context": CONTEXT, "question": "Where?",
     "answers": {"text": ["Lyon", "in Lyon"], "answer_start": [20, 17]}},
    {"id": "b", "title": "Lune", "context": "".join(list(CONTEXT)), "question": "Who owns it?",
     "answers": {"text": [], "answer_start": []}},
]  # fmt: skip


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for ``datasets`` that records the requests; ``hub.result`` is returned or raised."""
    stub = SimpleNamespace(calls=[], result=ROWS)

    def load_dataset(name, config, *, split, revision):
        stub.calls.append((name, config, split, revision))
        if isinstance(stub.result, Exception):
            raise stub.result
        return Dataset.from_list(stub.result)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    return stub


def test_rows_give_the_same_set_as_a_flat_file(hub, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(ROWS), encoding="utf-8")
    questions = open_passages("hub:rajpurkar/squad_v2:validation")
    assert questions.name == "rajpurkar/squad_v2:validation"
    assert questions.protocol == "2.0"
    assert questions.examples == read(file).examples
    assert questions.fingerprint == read(file).fingerprint
    assert questions.examples[0].context is questions.examples[1].context


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("hub:squad:train", ("rajpurkar/squad", None, "train", None)),
        ("hub:squad_v2:validation", ("rajpurkar/squad_v2", None, "validation", None)),
        ("hub:rajpurkar/squad_v2:train[:10%]", ("rajpurkar/squad_v2", None, "train[:10%]", None)),
        ("hub:some/set@v3:test", ("some/set", None, "test", "v3")),
        ("hub:google/xquad:test:xquad.de", ("google/xquad", "xquad.de", "test", None)),
        ("hub:some/set@v3:test[:9]+train[3:]:all", ("some/set", "all", "test[:9]+train[3:]", "v3")),
        (["hub:some/set:test"], ("some/set", None, "test", None)),
    ],
)
def test_source_names_are_parsed(hub, source, call):
    assert len(open_passages(source)) == 2
    assert hub.calls == [call]


def test_faulty_row_is_named_or_skipped(hub):
    hub.result = [{**ROWS[0], "answers": {"text": ["Lyon"], "answer_start": [21]}}, ROWS[1]]
    with pytest.raises(
        DataError, match=r"hub:some/set:test: row 0, question 'a', answers\[0\].*occurs at 20"
    ):
        open_passages("hub:some/set:test")
    questions = open_passages("hub:some/set:test", on_error="skip", name="kept")
    assert (questions.name, len(questions), len(questions.skipped)) == ("kept", 1, 1)


def test_error_of_the_hub_without_a_text_is_reported(hub):
    hub.result = KeyError()
    with pytest.raises(UnavailableError, match=r"cannot be loaded .*by path"):
        open_passages("hub:some/set:test")


def test_local_folder_is_read_by_the_real_package(tmp_path, monkeypatch):
    """Columns as ``datasets`` itself returns them, from Parquet and JSON Lines."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    parquet, lines = tmp_path / "parquet", tmp_path / "lines"
    parquet.mkdir()
    lines.mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(parquet / "train.parquet")
    (lines / "train.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    from_parquet, from_lines = (open_passages(f"hub:{folder}:train", name="x") for folder in (parquet, lines))
    assert from_parquet == from_lines == read(lines / "train.jsonl", name="x")
    with pytest.raises(DataError, match="name an existing split"):
        open_passages(f"hub:{lines}:dev")

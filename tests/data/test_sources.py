"""Where sets come from: the registry of schemes, rows given from Python, and the hub."""

import json
from importlib import import_module
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from qa_arch.data import sources
from qa_arch.data.files import Format
from qa_arch.data.memory import given
from qa_arch.data.sources import (
    available,
    format_of,
    identity,
    local,
    open_passages,
    open_source,
    portable,
    usage,
)
from qa_arch.data.squad import read, write
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError, UnavailableError
from qa_arch.manifest import from_extras

MRQA = '{"header": {"dataset": "M"}}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with files for several kinds of source."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a.json", 1), ("b.json", 2), ("a:b.json", 3)):
        (tmp_path / name).write_text(json.dumps(write(generate(1, seed))))
    (tmp_path / "m.jsonl").write_text(MRQA)
    (tmp_path / "n.jsonl").write_text(MRQA + "{}\n")
    return tmp_path


def test_different_sources_have_different_identities(folder):
    different = [
        *("a.json", "b.json", "a:b.json", "?.json", ["b.json", "a.json"]),
        *("hub:some/set:train", "hub:some/set:dev", "synthetic:train", "synthetic:train:L2"),
        *("mrqa:m.jsonl", "mrqa:n.jsonl", ["mrqa:m.jsonl", "mrqa:n.jsonl"]),
    ]
    identities = [identity(source) for source in different]
    assert len(set(identities)) == len(different)
    assert identities == [identity(source) for source in different]
    assert str(folder) not in str(identities)


def test_identity_depends_on_file_content_and_not_on_location(folder, monkeypatch):
    files = {"a.json": "a.json", "?.json": "b.json", "mrqa:m.jsonl": "m.jsonl"}
    before = {source: identity(source) for source in files}
    moved = folder.rename(folder.parent / f"{folder.name}-moved")
    monkeypatch.chdir(moved)
    assert {source: identity(source) for source in files} == before
    for source, name in files.items():
        (moved / name).write_bytes((moved / name).read_bytes() + b"\n")
        assert identity(source) != before[source], name
    for source in ("none.json", "mrqa:none.jsonl"):
        with pytest.raises(DataError, match=r"no such f(ile|older)|No such file|cannot be read"):
            identity(source)
        assert not available(source)


def test_invalid_sources_are_refused(folder):
    assert len(open_passages("a:b.json")) == len(open_passages("a:?.json")) > 0
    assert format_of("C:data.json").holds == "passages", "a drive is not a scheme"
    for source, message in (
        ("mrq:x.jsonl", r"mrq:x.jsonl: no such file, and no scheme 'mrq:' \(did you mean 'mrqa'\?\)"),
        ([], r"no data given; name FILE \(JSON, "),
    ):
        for function in (open_source, identity, format_of, available):
            with pytest.raises(DataError, match=message):
                function(source)
    for source, named in (
        (["a.json", "hub:x/y:train"], "hub:x/y:train: a hub set"),
        (["synthetic:dev", "synthetic:train"], "synthetic:dev: the embedded set"),
    ):
        for function in (open_source, identity):
            with pytest.raises(DataError, match=f"^{named}.* cannot be joined with others"):
                function(source)


@pytest.mark.parametrize("prefix", ["", "mrqa:", "hub:"])
def test_portable_names_contain_no_machine_path(monkeypatch, tmp_path, prefix):
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for tail in ("x.json", "x:train"):
        source = f"{prefix}{tmp_path}/data/{tail}"
        assert portable(source) == f"{prefix}$QA_ARCH_DATA/{tail}"
        assert local(portable(source)) == source
        assert portable(f"{prefix}{tmp_path}/{tail}") == f"{prefix}./{tail}"
        assert portable(f"{prefix}{tail}") == f"{prefix}{tail}"
        with pytest.raises(DataError, match=r"^/elsewhere/.* is outside .*set QA_ARCH_DATA"):
            portable(f"{prefix}/elsewhere/{tail}")
    assert portable("synthetic:dev") == "synthetic:dev"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "link"))
    monkeypatch.chdir("/")
    for folder in ("link", "elsewhere"):
        assert portable(f"{prefix}{tmp_path}/{folder}/x.json") == f"{prefix}$QA_ARCH_DATA/x.json"


def test_every_format_documents_itself():
    """Every scheme is ours or of an extra, and is described by its module."""
    known = {scheme: sources._format(scheme) for scheme in sources.schemes()}
    modules = {**sources.OWN, **from_extras("formats")}
    assert set(known) == set(modules)
    for scheme, form in known.items():
        assert isinstance(form, Format)
        assert form.usage.startswith(f"{scheme}:")
        typed = scheme != "memory"  # which the command line cannot give
        assert (form.usage in usage(passages=form.holds == "passages")) == typed
        module, _, several = modules[scheme].partition(":")
        assert (several and scheme not in sources.OWN) or f"``{scheme}:" in import_module(module).__doc__
    assert usage().startswith("FILE (JSON, JSON Lines, CSV or Parquet), FOLDER (of files, or from ")


CONTEXT = "Café Lune opened in Lyon. It closes at 10½."
ROWS = [
    {"id": "a", "title": "Lune", "context": CONTEXT, "question": "Where?",
     "answers": {"text": ["Lyon", "in Lyon"], "answer_start": [20, 17]}},
    {"id": "b", "title": "Lune", "context": "".join(list(CONTEXT)), "question": "Who owns it?",
     "answers": {"text": [], "answer_start": []}},
]  # fmt: skip
ARRAYS = [{**row, "answers": {key: np.array(v) for key, v in row["answers"].items()}} for row in ROWS]
TABLE = Dataset.from_list(ROWS)
ARTICLE = {"title": "Lune", "paragraphs": [
    {"context": row["context"], "qas": [
        {"id": row["id"], "question": row["question"], "is_impossible": row["id"] == "b",
         "answers": [{"text": t, "answer_start": s} for t, s in zip(*row["answers"].values(), strict=True)]}
    ]} for row in ROWS
]}  # fmt: skip


def source(setting: str) -> str:
    return setting.partition("=")[2]


@pytest.mark.parametrize(
    "rows",
    [ROWS, ARRAYS, [ARTICLE], TABLE, TABLE.with_format("numpy")],
    ids=["list", "arrays", "articles", "dataset", "formatted"],
)
def test_rows_are_the_set_that_a_file_of_them_is(tmp_path, rows):
    (file := tmp_path / "train.json").write_text(json.dumps(ROWS))
    with given(rows) as (setting,):
        assert setting.startswith("data.train=memory:")
        assert open_passages(source(setting), name="train") == open_passages(str(file), name="train")
        assert identity(source(setting)).startswith(source(setting))
    frame = pd.DataFrame([{**ROWS[0], "kind": "where"}, {**ROWS[1], "title": None}])  # empty cells
    with given(frame.astype({"kind": object}).to_dict("records")) as (setting,):
        assert [example.kind for example in open_passages(source(setting)).examples] == ["where", None]


def test_rows_are_named_by_their_hash_and_gone_after_the_block(tmp_path):
    sets = DatasetDict(train=TABLE, dev=TABLE.select([0]))
    with given(sets) as settings, pytest.raises(DataError, match="were given from Python and not"):
        open_passages("memory:0123456789abcdef")
    assert [setting.partition("=")[0] for setting in settings] == ["data.train", "data.dev"]
    with given({"dev": ROWS[:1]}) as (dev,):
        assert dev == settings[1]
        assert available(source(dev))
        assert not available(source(settings[0]))
    with pytest.raises(DataError, match=rf"^{source(dev)}: .*\(qa_arch.train\(data=...\)\), or name a file"):
        open_passages(source(dev))
    assert not available(source(dev))
    assert "memory" not in usage()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"validation": ROWS}, "'validation' is no set of a run; name train, calibration, dev, such as"),
        ({"train": ROWS, "dev": []}, "data: dev is empty; give a list of records"),
        (iter(ROWS), "data: train is of type list_iterator; give a list of records, or a datasets.Dataset"),
        (pd.DataFrame(ROWS), r"is of type DataFrame; .*of a frame, to_dict\('records'\)$"),
        ([1], r"^train \(memory:\w{16}\): holds 1, not a SQuAD set"),
        ([ROWS[0], {**ROWS[1], "question": " "}], r"^train \(memory:\w+\): record \[1\], .*'b', question"),
        ([{**ROWS[0], "context": b"Lyon"}], r"'a', context: is an object \({'bytes': .*must be a string"),
        ([{**ROWS[0], "id": "\ud800"}], "lone surrogate"),
    ],
)  # fmt: skip
def test_faulty_rows_are_named(data, message):
    with pytest.raises(DataError, match=message), given(data) as (setting, *_):
        open_passages(source(setting), name="train")


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


def test_rows_of_the_hub_give_the_same_set_as_a_flat_file(hub, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(ROWS), encoding="utf-8")
    questions = open_passages("hub:rajpurkar/squad_v2:validation")
    assert (questions.name, questions.protocol) == ("rajpurkar/squad_v2:validation", "2.0")
    assert questions.examples == read(file).examples
    assert questions.fingerprint == read(file).fingerprint
    assert questions.examples[0].context is questions.examples[1].context
    hub.result = [{**ROWS[0], "answers": {"text": ["Lyon"], "answer_start": [21]}}, ROWS[1]]
    with pytest.raises(DataError, match=r"hub:x/y:test: row 0, question 'a', answers\[0\].*occurs at 20"):
        open_passages("hub:x/y:test")
    questions = open_passages("hub:x/y:test", on_error="skip", name="kept")
    assert (questions.name, len(questions), len(questions.skipped)) == ("kept", 1, 1)
    hub.result = KeyError()  # which has no text
    with pytest.raises(UnavailableError, match=r"cannot be loaded .*by path"):
        open_passages("hub:x/y:test")


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("hub:squad:train", ("rajpurkar/squad", None, "train", None)),
        ("hub:rajpurkar/squad_v2:train[:10%]", ("rajpurkar/squad_v2", None, "train[:10%]", None)),
        ("hub:google/xquad:test:xquad.de", ("google/xquad", "xquad.de", "test", None)),
        ("hub:some/set@v3:test[:9]+train[3:]:all", ("some/set", "all", "test[:9]+train[3:]", "v3")),
        (["hub:some/set:test"], ("some/set", None, "test", None)),
    ],
)
def test_source_names_are_parsed(hub, source, call):
    assert len(open_passages(source)) == 2
    assert hub.calls == [call]


def test_local_folder_is_read_by_the_real_package(tmp_path, monkeypatch):
    """Columns as ``datasets`` itself returns them, from Parquet and JSON Lines."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    parquet, lines = tmp_path / "parquet", tmp_path / "lines"
    parquet.mkdir()
    lines.mkdir()
    Dataset.from_list(ROWS).to_parquet(parquet / "train.parquet")
    (lines / "train.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    from_parquet, from_lines = (open_passages(f"hub:{folder}:train", name="x") for folder in (parquet, lines))
    assert from_parquet == from_lines == read(lines / "train.jsonl", name="x")
    with pytest.raises(DataError, match="name an existing split"):
        open_passages(f"hub:{lines}:dev")

"""Rows given from Python: read, validated and identified like those of a file, while they are at hand."""

import json

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from qa_arch.data.memory import given
from qa_arch.data.sources import available, identity, open_passages, usage
from qa_arch.errors import DataError

ROWS = [
    {"id": "a", "title": "Lune", "context": "Café Lune opened in Lyon.", "question": "Where?",
     "answers": {"text": ["Lyon"], "answer_start": [20]}},
    {"id": "b", "title": "Lune", "context": "Café Lune opened in Lyon.", "question": "Who owns it?",
     "answers": {"text": [], "answer_start": []}},
]  # fmt: skip
ARRAYS = [{**row, "answers": {key: np.array(v) for key, v in row["answers"].items()}} for row in ROWS]
TABLE = Dataset.from_list(ROWS)
ARTICLE = {"title": "Lune", "paragraphs": [
    {"context": row["context"], "qas": [
        {"id": row["id"], "question": row["question"], "is_impossible": row["id"] == "b",
         "answers": [{"text": "Lyon", "answer_start": 20}] * (row["id"] == "a")}
    ]} for row in ROWS
]}  # fmt: skip


def source(setting: str) -> str:
    return setting.partition("=")[2]


@pytest.mark.parametrize(
    "rows",
    [ROWS, tuple(ROWS), ARRAYS, [ARTICLE], TABLE, TABLE.with_format("numpy")],
    ids=["list", "tuple", "arrays", "articles", "dataset", "formatted"],
)
def test_rows_are_the_set_that_a_file_of_them_is(tmp_path, rows):
    (file := tmp_path / "train.json").write_text(json.dumps(ROWS))
    with given(rows) as (setting,):
        assert setting.startswith("data.train=memory:")
        assert open_passages(source(setting), name="train") == open_passages(str(file), name="train")
        assert identity(source(setting)).startswith(setting.partition("=")[2])


def test_empty_cells_of_a_frame_are_as_absent():
    frame = pd.DataFrame([{**ROWS[0], "kind": "where"}, {**ROWS[1], "title": None}])
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
        ("train.json", "data: train is of type str"),
        (pd.DataFrame(ROWS), r"is of type DataFrame; .*of a frame, to_dict\('records'\)$"),
        ([{**ROWS[0], "answers": "Lyon"}], r"answers: is a string \('Lyon'\); .* list, or {\"text\": \["),
        ([1], r"^train \(memory:\w{16}\): holds 1, not a SQuAD set"),
        ([ROWS[0], {**ROWS[1], "question": " "}], r"^train \(memory:\w+\): record \[1\], .*'b', question"),
        ([{**ROWS[0], "context": b"Lyon"}], r"'a', context: is an object \({'bytes': .*must be a string"),
        ([{**ROWS[0], "id": "\ud800"}], "lone surrogate"),
    ],
)  # fmt: skip
def test_faulty_rows_are_named(data, message):
    with pytest.raises(DataError, match=message), given(data) as (setting, *_):
        open_passages(source(setting), name="train")

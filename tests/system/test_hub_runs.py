"""Commands from an empty cache, and offline from a full one, against a local hub."""

import shutil
from dataclasses import replace

import pytest
from hub_server import QUESTIONS, data_card, rows

from qa_arch import hub
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.files import write_json
from qa_arch.records import DEV, read_record


def test_training_and_what_follows_it(online, repositories, qa_arch, tmp_path, monkeypatch):
    """Records name the weights that a run started from, and the official file is the hub's set."""
    shutil.copytree(repositories, online.root)
    commit = online.commit(online.folder("models", "tiny/bert", "main"))
    files = {f"{split}.jsonl": rows(questions) for split, questions in QUESTIONS.items()}
    online.add("datasets", "tiny/set", {"README.md": data_card(), **files})
    monkeypatch.chdir(tmp_path)
    settings = [
        *("model=bert", "experiment=squad2", "encoder.name=tiny/bert@main", "logger=none"),
        *("data.train=hub:tiny/set:train", "data.dev=hub:tiny/set:validation"),
        *("features.max_length=64", "features.stride=16", "features.max_question=24"),
        *("trainer.max_steps=2", "trainer.progress=false", "trainer.accelerator=cpu"),
    ]
    code, _, err = qa_arch("train", *settings, "--folder", "online")
    assert code == 0, err
    record = read_record("online")
    assert record.initial.commit == commit
    official = write(QUESTIONS["validation"])
    for article in official["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                if question["is_impossible"]:
                    question["plausible_answers"] = [{"text": paragraph["context"][:3], "answer_start": 0}]
    write_json("dev.json", official)
    assert qa_arch("show", "online", "--data", "dev.json")[0] == 0
    hub.go_offline()
    online.requests.clear()
    code, _, err = qa_arch("train", *settings, "seed=14", "--folder", "offline")
    assert code == 0, err
    assert online.requests == []
    again = read_record("offline")
    assert again.initial == record.initial
    assert again.fingerprint(DEV) == record.fingerprint(DEV)
    assert qa_arch("compare", "online", "offline", "--data", "dev.json")[0] == 0


@pytest.mark.slow
def test_set_of_the_size_of_squad_is_read_as_it_is(online):
    """130,319 rows, in Arrow batches."""
    few = QUESTIONS["train"].examples
    examples = [
        replace(few[row % len(few)], id=str(row), title=f"Article {row // 295}") for row in range(130_319)
    ]
    whole = question_set("full", examples, "2.0")
    online.add("datasets", "tiny/full", {"README.md": data_card(), "train.jsonl": rows(whole)})
    read = open_passages("hub:tiny/full:train")
    assert len(read) == 130_319
    assert read.fingerprint == whole.fingerprint
    assert len(read.titles) == 442

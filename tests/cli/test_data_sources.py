"""Commands with ``--data`` accept every kind of source with passages and list them in their help."""

from __future__ import annotations

import csv
import json
import sys
from types import SimpleNamespace

import pytest

from qa_arch.data import sources
from qa_arch.data.sources import open_passages, usage
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.records import read_record


@pytest.fixture
def passages(tmp_path, monkeypatch):
    """Source by scheme: a small set in the format of every scheme with passages."""
    questions = generate(2, 3, 1, "dev")
    answerable = [example for example in questions.examples if example.answerable]
    rows, lines = [], [{"header": {"dataset": "Small"}}]
    for example in answerable:
        golds = example.answers
        rows.append(
            {
                "id": example.id,
                "title": example.title,
                "context": example.context,
                "question": example.question,
                "answers": {"text": [g.text for g in golds], "answer_start": [g.start for g in golds]},
            }
        )
        detected = [{"text": gold.text, "char_spans": [[gold.start, gold.end - 1]]} for gold in golds]
        question = {"qid": example.id, "question": example.question, "detected_answers": detected}
        lines.append({"context": example.context, "qas": [question]})
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *_, **__: rows))
    (tmp_path / "squad.json").write_text(json.dumps(write(questions)))
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["item_id", "q_review_id", "question", "review", "human_ans_spans", "human_ans_indices"]
        )
        for example in answerable:
            gold = example.answers[0]
            span = [gold.text, f"({gold.start}, {gold.end})"]
            table.writerow([example.title, example.id, example.question, example.context, *span])
    (tmp_path / "small.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {
        "": str(tmp_path / "squad.json"),
        "hub": "hub:some/set:dev",
        "language": f"language:de:{tmp_path / 'squad.json'}",
        "mrqa": f"mrqa:{tmp_path / 'small.jsonl'}",
        "subjqa": f"subjqa:{tmp_path / 'reviews.csv'}",
        "synthetic": "synthetic:dev:L1",
        "typos": "typos:13:synthetic:dev:L1",
    }


def test_every_scheme_is_covered(passages):
    with_passages = {name for name in sources.schemes() if sources.holds(f"{name}:x") == "passages"}
    assert {*with_passages, ""} == set(passages)


@pytest.mark.parametrize("scheme", ["", "hub", "language", "mrqa", "subjqa", "synthetic", "typos"])
def test_commands_without_a_model(qa_arch, passages, tmp_path, scheme):
    source = passages[scheme]
    questions = open_passages(source)
    code, out, err = qa_arch("stats", "--data", source, "--json")
    assert (code, json.loads(out)["examples"]) == (0, len(questions)), err
    parts = tmp_path / "parts"
    code, _, err = qa_arch("data", "split", "--data", source, "--parts", "a=0.5", "b=0.5", "--out", parts)
    assert code == 0, err
    assert sum(len(open_passages(str(parts / f"{part}.json"))) for part in "ab") == len(questions)
    gold = {example.id: example.answers[0].text if example.answers else "" for example in questions.examples}
    (tmp_path / "gold.json").write_text(json.dumps(gold))
    code, out, err = qa_arch("evaluate", "--data", source, "--predictions", tmp_path / "gold.json")
    assert code == 0, err
    assert json.loads(out)["f1"] == 100


def test_commands_with_a_model(qa_arch, passages, run_folder, tmp_path):
    source = passages["mrqa"]
    ids = {example.id for example in open_passages(source).examples}
    code, _, err = qa_arch("predict", run_folder, "--data", source, "--out", tmp_path / "out")
    assert code == 0, err
    assert set(json.loads((tmp_path / "out" / "predictions.json").read_text())) == ids
    code, _, err = qa_arch("evaluate", "--run", run_folder, "--data", source, "--allow-overlap")
    assert code == 0, err
    assert len(ids) in {facts.questions for facts in read_record(run_folder).data.values()}


@pytest.mark.parametrize("command", ["predict", "evaluate", "stats", "report", "compare", "show"])
def test_help_names_every_kind_of_source(qa_arch, command):
    code, out, _ = qa_arch(command, "--help")
    assert code == 0
    assert usage().replace(" ", "") in "".join(out.split())

"""``qa-arch suite``: systems on several sets; only scores missing from the records are computed."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml

from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.files import write_json
from qa_arch.records import (
    FORCED,
    ORACLE,
    questions_folder,
    read_questions,
    read_record,
    read_scored,
    write_questions,
    write_record,
)


@pytest.fixture
def suite(tmp_path):
    """A suite of two sets: one with unanswerable questions, one without, scored as German."""
    mixed = generate(3, 4, 1, "dev")
    spans = question_set("spans", [example for example in mixed.examples if example.answers], "1.1")
    write_json(tmp_path / "mixed.json", write(mixed))
    write_json(tmp_path / "spans.json", write(spans))
    sets = {
        "mixed": {"data": str(tmp_path / "mixed.json"), "unit": "passage"},
        "german": {"data": f"{tmp_path}/spans.json", "language": "de", "published": {"people": 91.0}},
    }
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump({"sets": sets}, sort_keys=False))
    return file


@pytest.mark.parametrize(("size", "unit"), [(1, "question"), (2, "passage")])
def test_set_without_intervals_is_named(tmp_path, qa_arch, size, unit):
    first = generate(3, 4, 1, "dev").examples[0]
    examples = [replace(first, id=str(number)) for number in range(size)]
    write_json(tmp_path / "tiny.json", write(question_set("tiny", examples, "2.0")))
    write_json(tmp_path / "answers.json", {example.id: "wrong" for example in examples})
    arguments = ("--predictions", tmp_path / "answers.json", "--data", tmp_path / "tiny.json", "--name", "x")
    assert qa_arch("adopt", *arguments, "--folder", tmp_path / "x")[0] == 0
    sets = {"small": {"data": str(tmp_path / "tiny.json"), "unit": unit}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"sets": sets}))
    code, _, err = qa_arch("suite", tmp_path / "mine.yaml", tmp_path / "x")
    assert (code, f"small: an interval over {unit}s needs several" in err) == (5, True), err


@pytest.fixture
def adopted(suite, tmp_path, qa_arch):
    """An adopted system with correct answers to the German set only."""
    source = f"{tmp_path}/spans.json"
    texts = {example.id: example.answers[0].text for example in open_passages(source).examples}
    (tmp_path / "right.json").write_text(json.dumps(texts))
    arguments = (
        "--predictions",
        tmp_path / "right.json",
        "--data",
        source,
        "--language",
        "de",
        "--name",
        "right",
    )
    code, _, err = qa_arch("adopt", *arguments, "--folder", tmp_path / "right")
    assert code == 0, err
    return tmp_path / "right"


def test_trained_run_and_adopted_system_on_two_sets(suite, adopted, run_folder, qa_arch, caplog):
    """Existing scores are reused; a set that shares articles with the training data is left out."""
    code, out, err = qa_arch("suite", suite, run_folder, adopted, "--baseline", "right", "--json")
    assert code == 0, err
    grid, details = json.loads(out)
    by_model = {row["model"]: row for row in grid["rows"]}
    record = read_record(run_folder)
    splits = {record.facts(split).name: split for split in record.scores}
    german, mixed = splits["spans"], splits["mixed"]
    assert by_model["bert"]["german_mean"] == pytest.approx(record.point(german, FORCED).f1, abs=1e-6)
    assert by_model["bert"]["mixed_mean"] == pytest.approx(record.compared_point(mixed).f1, abs=1e-6)
    assert by_model["right"]["german_mean"] == 100
    assert "mixed_mean" not in by_model["right"]
    assert by_model["bert"]["own_dev_mean"] == pytest.approx(record.compared_point("dev").f1, abs=1e-6)
    assert "own_dev_mean" not in by_model["right"]
    assert by_model["people (published)"]["german_mean"] == 91
    assert any("by the rules of language de" in note for note in grid["notes"])
    rows = {(row["set"], row["model"]): row for row in details["rows"]}
    assert set(rows) == {("mixed", "bert"), ("german", "bert"), ("german", "right")}
    lost = record.point(mixed, ORACLE).f1 - record.compared_point(mixed).f1
    assert rows["mixed", "bert"]["threshold_loss"] == pytest.approx(lost, abs=1e-6)
    drop = record.point(german, FORCED).f1 - record.point("dev", FORCED).metric("HasAns_f1")
    assert rows["german", "bert"]["from_dev"] == pytest.approx(drop, abs=1e-6)
    difference = by_model["bert"]["german_mean"] - 100
    assert rows["german", "bert"]["delta"] == pytest.approx(difference, abs=1e-5)
    assert any("passages or articles" in note for note in details["notes"])
    content = yaml.safe_load(suite.read_text())
    content["sets"]["seen"] = {"data": "synthetic:train"}
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    (run_folder / "model").rename(run_folder / "elsewhere")
    caplog.clear()
    code, out, _ = qa_arch("suite", suite, run_folder, adopted, "--baseline", "right", "--json")
    assert (code, json.loads(out)[1]["rows"]) == (0, details["rows"])
    scored, left_out = caplog.messages
    assert scored == f"scoring {run_folder} on seen"
    assert left_out.startswith(f"left out: {run_folder} on seen: ")
    assert "training and calibration data" in left_out


def test_a_set_that_a_run_was_fitted_on_is_no_test_set(run_folder, qa_arch, tmp_path):
    record = read_record(run_folder)
    assert "calibration" in record.scores
    sets = {"fitted": {"data": record.config["data"]["calibration"]}}
    (tmp_path / "fitted.yaml").write_text(yaml.safe_dump({"sets": sets}))
    code, _, err = qa_arch("suite", tmp_path / "fitted.yaml", run_folder, "--scored-only")
    assert (code, "none of the runs was scored on any set" in err) == (5, True), err


@pytest.mark.parametrize(("change", "message"), [({"metric_version": "2"}, "metric 2"), ({}, "order")])
def test_scores_of_other_metrics_or_orders_are_not_tested(suite, run_folder, qa_arch, change, message):
    assert qa_arch("suite", suite, run_folder)[0] == 0
    record, other = read_record(run_folder), run_folder.with_name("other")
    shutil.copytree(run_folder, other)
    scores = {split: {k: replace(p, **change) for k, p in of.items()} for split, of in record.scores.items()}
    write_record(other, replace(record, model="other", scores=scores, rows={}))
    for folder in (other, *(other / "sets").iterdir()):
        columns = read_questions(folder)
        write_questions(
            folder, {key: values[::-1] for key, values in columns.items()} if not change else columns
        )
    code, _, err = qa_arch("suite", suite, run_folder, other, "--scored-only")
    assert (code, message in err) == (5, True), err


def test_set_with_rows_of_another_scoring_is_scored_again(suite, run_folder, qa_arch):
    """As ``suite`` leaves it if it is killed between rows and record."""
    assert qa_arch("suite", suite, run_folder)[0] == 0
    record = read_scored(run_folder)
    (split,) = (split for split in record.scores if record.facts(split).name == "mixed")
    columns = read_questions(folder := questions_folder(run_folder, split))
    write_questions(folder, columns | {"f1": columns["f1"][::-1]})
    assert qa_arch("suite", suite, run_folder, "--scored-only")[0] == 5
    assert qa_arch("suite", suite, run_folder)[0] == 0
    assert read_scored(run_folder).scores == record.scores


def test_consistency_on_contrast_sets(tmp_path, qa_arch, caplog):
    """a and its contrasts are right, b's contrast is wrong: 1 of 2 groups, 50%.

    c has no contrasts, d's original is not in the set, and e is faulty.
    """
    context = "Ada Stone built the mill."
    offset = {"a": 0, "a1": 0, "a2": 0, "b": 0, "b1": 0, "c": 0, "d": 0, "e": 1}
    originals = {"a1": "a", "a2": "a", "b1": "b", "d": "x"}
    records = [
        {"id": id_, "title": id_, "context": context, "question": "Who?", "original_id": originals.get(id_)}
        | {"answers": {"text": ["Ada Stone"], "answer_start": [start]}}
        for id_, start in offset.items()
    ]
    data, answers = tmp_path / "set.jsonl", tmp_path / "answers.json"
    data.write_text("\n".join(map(json.dumps, records)))
    answers.write_text(json.dumps({id_: "the mill" if id_ in ("b1", "c") else "Ada Stone" for id_ in offset}))
    file = tmp_path / "contrast.yaml"
    file.write_text(yaml.safe_dump({"sets": {"small": {"data": str(data), "on_error": "skip"}}}))
    system = ("--predictions", answers, "--data", data, "--name", "x", "--folder", tmp_path / "x")
    code, _, err = qa_arch("adopt", *system, "--on-error", "skip")
    assert (code, caplog.text.count("left out: ")) == (0, 1), err
    for show in (("show", tmp_path / "x"), ("report", tmp_path / "x", "-o", tmp_path / "report.html")):
        code, _, err = qa_arch(*show, "--data", data)
        assert (code, "not used" in err) == (0, False), err
    code, out, err = qa_arch("suite", file, tmp_path / "x", "--json")
    assert code == 0, err
    grid, details = json.loads(out)
    assert details["rows"][0]["consistency"] == 50
    assert any("consistency" in note for note in details["notes"])
    assert "small: 7 questions, faulty records left out: 1" in grid["notes"][1]


def test_faulty_records_are_skipped_when_scoring(suite, run_folder, tmp_path, qa_arch):
    content = json.loads((tmp_path / "spans.json").read_text())
    content["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1
    write_json(tmp_path / "spans.json", content)
    sets = {"spans": {"data": f"{tmp_path}/spans.json", "on_error": "skip"}}
    suite.write_text(yaml.safe_dump({"sets": sets}))
    code, out, err = qa_arch("suite", suite, run_folder, "--json")
    assert code == 0, err
    (row,) = json.loads(out)[1]["rows"]
    assert row["consistency"] is None
    assert not any("consistency" in note for note in json.loads(out)[1]["notes"])


def test_scored_only_scores_nothing(suite, adopted, run_folder, qa_arch):
    code, out, _ = qa_arch("suite", suite, run_folder, adopted, "--scored-only", "--json")
    assert code == 0
    assert [row["model"] for row in json.loads(out)[1]["rows"]] == ["right"]
    assert set(read_record(run_folder).scores) == {"calibration", "dev"}
    code, _, err = qa_arch("suite", suite, run_folder, "--scored-only")
    assert code == 5
    assert "none of the runs was scored on any set" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sets: {a: {dta: x}}", "unknown setting 'sets.a.dta' (did you mean 'sets.a.data'?)"),
        ("sets: {a: {data: x, unit: row}}", "sets.a.unit: 'row' is not a choice"),
        ("sets: {}", "has no sets"),
        ("sets: [", "is not valid YAML: line 1, column 8: "),
    ],
)
def test_invalid_suite_is_refused(tmp_path, qa_arch, content, message):
    (tmp_path / "s.yaml").write_text(content)
    code, _, err = qa_arch("suite", tmp_path / "s.yaml", tmp_path)
    assert code == 2
    assert f"{tmp_path}/s.yaml" in err
    assert message in err

"""Classes of questions from the command line: trained, written to a file, an axis of show and report."""

from __future__ import annotations

import json

import pytest

from qa_arch.cli.main import main
from qa_arch.data.synthetic import named
from qa_arch.extras.selection.sets import CLASSES


@pytest.fixture(scope="module")
def classifying(tmp_path_factory):
    """A finished run on a few of the generated questions."""
    runs = tmp_path_factory.mktemp("classifying")
    small = ["debug=fast", "data=question_types", "model.train_vectors=true", "model.hidden=6"]
    assert main(["train", "model=question_types", *small, f"runs_dir={runs}", "trainer.progress=false"]) == 0
    (folder,) = (runs / "debug").glob("question_types-*")
    return folder


@pytest.fixture(scope="module")
def typed(classifying, tmp_path_factory):
    path = tmp_path_factory.mktemp("typed") / "types.json"
    assert main(["types", str(classifying), "--data", "synthetic:dev", "--out", str(path)]) == 0
    return path


def test_the_record_tells_main_and_sub_classes(classifying, read_json, qa_arch):
    record = read_json(classifying / "run.json")
    point = record["scores"]["dev"]["ranked"]["metrics"]
    assert 0 <= point["accuracy"] <= point["main_accuracy"] <= 100
    assert set(record["references"]["dev"]) == {"random-order", "rules"}
    assert record["references"]["dev"]["rules"]["metrics"]["main_accuracy"] > 60
    assert record["data"]["dev"]["candidates"] == 50
    code, out, _ = qa_arch("tables", classifying, "--format", "markdown")
    assert code == 0
    assert "| model | top-1 | top-1, main class | MRR |" in out


def test_show_tells_what_a_selecting_run_is_scored_by(classifying, read_json, qa_arch):
    _, out, _ = qa_arch("show", classifying, "--json")
    point = read_json(classifying / "run.json")["scores"]["dev"]["ranked"]["metrics"]
    shown = json.loads(out)
    row = next(row for row in shown["scores"] if row["model"] == "dev")
    assert (row["accuracy"], row["main_accuracy"], row["mrr"]) == (
        point["accuracy"],
        point["main_accuracy"],
        point["mrr"],
    )
    assert shown["facts"]["run"]["dev set"] == "300 questions, 50.0 candidates each"
    assert not any(key.startswith(("encoder", "decode")) for key in shown["facts"]["settings"])
    screen = qa_arch("show", classifying)[1]
    assert "top-1, main class" in screen
    assert "SQuAD" not in screen


def test_other_questions_are_scored(classifying, tmp_path, qa_arch):
    (tmp_path / "TREC_10.label").write_text("HUM:ind Who built the mill ?\nNUM:date When ?\n")
    code, out, err = qa_arch(
        "evaluate", "--json", "--run", classifying, "--data", f"types:{tmp_path}/TREC_10.label"
    )
    assert code == 0, err
    assert json.loads(out)["ranked"]["questions"] == 2


def test_every_question_has_a_class(typed, read_json):
    classes = read_json(typed)
    assert list(classes) == [example.id for example in named("dev").examples]
    assert set(classes.values()) <= set(CLASSES)


def test_show_splits_scores_and_errors_by_class(trained, typed, tmp_path, qa_arch, read_json):
    ids = list(read_json(typed))
    halves = {id_: "NUM:date" if n < 100 else "HUM:ind" for n, id_ in enumerate(ids[:500])}
    (tmp_path / "halves.json").write_text(json.dumps(halves))
    code, out, err = qa_arch("show", trained, "--types", tmp_path / "halves.json", "--json")
    assert code == 0, err
    shown = json.loads(out)
    rows = {row["kind"]: row for row in shown["types"]}
    assert {kind: row["questions"] for kind, row in rows.items()} == {
        "HUM": 400,
        "NUM": 100,
        "not classified": 100,
    }
    assert shown["types"][0]["kind"] == "HUM"
    for name, count in shown["errors"].items():
        share = sum(row["exact" if name == "right" else name] * row["questions"] for row in rows.values())
        assert share / 100 == pytest.approx(count)
    assert "by predicted class" in qa_arch("show", trained, "--types", typed)[1]


def test_report_has_both_as_breakdowns(trained, typed):
    from qa_arch.metrics.prediction_files import read_types
    from qa_arch.records import find_runs
    from qa_arch.results.report.collect import collect

    runs = find_runs([trained])
    types = read_types(typed)
    (dev,) = [page_set for page_set in collect(runs, types=types).value["sets"] if page_set["split"] == "dev"]
    breakdowns = {facet["key"]: facet for facet in dev["facets"]}
    assert set(breakdowns["class"]["names"]) == {label.partition(":")[0] for label in types.values()}
    assert set(breakdowns["sub"]["names"]) <= {*types.values(), "other"}
    assert sum(breakdowns["class"]["count"]) == 600
    assert "class" not in {f["key"] for page_set in collect(runs).value["sets"] for f in page_set["facets"]}


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ('{"nobody": "NUM:date"}', 5, "none of those"),
        ("{}", 4, "holds no classes"),
        ('{"a": 3}', 4, "the class is the number 3"),
    ],
)
@pytest.mark.parametrize("command", ["show", "report"])
def test_classes_of_other_questions(command, content, code, message, trained, tmp_path, qa_arch):
    (tmp_path / "types.json").write_text(content)
    out = ("-o", tmp_path / "page.html") if command == "report" else ()
    result = qa_arch(command, trained, "--types", tmp_path / "types.json", *out)
    assert result[0] == code
    assert message in result[2]


def test_what_does_not_belong_together_is_refused(classifying, trained, tmp_path, qa_arch):
    out = tmp_path / "x.json"
    code, _, err = qa_arch("types", trained, "--data", "synthetic:dev", "--out", out)
    assert (code, "answers with spans" in err) == (5, True)
    (tmp_path / "pairs.tsv").write_text("Who?\tWhen?\n")
    code, _, err = qa_arch("paraphrase", classifying, "--pairs", tmp_path / "pairs.tsv")
    assert (code, "task classification" in err) == (5, True)
    fast = ["debug=fast", f"runs_dir={tmp_path}", "model.train_vectors=true"]
    code, _, err = qa_arch("train", "model=question_types", *fast)
    assert (code, "no classes; use model=bert with it, or data=question_types" in err) == (4, True)
    code, _, err = qa_arch("train", "model=qa_lstm/a", "data=question_types", "glove=none", *fast[1:])
    assert (code, "use model=question_types" in err) == (4, True)
    code, _, err = qa_arch("train", "model=bert", "debug=fast", "data=question_types", f"runs_dir={tmp_path}")
    assert (code, "no passages; use model=question_types with it, or data=squad2" in err) == (4, True)

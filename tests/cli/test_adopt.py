"""``qa-arch adopt``: turn predictions in any format into a run for tables, tests and reports."""

import json
import math

import numpy as np
import pytest
from reports import page_figures, page_parts

from qa_arch.data.answer_files import read_answers
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.errors import DataError
from qa_arch.evaluation import recorded_calibration
from qa_arch.models.checkpoint_files import run_config
from qa_arch.records import CALIBRATION, DEV, GIVEN, ORACLE, questions_folder, read_questions, read_record
from qa_arch.types import Example, Gold

MILL, INN = "The mill burnt in 1871, and again in 1902.", "Ada keeps the inn."
QUESTIONS = question_set(
    "made",
    [
        Example("a", "When did it burn again?", MILL, "Mill", (Gold("1902", 37),)),
        Example("b", "Who?", MILL, "Mill"),
        Example("c", "Who?", INN, "Inn", (Gold("Ada", 0),)),
    ],
    "2.0",
)
TEXTS, ODDS = {"a": "1902", "b": "", "c": "Eve"}, {"a": 0.25, "b": 0.75, "c": 0.5}


def lines(*records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


HARNESS = [
    {
        "doc_id": number,
        "doc": {"id": id_, "question": "?"},
        "resps": [["no"], [["-9", "False"]]],
        "filtered_resps": [f" {TEXTS[id_] or 'Unanswerable.'}", [str(math.log(ODDS[id_])), "False"]],
    }
    for number, id_ in enumerate(TEXTS)
]
FOR_METRIC = [
    {"id": id_, "prediction_text": text, "no_answer_probability": ODDS[id_]} for id_, text in TEXTS.items()
]
PREDICTED = [{"id": id_, "text": text, "null_odds": ODDS[id_]} for id_, text in TEXTS.items()]
PROMPTED = [{"id": id_, "answer": text, "no_answer_probability": ODDS[id_]} for id_, text in TEXTS.items()]


@pytest.mark.parametrize(
    ("content", "form", "odds"),
    [
        (json.dumps(TEXTS), "official", None),
        (lines(*PREDICTED), "JSON lines", ODDS),
        (lines(*PROMPTED), "JSON lines", ODDS),
        (lines(PREDICTED[0], {"id": "b", "text": ""}, PREDICTED[2]), "JSON lines", {**ODDS, "b": math.inf}),
        (json.dumps(FOR_METRIC), "predictions for evaluate's metrics", ODDS),
        (lines(*HARNESS), "lm-evaluation-harness", ODDS),
        ('id,answer\na,1902\nb,\nc,"Eve"\n', "CSV", None),
        ("id;null_odds;answer\na;0.25;1902\nb;;\nc;5e-1;Eve\n", "CSV", {**ODDS, "b": math.inf}),
    ],
)
def test_each_format_is_recognised(tmp_path, content, form, odds):
    (tmp_path / "answers").write_text(content)
    answers = read_answers(tmp_path / "answers", QUESTIONS)
    assert answers.texts == TEXTS
    assert answers.form.startswith(form)
    assert answers.null_odds == (None if odds is None else pytest.approx(odds))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": "x"}', "2 ids (b, c) without an answer; complete it, or use --missing empty"),
        ('{"a": "x", "a": "y", "b": "", "c": ""}', "a is answered twice"),
        (lines(*PREDICTED, PREDICTED[0]), "line 4: a is answered twice"),
        (lines(PREDICTED[0], {"id": "b", "error": "too long"}), "line 2: text: is missing"),
        (
            lines(*PREDICTED[:2], {"id": "c", "text": "Eve"}),
            "1 id (c) with an answer but no probability or null odds; add one for each",
        ),
        (lines({**PREDICTED[0], "null_odds": math.nan}), "null_odds: 'nan' is not a number"),
        (lines({**PREDICTED[0], "null_odds": True}), "null_odds: has the wrong type"),
        (lines({**HARNESS[0], "filtered_resps": ["x", ["nan"]]}), "filtered_resps: 'nan' is not a log-prob"),
        (
            json.dumps({"a": [{"answer": "1902", "score": 1}]}),
            "a: the prediction is a list ([{'answer': '1902'",
        ),
        ("question,answer\n?,x\n", "has no column id, but 'question, answer'; expected official predictions"),
        ("id,answer\na,Rome, Italy\n", "line 2: more cells than columns; quote cells that contain a comma"),
        ('{"a": "1902 \\ud83d"}', "object: the answer to a contains a lone surrogate at character 5"),
        ("id,answer,null_odds\na,1902,low\n", "line 2: null_odds: 'low' is not a number; correct it"),
        (lines({**PREDICTED[0], "answer": "1902"}), "record 1: text and answer: either could be the answer"),
    ],
)
def test_invalid_answers_are_rejected(tmp_path, content, message):
    (tmp_path / "answers").write_text(content)
    with pytest.raises(DataError) as error:
        read_answers(tmp_path / "answers", QUESTIONS)
    assert message in str(error.value)
    assert str(tmp_path / "answers") in str(error.value)


def test_extra_ids_are_ignored_unless_missing_answers_are_allowed(tmp_path):
    (tmp_path / "answers").write_text(json.dumps({**TEXTS, "z": "y"}))
    answers = read_answers(tmp_path / "answers", QUESTIONS)
    assert (answers.texts, answers.others) == (TEXTS, 1)
    with pytest.raises(DataError, match=r"1 id \(z\) not in the data"):
        read_answers(tmp_path / "answers", QUESTIONS, empty=True)


def test_missing_empty_and_foreign_answers_are_counted(tmp_path, monkeypatch, qa_arch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.json").write_text(json.dumps(write(QUESTIONS)))
    (tmp_path / "p.json").write_text(json.dumps({"a": "1902", "c": "Eve"}))
    command = ("adopt", "--predictions", "p.json", "--data", "data.json", "--name", "Eve's (2)", "--seed", 4)
    code, out, _ = qa_arch(*command, "--missing", "empty")
    folder = tmp_path / "runs/adopted/Eve_s_2-s4"
    assert (code, out.startswith("EM 66.67 F1 66.67: ")) == (0, True)
    assert "1 answers not in passage; 1 questions scored as empty" in out
    assert set(read_record(folder).data[DEV].details.values()) == {1}
    assert (read_questions(folder)["start"], read_questions(folder)["end"]) == ([37, -1, -1], [41, -1, -1])
    assert "1 answers not in passage" in qa_arch("show", folder)[1]
    (tmp_path / "p.json").write_text(json.dumps({**TEXTS, "b": "1871"}))
    assert "holds another record" in qa_arch(*command)[2]
    (tmp_path / "p.json").write_text(json.dumps(dict.fromkeys(TEXTS, "")))
    assert qa_arch(*command, "--folder", "empty")[0] == 0
    assert '100.0% of the answers are "no answer", which is right for 33.3% of the questions' in caplog.text


def test_adopted_predictions_score_like_their_run(trained, tmp_path, monkeypatch, qa_arch):
    """With and without null odds. Commands that need weights refuse the copy."""
    monkeypatch.chdir(tmp_path)
    data = ("--data", "synthetic:dev")
    files = ("--predictions", trained / "predictions.json", *data)
    odds = ("--na-prob", trained / "null_odds.json")
    assert qa_arch("adopt", *files, *odds, "--name", "copy", "--folder", "runs/copy")[0] == 0
    assert qa_arch("adopt", *files, "--name", "silent", "--folder", "runs/silent")[0] == 0
    own, copy = read_record(trained), read_record("runs/copy")
    compared = own.compared_point(DEV)
    assert set(copy.scores[DEV]) == {GIVEN}  # adopted files lack the best span where the answer is empty
    metrics = copy.scores[DEV][GIVEN].metrics
    assert {key: compared.metrics[key] for key in metrics if "best_" not in key and "_ap" not in key} == {
        key: value for key, value in metrics.items() if "best_" not in key and "_ap" not in key
    }

    def rows(*command) -> list[dict]:
        code, out, err = qa_arch(*command, "--json")
        assert code == 0, err
        return json.loads(out)[0]["rows"]

    differences = rows("compare", trained, "runs/copy")
    assert {row["delta"] for row in differences} == {0.0}
    assert "AUROC, answerable" in {row["name"] for row in differences}
    assert {row["name"] for row in rows("compare", trained, "runs/silent")}.isdisjoint({"AUROC, answerable"})
    table = rows("tables", trained, "runs", "--columns", "model,f1,auroc,forced_f1")
    mine, copied, silent = (next(r for r in table if r["model"] == m) for m in ("bert", "copy", "silent"))
    assert copied["f1"] == silent["f1"] == mine["f1"]
    assert (copied["auroc"], silent.get("auroc"), copied["forced_f1"]) == (mine["auroc"], None, None)
    shown = json.loads(qa_arch("show", "runs/copy", *data, "--json")[1])
    assert sum(shown["errors"].values()) == 600
    assert shown["errors"]["answerable, not answered"] > 0
    assert qa_arch("report", trained, "runs", *data, "-o", "r.html", "--baseline", "bert")[0] == 0
    _, packs = page_parts(tmp_path / "r.html")
    curves = {trace["name"] for trace in page_figures(tmp_path / "r.html")["risk"]["data"]}
    assert len(curves) == 2, "the run without null odds has no curve"
    assert "0-run2" in packs
    for command in (
        *("ask {} --question Who --context x", "serve {}", "export {} --to onnx --out o"),
        *("evaluate --run {} --data synthetic:dev", "train --config-from {} --folder x"),
    ):
        code, out, err = qa_arch(*command.format("runs/copy").split())
        assert (code, out, err.count("\n")) == (5, "", 1), command
        assert ": adopted from a prediction file: it has no weights" in err


@pytest.fixture
def adopt_arguments(trained, tmp_path):
    """Arguments that adopt the best spans of a trained run, written to files, with calibration."""
    record = read_record(trained)
    calibration = recorded_calibration(record, run_config(record.config))
    sets = {CALIBRATION: calibration, DEV: open_passages("synthetic:dev")}
    for split, questions in sets.items():
        rows = read_questions(questions_folder(trained, split))
        passages = {example.id: example.context for example in questions.examples}
        columns = zip(*(rows[name] for name in ("id", "start", "end", "null_odds")), strict=True)
        predicted = [{"id": i, "text": passages[i][a:b], "null_odds": odds} for i, a, b, odds in columns]
        (tmp_path / f"{split}.jsonl").write_text(lines(*predicted))
        (tmp_path / f"{split}.json").write_text(json.dumps(write(questions)))
    names = ("predictions", "dev.jsonl", "data", "dev.json", "calibration", "calibration.json")
    names += ("calibration-predictions", "calibration.jsonl")
    files = [f"--{name}" if "." not in name else tmp_path / name for name in names]
    return ["adopt", "--name", "copy", *files]


def test_adopted_null_odds_are_calibrated_like_those_of_a_model(trained, adopt_arguments, tmp_path, qa_arch):
    code, out, err = qa_arch(*adopt_arguments, "--folder", tmp_path / "copy")
    assert code == 0, err
    own, copy = read_record(trained), read_record(tmp_path / "copy")
    assert f"null threshold {own.null_threshold:.4g}, fitted on" in out
    assert copy.threshold == own.threshold
    assert copy.answerability.slope == pytest.approx(own.answerability.slope)
    for split in (CALIBRATION, DEV):
        assert list(copy.scores[split]) == list(own.scores[split])
        for name, point in copy.scores[split].items():
            assert point.threshold == own.point(split, name).threshold
            assert point.metrics == pytest.approx(own.point(split, name).metrics)
        rows, model = (read_questions(questions_folder(run, split)) for run in (tmp_path / "copy", trained))
        assert rows["exact"] == model["exact"]
        margin = np.abs(np.array(rows["null_odds"]) - copy.null_threshold) / copy.temperature
        assert rows["confidence"] == pytest.approx(1 / (1 + np.exp(-margin)), abs=1e-4)  # two candidates
    assert copy.point(DEV, ORACLE).f1 >= copy.compared_point(DEV).f1
    assert copy.facts(CALIBRATION).fingerprint == own.facts(CALIBRATION).fingerprint
    official = json.loads((tmp_path / "copy/predictions.json").read_text())
    assert official == json.loads((trained / "predictions.json").read_text())
    table = json.loads(qa_arch("tables", tmp_path / "copy", "--json")[1])
    assert any("null threshold fitted on calibration" in note for note in table[0]["notes"])


def test_threshold_does_not_depend_on_the_scored_set(adopt_arguments, tmp_path, qa_arch):
    assert qa_arch(*adopt_arguments, "--folder", tmp_path / "a")[0] == 0
    moved = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    shifted = [{**answer, "null_odds": answer["null_odds"] + 3} for answer in moved]
    (tmp_path / "dev.jsonl").write_text(lines({**shifted[0], "text": ""}, *shifted[1:]))
    code, out, _ = qa_arch(*adopt_arguments, "--folder", tmp_path / "b")
    assert (code, "1 empty answer, which abstain at any threshold" in out) == (0, True)
    a, b = read_record(tmp_path / "a"), read_record(tmp_path / "b")
    assert (b.threshold, b.confidence) == (a.threshold, a.confidence)
    assert b.point(DEV, ORACLE).threshold == pytest.approx(a.point(DEV, ORACLE).threshold + 3)
    assert read_questions(tmp_path / "b")["null_odds"][0] == math.inf


def test_set_without_unanswerable_questions_is_always_answered(adopt_arguments, tmp_path, qa_arch):
    mixed = open_passages(str(tmp_path / "dev.json"))
    spans = question_set("dev", [example for example in mixed.examples if example.answers], "1.1")
    (tmp_path / "dev.json").write_text(json.dumps(write(spans)))
    assert qa_arch(*adopt_arguments, "--folder", tmp_path / "copy")[0] == 0
    f1 = read_record(tmp_path / "copy").compared_point(DEV).f1
    assert 100 * np.mean(read_questions(tmp_path / "copy")["f1"]) == pytest.approx(f1)
    assert all(json.loads((tmp_path / "copy/predictions.json").read_text()).values())

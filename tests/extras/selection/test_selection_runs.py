"""Selection and classification runs from the command line: training, scoring, refusals, and tables."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from fresh import run_calls

import qa_arch as package
from qa_arch.cli.main import main
from qa_arch.data.answer_files import read_types
from qa_arch.data.synthetic import named
from qa_arch.errors import RunError
from qa_arch.extras.selection.sets import CLASSES
from qa_arch.records import find_runs, parse_record, read_record
from qa_arch.results.columns import runs_table
from qa_arch.results.experiments import experiment_tables
from qa_arch.results.report import scored_sets
from qa_arch.results.tables import markdown
from tests.results.conftest import flat_record, nested, script


@pytest.fixture(scope="module")
def train(tmp_path_factory, feature_cache):
    """``train(model, *settings)``: folder of a finished run."""

    def build(model: str, *settings: str):
        folder = tmp_path_factory.mktemp("run") / "run"
        common = ["debug=fast", "trainer.progress=false", "model.hidden=6", "--folder", str(folder)]
        assert main(["train", f"model={model}", *settings, *common]) == 0
        return folder

    return build


@pytest.fixture(scope="module")
def selecting(train):
    """A finished run of model H on the embedded data."""
    return train("qa_lstm/h")


@pytest.fixture(scope="module")
def classifying(train):
    """A finished run on a few of the generated questions."""
    return train("question_types", "data=question_types")


@pytest.fixture(scope="module")
def typed(classifying, tmp_path_factory):
    path = tmp_path_factory.mktemp("typed") / "types.json"
    assert main(["types", str(classifying), "--data", "synthetic:dev", "--out", str(path)]) == 0
    return path


def test_selection_record_has_ranks_and_references(selecting, read_json):
    record = read_json(selecting / "run.json")
    point = record["scores"]["dev"]["ranked"]
    scores = point["metrics"]
    assert point["protocol"] == record["data"]["dev"]["protocol"] == "selection"
    assert 0 < scores["accuracy"] <= scores["mrr"] <= 100
    references = record["references"]["dev"]
    assert set(references) == {"random-order", "word-overlap"}
    assert references["word-overlap"]["metrics"]["mrr"] > references["random-order"]["metrics"]["mrr"]
    assert record["threshold"] is None
    assert record["epochs"][0]["train_loss"] > 0


def test_classification_record_has_main_and_sub_classes(classifying, read_json, qa_arch):
    record = read_json(classifying / "run.json")
    point = record["scores"]["dev"]["ranked"]["metrics"]
    assert 0 <= point["accuracy"] <= point["main_accuracy"] <= 100
    assert set(record["references"]["dev"]) == {"random-order", "rules"}
    assert record["references"]["dev"]["rules"]["metrics"]["main_accuracy"] > 60
    assert record["data"]["dev"]["candidates"] == 50
    out = qa_arch("show", classifying, "--json")[1]
    shown = json.loads(out)
    row = next(row for row in shown["scores"] if row["split"] == "dev")
    assert {name: row[name] for name in ("accuracy", "main_accuracy", "mrr")}.items() <= point.items()
    assert shown["facts"]["run"]["dev set"] == "300 questions, 50.0 candidates each"
    assert not any(key.startswith(("encoder", "decode")) for key in shown["facts"]["settings"])
    shown = qa_arch("show", classifying)[1]
    assert not any(word in shown for word in ("SQuAD", "encoder", "null threshold"))


def test_tasks_do_not_share_a_table(qa_arch, selecting, trained):
    code, out, _ = qa_arch("tables", selecting, trained, "--format", "json")
    assert code == 0
    models = [[row["model"] for row in table["rows"]] for table in json.loads(out)]
    assert len(models) == 2
    assert not any({"qa_lstm_h", "bert"} <= set(names) for names in models)


SELECTED, CLASSIFIED, SPANS, OUT, FILE = "SELECTED", "CLASSIFIED", "SPANS", "OUT", "FILE"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ask", SELECTED, "--question", "Who?", "--context", "Ada."], "selects answers"),
        (["predict", SELECTED, "--data", "synthetic:dev", "--out", OUT], "selects answers"),
        (["selection", "evaluate", SELECTED, "--data", "insuranceqa:nowhere:dev"], "cannot be read"),
        (["selection", "evaluate", SPANS, "--data", "synthetic:dev"], "finds spans; score it with"),
        (["selection", "evaluate", SELECTED, "--experiments", OUT], "--experiments is for --final"),
        (["evaluate", "--run", SELECTED], "score it: qa-arch selection evaluate"),
        pytest.param(
            ["evaluate", "--run", SELECTED, "--text-metrics"],
            "predictions.json",
            marks=pytest.mark.skipif(
                find_spec("qa_arch.extras.text_metrics") is None, reason="another extra"
            ),
        ),
        (["train", "model=bert", "data=question_types"], "not passages; use model=question_types"),
        (
            ["train", "model=question_types", "data=question_types", "model.classes=6"],
            "model.classes: must be 50, not 6",
        ),
        (["types", SPANS, "--data", "synthetic:dev", "--out", OUT], "does not classify questions"),
        (["types", SELECTED, "--data", "synthetic:dev", "--out", OUT], "does not classify questions"),
        (
            ["paraphrase", CLASSIFIED, "--pairs", OUT],
            "does not compare questions; name a run of model=qa_lst",
        ),
        (["paraphrase", SPANS, "--pairs", OUT], "does not compare questions"),
        (
            ["paraphrase", SELECTED, "--pairs", OUT, "--threshold", "2"],
            "--threshold 2: a cosine is from -1 to 1",
        ),
        (["types", CLASSIFIED, "--data", FILE, "--out", FILE], "overwrite what is read; name another file"),
        (["paraphrase", SELECTED, "--pairs", FILE, "--out", FILE], "overwrite what is read"),
        (["selection", "evaluate", SELECTED, "--data", FILE, "--out", FILE], "overwrite what is read"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_incompatible_arguments_are_refused(
    qa_arch, selecting, classifying, trained, tmp_path, arguments, message
):
    (tmp_path / "file").write_text("Who?\tWho?\n")
    words = {SELECTED: selecting, CLASSIFIED: classifying, SPANS: trained, OUT: tmp_path / "out"}
    words[FILE] = tmp_path / "file"
    extra = ["debug=fast", f"runs_dir={tmp_path}"] if arguments[0] == "train" else []
    code, _, err = qa_arch(*arguments[:1], *extra, *(words.get(word, word) for word in arguments[1:]))
    assert code in (2, 4, 5)
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


def test_missing_run_is_reported_before_importing_torch(tmp_path):
    run = tmp_path / "none"
    calls = (
        ("types", run, "--data", "hub:some/set:validation", "--out", tmp_path / "t"),
        ("paraphrase", run, "--pairs", tmp_path / "pairs.tsv"),
    )
    for code, message, heavy in run_calls(*calls):
        assert (code, heavy, str(run) in message) == (5, [], True)


def test_predictor_ranks_candidates_and_compares_questions(selecting):
    predictor = package.load_predictor(selecting, device="cpu")
    candidates = ["It rains.", "Ada wrote the song in 1971.", "It rains."]
    ranking = predictor("Who wrote the song?", candidates)
    assert sorted(item.place for item in ranking) == [0, 1, 2]
    assert [item.score for item in ranking] == sorted((item.score for item in ranking), reverse=True)
    by_place = {item.place: item for item in ranking}
    assert by_place[0].score == pytest.approx(by_place[2].score, abs=1e-6)
    assert by_place[1].text == candidates[1]
    assert predictor(" ", candidates) == predictor("Who?", []) == []
    first, second = "Who wrote the song?", "When did the river rise in spring?"
    both = [predictor(a, [b])[0].score for a, b in ((first, second), (second, first))]
    assert predictor.similarity(first, second) == pytest.approx(sum(both) / 2, abs=1e-6)
    assert predictor.similarity(second, first) == pytest.approx(sum(both) / 2, abs=1e-6)
    assert predictor.similarity("", "Who?") == 0.0
    pairs = [(first, second), ("", second), (second, second), (second, first)]
    assert predictor.similarities(pairs) == pytest.approx([predictor.similarity(*pair) for pair in pairs])
    assert predictor.similarities([]) == []
    with pytest.raises(RunError, match="trained for task selection, not classification"):
        predictor.classify([first])


PAIRS = [
    ("Who wrote the song?", "When did the river rise in spring?"),
    ("When did the river rise in spring?", "Who wrote the song?"),
    ("Who wrote the song?", "Where is it?"),
]


@pytest.mark.parametrize("labels", [None, "100"])
def test_paraphrase_command_scores_labelled_pairs(selecting, qa_arch, tmp_path, labels):
    file, out = tmp_path / "pairs.tsv", tmp_path / "cosines.tsv"
    rows = [(*pair, label) for pair, label in zip(PAIRS, labels, strict=True)] if labels else PAIRS
    file.write_text("".join("\t".join(row) + "\n" for row in rows))
    code, printed, error = qa_arch("paraphrase", selecting, "--pairs", file, "--threshold", "0.9", "--json")
    assert code == 0, error
    pairs, *scored = json.loads(printed)
    cosines = [row["cosine"] for row in pairs["rows"]]
    predictor = package.load_predictor(selecting, device="cpu")
    assert cosines == pytest.approx([predictor.similarity(*pair) for pair in PAIRS], abs=1e-6)
    assert [(row["first"], row["second"]) for row in pairs["rows"]] == PAIRS
    assert len(scored) == bool(labels)
    if labels:
        (scores,) = scored[0]["rows"]
        assert (scores["pairs"], scores["paraphrases"], scores["threshold"]) == (3, 1, 0.9)
        assert scores["auroc"] in (25, 75), "a tie, and a win or a loss"
    code, printed, error = qa_arch("paraphrase", selecting, "--pairs", file, "--out", out)
    assert (code, "Who wrote" in printed) == (0, False), error
    assert ("oracle accuracy" if labels else "cosines.tsv: 3 pairs") in printed
    lines = [line.split("\t") for line in out.read_text().splitlines()]
    assert [(first, second) for _, first, second in lines] == PAIRS
    assert [float(line[0]) for line in lines] == pytest.approx(cosines, abs=1e-6)


def test_params_of_the_convolution_and_reader(qa_arch):
    code, out, err = qa_arch("params", "model=qa_lstm/d", "debug=fast", "--json")
    assert code == 0, err
    counts = json.loads(out)
    # 1000 filters over two words of 2 x 141 states, each with a bias
    assert counts["blocks"]["convolution"] == 1000 * (2 * 282 + 1)
    # two LSTMs with four gates and two biases each, over vectors of width 100
    assert counts["blocks"]["reader"] == 2 * 4 * (141 * (100 + 141) + 2 * 141)


@pytest.mark.slow
def test_insuranceqa_from_training_to_the_second_test_set(qa_arch, tmp_path, monkeypatch, read_json):
    """The command of experiments/table_2_2/README.md, on a made-up folder."""
    folder, run = tmp_path / "insuranceqa", tmp_path / "run"
    pools = {
        "dev": "2\tidx_2 idx_4\t1 2 3\n1\tidx_5\t1 4 2\n",
        "test1": "3\tidx_6 idx_1\t2 3 4\n",
        "test2": "4 2\tidx_3\t4 1 2\n1\tidx_4 idx_4\t3 2 1\n3\tidx_1\t3 2 1\n",
    }
    files = {
        "vocabulary": "".join(f"idx_{n}\t{word}\n" for n, word in enumerate("abcdef", 1)),
        "answers.label.token_idx": "1\tidx_1 idx_2\n2\tidx_3\n3\tidx_4 idx_5 idx_6\n4\tidx_2 idx_6\n",
        "question.train.token_idx.label": "idx_1 idx_3\t1 4\nidx_5\t2\nidx_6 idx_2\t3\n",
        **{f"question.{name}.label.token_idx.pool": text for name, text in pools.items()},
    }
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("INSURANCEQA", str(folder))
    monkeypatch.chdir(tmp_path)  # dev accesses are logged here
    small = ["model.hidden=4", "glove=none", "glove.dim=5", "selection.negatives=2", "optim.lr=1e-2"]
    quick = ["trainer=cpu", "trainer.epochs=2", "trainer.batch_size=2", "trainer.eval_batch_size=1"]
    quiet = ["trainer.progress=false", "logger=none", "data.open_dev=false"]
    command = ["model=qa_lstm/h", "data=insuranceqa", "name=table_2_2", *small, *quick, *quiet]
    code, out, err = qa_arch("train", "-m", *command, "seed=1,2", "--dry-run")
    assert (code, out.count(" run ")) == (0, 2), err
    assert qa_arch("train", *command, "--folder", run)[0] == 0
    record = read_json(run / "run.json")
    assert record["epochs"][0]["windows"] == 4, "a question with two right answers makes two pairs"
    assert {split: about["questions"] for split, about in record["data"].items()} == {
        "train": 3,
        "calibration": 2,
    }
    code, _, err = qa_arch("selection", "evaluate", run)
    assert (code, "holds its dev set out" in err) == (2, True), "sets without articles are held out too"
    log = tmp_path / "experiments" / "table_2_2" / "dev_openings.jsonl"
    log.parent.mkdir(parents=True)
    assert qa_arch("selection", "evaluate", run, "--final", "--experiments", log.parents[1])[0] == 0
    assert log.is_file()
    code, out, err = qa_arch("selection", "evaluate", run, "--data", f"insuranceqa:{folder}:test2")
    assert code == 0, err
    record = read_record(run)
    assert record.scores["test2"]["ranked"].metric("questions") == 3
    assert record.data["test2"].candidates == 3
    assert (run / "sets" / "test2" / "questions.parquet").is_file()


def test_types_command_classifies_every_question(typed, read_json):
    classes = read_json(typed)
    assert list(classes) == [example.id for example in named("dev").examples]
    assert set(classes.values()) <= set(CLASSES)


def test_report_has_main_and_sub_class_breakdowns(trained, typed):
    runs = find_runs([trained])
    types = read_types(typed)
    dev, *_ = scored_sets(runs, None, types, [])
    breakdowns = {breakdown.key: breakdown for breakdown in dev.breakdowns}
    assert set(breakdowns["class"].names) == {label.partition(":")[0] for label in types.values()}
    assert set(breakdowns["sub"].names) <= {*types.values(), "other"}
    assert len(breakdowns["class"].level) == 600
    assert all(
        facet.key != "class" for scored in scored_sets(runs, None, None, []) for facet in scored.breakdowns
    )


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ('{"nobody": "NUM:date"}', 5, "scored on none of its questions"),
        ("{}", 4, "holds no classes"),
        ('{"a": 3}', 4, r"the class is an integer \(3\)"),
    ],
)
def test_unusable_classes_are_refused(content, code, message, trained, tmp_path, qa_arch):
    (tmp_path / "types.json").write_text(content)
    result = qa_arch("report", trained, "--types", tmp_path / "types.json", "-o", tmp_path / "page.html")
    assert result[0] == code
    assert re.search(message, result[2])


@pytest.fixture
def make_selection():
    def make(model="qa_lstm_a", accuracy=40.0, **changes):
        point = {"accuracy": accuracy, "mrr": accuracy + 20, "questions": 50}
        point |= {"protocol": "selection", "metric_version": "selection-1"}
        split_facts = {"name": "dev", "fingerprint": "s1", "protocol": "selection", "questions": 50}
        fields = {
            "scores": {"dev": {"ranked": point}},
            "data": {"train": {"fingerprint": "t"}, "dev": split_facts | {"candidates": 4.25}},
            "references": {"dev": {"word-overlap": point | {"accuracy": 80.0}}},
            "threshold": None,
        }
        return parse_record(nested(flat_record(model) | fields | changes))

    return make


def test_selection_rows_columns_and_note(make_selection, make_record):
    failed = make_selection("qa_lstm_i", status="oom", scores={}, references={})
    table = runs_table([(Path("a"), make_selection()), (Path("i"), failed)])
    assert [column.key for column in table.columns] == ["model", "accuracy", "mrr", "parameters", "seconds"]
    overlap, run, _ = table.rows
    assert (overlap["model"], overlap["accuracy"]) == ("word-overlap", 80.0)
    assert (run["accuracy"], run["mrr"], run["seconds"]) == (40.0, 60.0, 61.25)
    assert "50 questions, 4.2 candidates each" in table.notes[0]
    assert not any("null threshold" in note for note in table.notes)
    assert "| qa_lstm_i | OOM | – |" in markdown(table)
    with pytest.raises(RunError, match="are not comparable"):
        runs_table([(Path("a"), make_selection()), (Path("b"), make_record())])


def test_sets_table_of_selection_counts(tmp_path):
    sets = '[DataSet("one", "one.json"), DataSet("two", "two.json", source="x:two")]'
    call = f'sets_table(folder, "Sets", {sets}, columns=["questions", "answers"])'
    script(tmp_path, call)
    (tmp_path / "records").mkdir()
    counts = {"questions": 3, "answers": 4, "question_words": 9}
    (tmp_path / "records" / "one.json").write_text(json.dumps(counts))
    (table,) = experiment_tables(tmp_path)
    assert [dict(row) for row in table.rows] == [
        {"set": "one", "questions": 3, "answers": 4},
        {"set": "two", "questions": None, "answers": None},
    ]
    assert "qa-arch stats --data x:two --json" in table.notes[0]

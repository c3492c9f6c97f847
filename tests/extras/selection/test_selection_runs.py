"""Selection and classification runs from the command line: training, scoring, refusals, and tables."""

import json

import pytest

import qa_arch as package
from qa_arch.cli.main import main
from qa_arch.data.answer_files import read_types
from qa_arch.data.synthetic import named
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.selection.sets import CLASSES
from qa_arch.records import find_runs, read_record
from qa_arch.results.columns import runs_table
from qa_arch.results.report import scored_sets


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


def test_selection_run_has_ranks_and_references(selecting, trained):
    record = read_record(selecting)
    point = record.scores["dev"]["ranked"]
    assert point.protocol == record.data["dev"].protocol == "selection"
    assert 0 < point.metric("accuracy") <= point.metric("mrr") <= 100
    references = record.references["dev"]
    assert set(references) == {"random-order", "word-overlap"}
    assert references["word-overlap"].metric("mrr") > references["random-order"].metric("mrr")
    table = runs_table([(selecting, record)])
    assert [column.key for column in table.columns] == ["model", "accuracy", "mrr", "parameters", "seconds"]
    assert any("candidates each" in note for note in table.notes)
    assert not any("null threshold" in note for note in table.notes)
    with pytest.raises(RunError, match="are not comparable"):
        runs_table([(selecting, record), (trained, read_record(trained))])


def test_classification_run_has_main_and_sub_classes(classifying, qa_arch):
    record = read_record(classifying)
    point = record.scores["dev"]["ranked"].metrics
    assert 0 <= point["accuracy"] <= point["main_accuracy"] <= 100
    assert set(record.references["dev"]) == {"random-order", "rules"}
    assert record.references["dev"]["rules"].metric("main_accuracy") > 60
    shown = json.loads(qa_arch("show", classifying, "--json")[1])
    row = next(row for row in shown["scores"] if row["split"] == "dev")
    assert {name: row[name] for name in ("accuracy", "main_accuracy", "mrr")}.items() <= point.items()
    assert shown["facts"]["run"]["dev set"] == "300 questions, 50.0 candidates each"
    assert not any(key.startswith(("encoder", "decode")) for key in shown["facts"]["settings"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ask SELECTED --question Who? --context Ada.", "selects answers"),
        ("selection evaluate SPANS --data synthetic:dev", "finds spans; score it with"),
        ("evaluate --run SELECTED", "score it: qa-arch selection evaluate"),
        (
            "train model=question_types data=question_types model.classes=6",
            "must be 50, not 6",
        ),
        ("types SELECTED --data synthetic:dev --out OUT", "does not classify questions"),
        ("paraphrase CLASSIFIED --pairs OUT", "does not compare questions; name a run of model=qa_lst"),
        ("types CLASSIFIED --data FILE --out FILE", "overwrite what is read; name another file"),
        ("paraphrase SELECTED --pairs FILE --out FILE", "overwrite what is read"),
        ("paraphrase SELECTED --pairs FILE --out OUT --json", "--format: no table is printed, as"),
        ("selection evaluate SELECTED --data FILE --out FILE", "overwrite what is read"),
    ],
)
def test_incompatible_arguments_are_refused(
    qa_arch, selecting, classifying, trained, tmp_path, arguments, message
):
    (tmp_path / "file").write_text("Who?\tWho?\n")
    words = {"SELECTED": selecting, "CLASSIFIED": classifying, "SPANS": trained}
    words |= {"OUT": tmp_path / "out", "FILE": tmp_path / "file"}
    extra = ["debug=fast", f"runs_dir={tmp_path}"] if arguments.startswith("train") else []
    code, _, err = qa_arch(*(words.get(word, word) for word in arguments.split()), *extra)
    assert code in (2, 4, 5)
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1
    assert (tmp_path / "file").read_text() == "Who?\tWho?\n"


@pytest.mark.parametrize(
    "typed", ["encoder=minilm", "encoder.freeze=all", "decode=greedy", "trainer.select=exact"]
)
def test_setting_of_span_models_has_no_effect_on_a_ranking(qa_arch, typed):
    code, _, err = qa_arch("train", "--dry-run", "model=qa_lstm/h", "glove=none", typed)
    assert (code, f"{typed}: has no effect, as models of task selection do not read it" in err) == (2, True)


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("model=qa_lstm/h glove.dim=50", "glove.dim=50: has no effect, as no word vectors are read"),
        ("model=question_types selection.negatives=3", "selection.negatives=3: has no effect"),
        ("model=question_types selection.margin=1", "selection.margin: 1 has no effect with ChoiceLoss"),
        ("model=question_types loss=hinge selection.margin=1", ""),
    ],
)
def test_setting_that_no_ranking_of_the_kind_reads_is_refused(qa_arch, typed, reason):
    data = ["data=question_types", "model.train_vectors=true"] if "question_types" in typed else ["data=demo"]
    code, _, err = qa_arch("train", "--dry-run", *typed.split(), *data, "glove=none", "logger=none")
    assert (code, reason in err) == (2 if reason else 0, True), err


def test_ranking_is_not_said_to_be_on_an_encoder(qa_arch, caplog):
    small = ("model=qa_lstm/h", "glove=none", "data=demo", "data.calibration=null")
    assert qa_arch("train", "--dry-run", *small)[0] == 0
    assert ": qa_lstm_h, synthetic:train to synthetic:dev, calibrated on nothing, " in caplog.text


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
    pairs = [(first, second), ("", second), (second, second), (second, first)]
    assert predictor.similarities(pairs) == pytest.approx([predictor.similarity(*pair) for pair in pairs])
    with pytest.raises(RunError, match="trained for task selection, not classification"):
        predictor.classify([first])
    with pytest.raises(ConfigError, match="candidates: must be a list of strings, not str"):
        predictor(first, second)


def test_single_question_is_not_classified_by_letters(classifying):
    with pytest.raises(ConfigError, match="questions: must be a list of strings, not str"):
        package.load_predictor(classifying, device="cpu").classify("Who?")


def test_paraphrase_command_scores_labelled_pairs(selecting, qa_arch, tmp_path):
    file, out = tmp_path / "pairs.tsv", tmp_path / "cosines.tsv"
    first, second, third = "Who wrote the song?", "When did the river rise in spring?", "Where is it?"
    asked = [(first, second), (second, first), (first, third)]
    file.write_text("".join(f"{a}\t{b}\t{label}\n" for (a, b), label in zip(asked, "100", strict=True)))
    code, printed, error = qa_arch("paraphrase", selecting, "--pairs", file, "--threshold", "0.9", "--json")
    assert code == 0, error
    pairs, scored = json.loads(printed)
    cosines = [row["cosine"] for row in pairs["rows"]]
    assert cosines == package.load_predictor(selecting, device="cpu").similarities(asked)
    (scores,) = scored["rows"]
    assert (scores["pairs"], scores["paraphrases"], scores["threshold"]) == (3, 1, 0.9)
    assert scores["auroc"] in (25, 75), "a tie, and a win or a loss"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in asked))
    code, printed, error = qa_arch("paraphrase", selecting, "--pairs", file, "--out", out)
    assert (code, "cosines.tsv: 3 pairs" in printed) == (0, True), error
    lines = [line.split("\t") for line in out.read_text().splitlines()]
    assert [tuple(line[1:]) for line in lines] == asked
    assert [float(line[0]) for line in lines] == pytest.approx(cosines, abs=1e-6)
    code, _, error = qa_arch("paraphrase", selecting, "--pairs", file, "--threshold", "0.9")
    assert (code, "pairs.tsv has no labels to score; leave it out" in error) == (2, True)


@pytest.mark.slow
def test_insuranceqa_from_training_to_the_second_test_set(qa_arch, tmp_path, monkeypatch):
    """The command of experiments/table_2_2/README.md, on a made-up folder."""
    folder, run = tmp_path / "insuranceqa", tmp_path / "run"
    files = {
        "vocabulary": "".join(f"idx_{n}\t{word}\n" for n, word in enumerate("abcdef", 1)),
        "answers.label.token_idx": "1\tidx_1 idx_2\n2\tidx_3\n3\tidx_4 idx_5 idx_6\n4\tidx_2 idx_6\n",
        "question.train.token_idx.label": "idx_1 idx_3\t1 4\nidx_5\t2\nidx_6 idx_2\t3\n",
        "question.dev.label.token_idx.pool": "2\tidx_2 idx_4\t1 2 3\n1\tidx_5\t1 4 2\n",
        "question.test1.label.token_idx.pool": "3\tidx_6 idx_1\t2 3 4\n",
        "question.test2.label.token_idx.pool": "4 2\tidx_3\t4 1 2\n1\tidx_4 idx_4\t3 2 1\n3\tidx_1\t3 2 1\n",
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
    assert qa_arch("train", *command, "--folder", run)[0] == 0
    record = read_record(run)
    assert record.epochs[0].windows == 4, "a question with two right answers makes two pairs"
    assert {split: about.questions for split, about in record.data.items()} == {"train": 3, "calibration": 2}
    code, _, err = qa_arch("selection", "evaluate", run)
    assert (code, "holds its dev set out" in err) == (2, True), "sets without articles are held out too"
    log = tmp_path / "experiments" / "table_2_2" / "dev_openings.jsonl"
    log.parent.mkdir(parents=True)
    assert qa_arch("selection", "evaluate", run, "--final", "--experiments", log.parents[1])[0] == 0
    assert log.is_file()
    code, _, err = qa_arch("selection", "evaluate", run, "--data", f"insuranceqa:{folder}:test2")
    assert code == 0, err
    record = read_record(run)
    assert record.scores["test2"]["ranked"].metric("questions") == 3
    assert record.data["test2"].candidates == 3


def test_classes_of_all_questions_are_facets_of_the_report(classifying, trained, tmp_path, qa_arch):
    typed, page = tmp_path / "types.json", tmp_path / "page.html"
    code, _, error = qa_arch("types", classifying, "--data", "synthetic:dev", "--out", typed)
    assert code == 0, error
    types = read_types(typed)
    assert list(types) == [example.id for example in named("dev").examples]
    assert set(types.values()) <= set(CLASSES)
    dev, *_ = scored_sets(find_runs([trained]), None, types, [])
    breakdowns = {breakdown.key: breakdown for breakdown in dev.breakdowns}
    assert set(breakdowns["class"].names) == {label.partition(":")[0] for label in types.values()}
    assert set(breakdowns["sub"].names) <= {*types.values(), "other"}
    assert len(breakdowns["class"].level) == 600
    for content, message in (('{"nobody": "NUM:date"}', "scored on none"), ("{}", "holds no classes")):
        typed.write_text(content)
        code, _, error = qa_arch("report", trained, "--types", typed, "-o", page)
        assert (code in (4, 5), message in error, page.exists()) == (True, True, False)

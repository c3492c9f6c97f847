"""A run that selects answers, from the command line: trained, scored, refused where it does not belong."""

from __future__ import annotations

import json

import pytest

import qa_arch as package
from qa_arch.cli.main import main
from qa_arch.config.files import write_json
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.records import read_record


def flat(points):
    """Points as commands print them."""
    return {name: point.flat() for name, point in points.items()}


@pytest.fixture(scope="module")
def selecting(tmp_path_factory, feature_cache):
    """A finished run of model H on the embedded data."""
    runs = tmp_path_factory.mktemp("selecting")
    settings = ["debug=fast", f"runs_dir={runs}", "trainer.progress=false", "model.hidden=6"]
    assert main(["train", "model=qa_lstm/h", *settings]) == 0
    (folder,) = (runs / "debug").glob("qa_lstm_h-*")
    return folder


@pytest.fixture(scope="module")
def other_set(tmp_path_factory):
    return write_json(tmp_path_factory.mktemp("other") / "other.json", write(generate(2, 9, 1, "dev")))


def test_the_record_tells_ranks_and_references(selecting, read_json):
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


def test_another_set_is_scored_and_added_to_the_record(qa_arch, selecting, other_set, read_json):
    code, out, err = qa_arch("evaluate", "--json", "--run", selecting, "--data", other_set, "--allow-overlap")
    assert code == 0, err
    points = json.loads(out)
    record = read_record(selecting)
    assert flat(record.scores["other"]) == points
    assert record.data["other"].questions == points["ranked"]["questions"]
    assert (selecting / "sets" / "other" / "questions.parquet").is_file()


def test_tasks_do_not_share_a_table(qa_arch, selecting, trained):
    code, out, _ = qa_arch("tables", selecting, trained, "--format", "json")
    assert code == 0
    models = [[row["model"] for row in table["rows"]] for table in json.loads(out)]
    assert len(models) == 2
    assert not any({"qa_lstm_h", "bert"} <= set(names) for names in models)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ask", "RUN", "--question", "Who?", "--context", "Ada."], "selects answers"),
        (["predict", "RUN", "--data", "SET", "--out", "OUT"], "selects answers"),
        (
            ["evaluate", "--run", "RUN", "--data", "SET", "--allow-overlap", "--null-threshold", "1"],
            "no unanswerable questions",
        ),
        (["evaluate", "--run", "RUN", "--data", "insuranceqa:nowhere:dev"], "no such folder"),
        (["train", "model=bert", "debug=fast", "data.train=insuranceqa:x:train"], "model=qa_lstm/c"),
        (
            ["evaluate", "--run", "RUN", "--decode", "greedy", "--record", "OUT"],
            "only spans are searched",
        ),
        (["evaluate", "--run", "RUN", "--data", "insuranceqa:x:dev", "insuranceqa:x:test1"], "one at a time"),
        (["evaluate", "--run", "RUN", "--text-metrics"], "predictions.json"),
        (["stats", "--data", "insuranceqa:x:dev", "SET"], "count it separately"),
        (
            ["train", "model=question_types", "debug=fast", "data=question_types", "model.classes=6"],
            "model.classes: 6; questions",
        ),
    ],
    ids=[
        "ask",
        "predict",
        "margin",
        "missing",
        "wrong model",
        "decode",
        "two sets",
        "text metrics",
        "counts",
        "classes",
    ],
)
def test_incompatible_arguments_are_refused(qa_arch, selecting, other_set, tmp_path, arguments, message):
    named = {"RUN": selecting, "SET": other_set, "OUT": tmp_path / "out"}
    extra = [f"runs_dir={tmp_path}"] if arguments[0] == "train" else []
    code, _, err = qa_arch(*(named.get(word, word) for word in arguments), *extra)
    assert code in (2, 4, 5)
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


def test_the_predictor_ranks_and_compares(selecting):
    predictor = package.load_predictor(selecting, device="cpu")
    candidates = ["It rains.", "Ada wrote the song in 1971.", "It rains."]
    ranking = predictor("Who wrote the song?", candidates)
    assert sorted(item.place for item in ranking) == [0, 1, 2]
    assert [item.score for item in ranking] == sorted((item.score for item in ranking), reverse=True)
    by_place = {item.place: item for item in ranking}
    assert by_place[0].score == pytest.approx(by_place[2].score, abs=1e-6)
    assert by_place[1].text == candidates[1]
    assert predictor(" ", candidates) == predictor("Who?", []) == []
    pair = ("Who wrote the song?", "Which writer made the song?")
    assert predictor.similarity(*pair) == pytest.approx(predictor.similarity(*reversed(pair)), abs=1e-6)
    assert -1 <= predictor.similarity(*pair) <= 1
    assert predictor.similarity("", "Who?") == 0.0


def test_parameters_are_counted(qa_arch):
    code, out, err = qa_arch("params", "model=qa_lstm/d", "debug=fast", "--json")
    assert code == 0, err
    counts = json.loads(out)
    # 1000 filters over two words of 2 x 141 states, each with a bias
    assert counts["blocks"]["convolution"] == 1000 * (2 * 282 + 1)
    # two LSTMs with four gates and two biases each, over vectors of width 100
    assert counts["blocks"]["reader"] == 2 * 4 * (141 * (100 + 141) + 2 * 141)


@pytest.mark.parametrize("labels", [("1", "0", "0"), ()])
def test_pairs_of_questions_are_compared(labels, qa_arch, selecting, tmp_path):
    first, second = "Who wrote the book?", "When did the river rise in spring?"
    pairs = [(first, second), (second, first), (first, first), (first, " . ")]
    rows = list(zip(*zip(*pairs[: len(labels)], strict=True), labels, strict=True)) if labels else pairs
    file = tmp_path / "pairs.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in rows))
    code, out, err = qa_arch("paraphrase", selecting, "--pairs", file, "--threshold", "0.99999")
    assert code == 0, err
    lines = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert [tuple(line[1:]) for line in lines] == [tuple(text.strip() for text in row[:2]) for row in rows]
    cosines = [float(line[0]) for line in lines]
    answer = package.load_predictor(selecting, device="cpu")
    expected = [answer.similarity(*row[:2]) for row in rows]
    assert cosines == pytest.approx(expected, abs=1e-6)
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-6)
    assert len({round(cosine, 3) for cosine in cosines}) > 1
    if not labels:
        assert "accuracy" not in out
        return
    scores = json.loads(out[out.index("{") :])
    assert (scores["pairs"], scores["paraphrases"]) == (3, 1)
    assert scores["auc"] == pytest.approx(25)  # a tie and a loss
    written = tmp_path / "cosines.tsv"
    code, out, _ = qa_arch("paraphrase", selecting, "--pairs", file, "--out", written)
    assert [line.split("\t")[0] for line in written.read_text().splitlines()] == [line[0] for line in lines]
    assert json.loads(out)["threshold"] == 0.5


def test_a_threshold_is_a_cosine(qa_arch, selecting, tmp_path):
    code, _, err = qa_arch("paraphrase", selecting, "--pairs", tmp_path / "none.tsv", "--threshold", "2")
    assert (code, "--threshold: 2 is no cosine" in err) == (2, True)


def test_insuranceqa_from_training_to_the_second_test_set(qa_arch, tmp_path, monkeypatch, read_json):
    """The command of experiments/table_2_2/README.md, on a made-up folder of version 1."""
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
    small = ["model.hidden=4", "glove=none", "glove.dim=5", "selection.negatives=2", "optim.lr=1e-2"]
    quick = ["trainer=cpu", "trainer.epochs=2", "trainer.batch_size=2", "trainer.eval_batch_size=1"]
    quiet = ["trainer.progress=false", "logger=none"]
    command = ["train", "model=qa_lstm/h", "data=insuranceqa", "name=table_2_2", *small, *quick, *quiet]
    assert qa_arch(*command, "--folder", run)[0] == 0
    record = read_json(run / "run.json")
    assert record["epochs"][0]["windows"] == 4, "a question with two right answers makes two pairs"
    assert {split: about["questions"] for split, about in record["data"].items()} == {
        "train": 3,
        "calibration": 2,
        "dev": 1,
    }
    assert {
        split: record["scores"][split]["ranked"]["metrics"]["questions"] for split in record["scores"]
    } == {
        "calibration": 2,
        "dev": 1,
    }
    code, out, err = qa_arch("evaluate", "--json", "--run", run, "--data", f"insuranceqa:{folder}:test2")
    assert code == 0, err
    assert json.loads(out)["ranked"]["questions"] == 3
    record = read_json(run / "run.json")
    assert record["scores"]["test2"]["ranked"]["metrics"]["accuracy"] == json.loads(out)["ranked"]["accuracy"]
    assert record["data"]["test2"]["candidates"] == 3

    monkeypatch.chdir(tmp_path)  # where openings are logged
    closed = tmp_path / "closed"
    assert qa_arch(*command, "data.open_dev=false", "trainer.max_steps=1", "--folder", closed)[0] == 0
    code, _, err = qa_arch("evaluate", "--run", closed)
    assert (code, "keeps its dev set closed" in err) == (2, True), "a set without articles stays closed too"
    assert qa_arch("evaluate", "--run", closed, "--final")[0] == 0
    assert (tmp_path / "experiments" / "table_2_2" / "dev_openings.jsonl").is_file()

"""``qa-arch evaluate``: official JSON on stdout, everything else on stderr, exit codes."""

import gzip
import json
from pathlib import Path

import pytest

CONTEXT = "The red mill stands by the ferry. Théodore keeps a lamp in it."


def gold(text: str) -> dict:
    return {"text": text, "answer_start": CONTEXT.index(text)}


ANSWERS = {"q1": [gold("red mill"), gold("The red mill")], "q2": [gold("Théodore")], "q3": [], "q4": []}
TEXTS = {"q1": "mill", "q2": "théodore", "q3": "", "q4": "lamp"}


def write(path, value) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), "utf-8")
    return str(path)


def squad(path, version: str, qas) -> str:
    article = {"title": "Mill", "paragraphs": [{"context": CONTEXT, "qas": qas}]}
    return write(path, {"version": version, "data": [article]})


@pytest.fixture
def data(tmp_path):
    qas = [{"id": k, "question": "?", "answers": v, "is_impossible": not v} for k, v in ANSWERS.items()]
    return squad(tmp_path / "data.json", "v2.0", qas)


@pytest.fixture
def data_11(tmp_path):
    qas = [{"id": k, "question": "?", "answers": v} for k, v in ANSWERS.items() if v]
    return squad(tmp_path / "data11.json", "1.1", qas)


@pytest.fixture
def evaluate(tmp_path, qa_arch):
    """``evaluate(data, predictions, *options)`` -> exit code, stdout, stderr."""

    def call(data, predictions, *options):
        path = predictions
        if not isinstance(predictions, Path):
            path = write(tmp_path / "predictions.json", predictions)
        return qa_arch("evaluate", "--data", data, "--predictions", path, *options)

    return call


def test_official_json(evaluate, data):
    code, out, err = evaluate(data, TEXTS)
    scores = json.loads(out)
    # exact: q2, q3. F1: q1 against "red mill" 2 * 1 * .5 / 1.5 = 2/3, q2 1, q3 1, q4 0
    assert code == 0
    assert list(scores)[:3] == ["exact", "f1", "total"]
    assert (scores["exact"], scores["f1"], scores["total"]) == (50.0, pytest.approx(200 / 3), 4)
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (2, 2)
    assert scores["answerable_accuracy"] == 75.0
    assert err == "protocol: SQuAD 2.0 (from the data)\n"
    rules = "answers compared by the rules of language de"
    assert evaluate(data, TEXTS, "--language", "de")[2] == f"{err.rstrip()}, {rules}\n"


def test_what_only_training_needs_is_not_required(evaluate, tmp_path):
    """As the official scripts, which read ids and texts: wrong offsets, no flag, integer ids."""
    elsewhere = [{"text": "Mr Théodore", "answer_start": -1}]
    qas = [{"id": 1, "question": "?", "answers": elsewhere}, {"id": 2, "question": "?", "answers": []}]
    code, out, _ = evaluate(squad(tmp_path / "data.json", "v2.0", qas), {"1": "Mr. Théodore", "2": ""})
    scores = json.loads(out)
    assert (code, scores["exact"], scores["HasAns_total"], scores["NoAns_total"]) == (0, 100.0, 1, 1)


def test_protocol_of_the_data(evaluate, data_11):
    code, out, err = evaluate(data_11, {"q1": "mill", "q2": "Théodore"})
    assert (code, json.loads(out)["exact_match"], json.loads(out)["f1"]) == (0, 50.0, pytest.approx(500 / 6))
    assert "SQuAD 1.1 (from the data)" in err


def test_extra_and_duplicate_ids_are_named(evaluate, data, tmp_path):
    text = '{"q1": "x", "q2": "", "q1": "red mill", "q3": "", "q4": "", "z9": "lamp", "z8": ""}'
    code, out, err = evaluate(data, text)
    assert (code, json.loads(out)["exact"], json.loads(out)["total"]) == (0, 75.0, 4)
    assert "duplicate ids, the last value counts: 1: q1\n" in err
    assert "ids that are not in the data, ignored: 2: z9 z8\n" in err
    na = write(tmp_path / "na.json", '{"q1": 1, "q1": 0, "q2": 0, "q3": 0, "q4": 0, "y7": 0}')
    _, _, err = evaluate(data, TEXTS, "--na-prob", na)
    assert "na.json: duplicate ids, the last value counts: 1: q1" in err
    assert "y7" in err


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ("[]", "holds a list; expected an object"),
        ("3", "holds an integer; expected an object"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"q1": 3}', "q1: the prediction is an integer (3); give a string"),
        ('{"z": "mill"}', "no prediction belongs to any of the questions"),
    ],
)
def test_malformed_predictions(predictions, message, evaluate, data):
    code, out, err = evaluate(data, predictions)
    assert (code, out) == (4, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("null_scores", "message"),
    [
        ('{"q1": "0.5"}', "q1: the no-answer score is a string ('0.5'); give a number"),
        ('{"q1": NaN}', "q1: the no-answer score is a number (nan); give a number"),
        (f'{{"q1": 1{"0" * 400}}}', "q1: the no-answer score is an integer (1000"),
        ('{"q1": 0, "q2": 0, "q3": 0}', "question q4: has a prediction but no no-answer score"),
        ("[0.5]", "holds a list; expected an object"),
    ],
)
def test_malformed_null_scores(null_scores, message, evaluate, data, tmp_path):
    code, out, err = evaluate(data, TEXTS, "--na-prob", write(tmp_path / "na.json", null_scores))
    assert (code, out) == (4, "")
    assert message in err


def test_unreadable_files_are_refused(evaluate, data, tmp_path):
    packed = gzip.compress(json.dumps(TEXTS).encode())
    (tmp_path / "packed.json.gz").write_bytes(packed)
    (tmp_path / "cut.json.gz").write_bytes(packed[:-9])
    (tmp_path / "latin.json").write_bytes('{"q1": "Théodore"}'.encode("latin-1"))
    for name, message in (
        ("none.json", "none.json: cannot be read (No such file or directory)"),
        ("", "Is a directory"),
        ("latin.json", "latin.json: is not UTF-8 text (byte 10,"),
        ("cut.json.gz", "cut.json.gz: cannot be read (Compressed file ended"),
    ):
        code, _, err = evaluate(data, tmp_path / name)
        assert (code, message in err) == (4, True), err
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(TEXTS).encode())
    for name in ("bom.json", "packed.json.gz"):
        assert evaluate(data, tmp_path / name)[0] == 0


def test_options_without_effect_are_refused(evaluate, data, data_11, tmp_path):
    code, out, err = evaluate(data, TEXTS, "--null-threshold", 0.5)
    assert (code, out, "--na-prob" in err) == (2, "", True)
    na = write(tmp_path / "na.json", {"q1": 0.0, "q2": 0.0})
    code, out, err = evaluate(data_11, {"q1": "", "q2": ""}, "--na-prob", na)
    assert (code, out, "protocol 1.1" in err) == (2, "", True)
    code, out, err = evaluate(data, TEXTS, "--na-prob", na, "--null-threshold", "nan")
    assert (code, out, "is not a number" in err) == (2, "", True)


def test_warnings(evaluate, data, tmp_path):
    na = write(tmp_path / "na.json", {"q1": -3.5, "q2": 2.0, "q3": 0, "q4": 0})
    assert "look like odds" in evaluate(data, TEXTS, "--na-prob", na)[2]
    assert "look like odds" not in evaluate(data, TEXTS, "--na-prob", na, "--null-threshold", 0)[2]
    empty = dict.fromkeys(TEXTS, "")
    assert '100.0% of the answers are "no answer"' in evaluate(data, empty)[2]
    assert "warning" not in evaluate(data, TEXTS)[2]

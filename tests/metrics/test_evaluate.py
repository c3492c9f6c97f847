"""Scores of predictions: ``qa-arch evaluate``, the metric of the library ``evaluate``, and fuzzed texts."""

import gzip
import json
import math
import random
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from qa_arch.data.answer_files import read_predictions
from qa_arch.data.squad import read
from qa_arch.errors import DataError
from qa_arch.metrics.squad import score, score_questions

CONTEXT = "The red mill stands by the ferry. Théodore keeps a lamp in it."


def gold(text: str) -> dict:
    return {"text": text, "answer_start": CONTEXT.index(text)}


ANSWERS = {"q1": [gold("red mill"), gold("The red mill")], "q2": [gold("Théodore")], "q3": [], "q4": []}
TEXTS = {"q1": "mill", "q2": "théodore", "q3": "", "q4": "lamp"}


def write(path, value) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
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


def test_what_only_training_needs_is_not_required(evaluate, tmp_path):
    """As the official scripts, which read ids and texts: wrong offsets, no flag, integer ids."""
    elsewhere = [{"text": "Mr Théodore", "answer_start": -1}]
    qas = [{"id": 1, "question": "?", "answers": elsewhere}, {"id": 2, "question": "?", "answers": []}]
    data, texts = squad(tmp_path / "data.json", "v2.0", qas), {"1": "Mr. Théodore", "2": ""}
    code, out, err = evaluate(data, texts)
    scores = json.loads(out)
    assert (code, scores["exact"], scores["HasAns_total"], scores["NoAns_total"]) == (0, 100.0, 1, 1)
    rules = "answers compared by the rules of language de"
    assert evaluate(data, texts, "--language", "de")[2] == f"{err.rstrip()}, {rules}\n"


def test_extra_and_duplicate_ids_are_named(evaluate, data, tmp_path):
    text = r'{"q1": "x", "q2": "", "q1": "red mill", "q3": "", "q4": "", "x\ny": "lamp", "\udc00": ""}'
    code, out, err = evaluate(data, text)
    assert (code, json.loads(out)["exact"], json.loads(out)["total"]) == (0, 75.0, 4)
    assert "duplicate ids, the last value counts: 1: q1\n" in err
    assert "ids that are not in the data, ignored: 2: 'x\\ny' '\\udc00'\n" in err
    na = write(tmp_path / "na.json", '{"q1": 1, "q1": 0, "q2": 0, "q3": 0, "q4": 0, "y7": 0}')
    _, _, err = evaluate(data, TEXTS, "--na-prob", na)
    assert "na.json: duplicate ids, the last value counts: 1: q1" in err
    assert "y7" in err


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ("[]", "holds a list; expected an object"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"z": "mill"}', "no prediction belongs to any of the questions"),
    ],
)
def test_malformed_predictions_are_refused(predictions, message, evaluate, data):
    code, out, err = evaluate(data, predictions)
    assert (code, out, message in err) == (4, "", True), err


@pytest.mark.parametrize(
    ("null_scores", "message"),
    [
        ('{"q1": "0.5"}', "q1: the no-answer score is a string ('0.5'); give a number"),
        ('{"q1": NaN}', "q1: the no-answer score is a number (nan); give a number"),
        (f'{{"q1": 1{"0" * 400}}}', "q1: the no-answer score is an integer (1000"),
        ('{"q1": 0, "q2": 0, "q3": 0}', "na.json: question q4: has a prediction but no no-answer score"),
    ],
)
def test_malformed_null_scores_are_refused(null_scores, message, evaluate, data, tmp_path):
    code, out, err = evaluate(data, TEXTS, "--na-prob", write(tmp_path / "na.json", null_scores))
    assert (code, out, message in err) == (4, "", True), err


def test_unreadable_files_are_refused(evaluate, data, tmp_path):
    packed = gzip.compress(json.dumps(TEXTS).encode())
    for name, content, message in (
        ("none.json", None, "none.json: cannot be read (No such file or directory)"),
        ("latin.json", '{"q1": "Théodore"}'.encode("latin-1"), "latin.json: is not UTF-8 text (byte 10,"),
        ("cut.json.gz", packed[:-9], "cut.json.gz: cannot be read (Compressed file ended"),
        ("bom.json", b"\xef\xbb\xbf" + json.dumps(TEXTS).encode(), ""),
        ("packed.json.gz", packed, ""),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        code, _, err = evaluate(data, tmp_path / name)
        assert (code, message in err) == (4 if message else 0, True), err


def test_options_without_effect_are_refused_and_odd_values_named(evaluate, data, data_11, tmp_path):
    na = write(tmp_path / "na.json", {"q1": -3.5, "q2": 2.0, "q3": 0, "q4": 0})
    for of, options, message in (
        (data, ["--null-threshold", 0.5], "--na-prob"),
        (data_11, ["--na-prob", na], "protocol 1.1"),
        (data, ["--na-prob", na, "--null-threshold", "nan"], "is not a number"),
    ):
        code, out, err = evaluate(of, TEXTS, *options)
        assert (code, out, message in err) == (2, "", True), err
    assert "look like odds" in evaluate(data, TEXTS, "--na-prob", na)[2]
    assert "look like odds" not in evaluate(data, TEXTS, "--na-prob", na, "--null-threshold", 0)[2]
    assert '100.0% of the answers are "no answer"' in evaluate(data, dict.fromkeys(TEXTS, ""))[2]
    assert "warning" not in evaluate(data, TEXTS)[2]


FOLDER = str(files("qa_arch.metrics") / "qa_arch_squad_v2")
MODULE_GOLDS = {"q1": ["the red mill", "old red mill"], "q2": ["a ferry"], "q3": [], "q4": []}
MODULE_TEXTS = {"q1": "red mill house", "q2": "Ferry!", "q3": "", "q4": "some lamp"}
ODDS = {"q1": 0.5, "q2": 0.9, "q3": 0.1, "q4": 0.6}
PREDICTIONS = [
    {"id": id_, "prediction_text": text, "no_answer_probability": ODDS[id_]}
    for id_, text in MODULE_TEXTS.items()
]
REFERENCES = [
    {"id": id_, "answers": {"text": texts, "answer_start": [0] * len(texts)}}
    for id_, texts in MODULE_GOLDS.items()
]


@pytest.fixture
def library(monkeypatch, tmp_path):
    """The library ``evaluate``, offline."""
    import evaluate as library

    monkeypatch.setattr(library.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(library.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))
    monkeypatch.setattr(library.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return library


@pytest.mark.parametrize("threshold", [1.0, 0.55])
def test_scores_equal_ours_and_the_reference(library, gold_set, plain, threshold):
    metric = library.load(FOLDER)
    scores = metric.compute(predictions=PREDICTIONS, references=REFERENCES, no_answer_threshold=threshold)
    ours = score(gold_set(MODULE_GOLDS), MODULE_TEXTS, null_scores=ODDS, threshold=threshold)
    assert scores == ours.flat()
    qas = [{"id": id_, "answers": [{"text": text} for text in texts]} for id_, texts in MODULE_GOLDS.items()]
    reference = plain.evaluate_20([{"paragraphs": [{"qas": qas}]}], MODULE_TEXTS, ODDS, threshold)
    assert {key: scores[key] for key in reference} == reference
    bare = [{**row, "answers": {**row["answers"], "answer_start": []}} for row in REFERENCES]
    again = metric.compute(predictions=PREDICTIONS, references=bare, no_answer_threshold=threshold)
    assert scores == again, "the metric squad_v2 reads the texts alone"


def test_repeated_ids_and_odds_that_are_no_numbers_are_refused(library, gold_set):
    metric, (first, *rest) = library.load(FOLDER), PREDICTIONS
    nan, none = ({**first, "no_answer_probability": value} for value in (math.nan, None))
    for predictions, references, message in (
        ([first, *PREDICTIONS], [REFERENCES[0], *REFERENCES], "q1: occurs twice"),
        ([first, first, *rest[1:]], REFERENCES, "q1: occurs twice"),
        ([nan, *rest], REFERENCES, "q1: the no-answer probability is not a number"),
        ([none, *rest], REFERENCES, "q1: the no-answer probability is not a number"),
    ):
        with pytest.raises(DataError, match=f"^question {message}"):
            metric.compute(predictions=predictions, references=references)
    with pytest.raises(DataError, match=r"^no_answer_threshold: is not a number"):
        metric.compute(predictions=PREDICTIONS, references=REFERENCES, no_answer_threshold=math.nan)
    questions = gold_set(MODULE_GOLDS)
    twice = replace(questions, examples=(*questions.examples, questions.examples[1]))
    with pytest.raises(DataError, match=r"^question q2: occurs twice; give each question its own id"):
        score(twice, MODULE_TEXTS)


def test_a_language_is_a_configuration(library):
    answer = {"id": "1", "prediction_text": "die Mühle", "no_answer_probability": 0.0}
    gold = {"id": "1", "answers": {"text": ["eine Mühle"], "answer_start": [0]}}
    both = library.combine([library.load(FOLDER), library.load(FOLDER, "de")], force_prefix=True)
    scores = both.compute(predictions=[answer], references=[gold])
    exact = [scores[f"qa_arch_squad_v2_{number}_exact"] for number in (0, 1)]
    assert exact == [0.0, 100.0]
    with pytest.raises(ValueError, match="xx is not a language of this metric: en, ar, de"):
        library.load(FOLDER, "xx")


PIECES = [
    *("a", "an", "the", "The", "tHe", "thé", "a\u0301n", "ａ", "an_", "the1", "red", "mill", "1,204", "U.S."),
    *("naïve", "東京", "o'clock", "🦊", "x" * 40, "co-op", "½", "-5", "İ", "ı", "ß", "ẞ", "ſ", "Σ", "ς", "ŉ"),
    *(
        "ǰ",
        "ᾳ",
        "ﬃ",
        "Ａ",
        "Ⅻ",
        "\u200d",
        "\u00ad",
        "\u0301",
        "\x00",
        "\U000e0041",
        "“",
        "–",
        "¿",
        "Élan",
        "_",
    ),
]
SPACES = [*["", " "] * 8, *"\t\n\x1c\x85\u00a0\u2009\u2028\u3000.,'"]
BROKEN = ["\ud800", "\udfff", "\udc00"]
"""Lone surrogates, which a prediction may have and a text of the data not."""


def text(rng: random.Random, *more: str) -> str:
    """Words, articles and odd characters, joined by any kind of space, punctuation or nothing."""
    parts = (rng.choice([*PIECES, *more]) + rng.choice(SPACES) for _ in range(rng.randint(1, 6)))
    return "".join(parts)


def articles(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Raw articles with ``count`` questions, a third of them unanswerable; golds occur in their context."""
    paragraphs = []
    for number in range(count):
        golds = [] if rng.random() < 1 / 3 else [text(rng) for _ in range(rng.randint(1, 3))]
        golds = [gold for gold in golds if gold.strip()]
        answers = [{"text": g, "answer_start": sum(map(len, golds[:i]))} for i, g in enumerate(golds)]
        qa = {"id": f"q{number}", "question": "?", "answers": answers}
        paragraphs.append({"context": "".join(golds) or "none", "qas": [qa]})
    return [{"title": "Mill", "paragraphs": paragraphs}]


def prediction(rng: random.Random, golds: list[str]) -> str:
    """Mostly a gold answer with a few characters changed, added, dropped or with their case swapped."""
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(("", " ", "the", "–", *BROKEN))
    if not golds or kind > 0.8:
        return text(rng, *BROKEN)
    letters = list(rng.choice(golds))
    for _ in range(rng.randint(0, 3)):
        at = rng.randint(0, len(letters))
        new = ("", " the ", *BROKEN, *PIECES, "".join(letters[at : at + 1]).swapcase())
        letters[at : at + rng.randint(0, 1)] = rng.choice(new)
    return "".join(letters)


@pytest.mark.parametrize("seed", range(3))
def test_fuzzed_predictions_are_scored_as_by_the_reference(evaluate, plain, tmp_path, seed):
    """Files of odd questions and predictions are read and scored as a user would."""
    rng = random.Random(seed)
    raw = articles(rng, 150)
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"version": "v2.0", "data": raw}), "utf-8")
    answers = {qa["id"]: [a["text"] for a in qa["answers"]] for qa in plain.all_questions(raw)}
    texts = {id_: prediction(rng, golds) for id_, golds in answers.items()}
    file = tmp_path / "fuzzed.json"
    file.write_text(json.dumps(texts), "utf-8")
    texts = json.loads(file.read_text("utf-8"))  # JSON joins adjacent surrogates to a pair
    assert read_predictions(file).values == texts
    scored = {s.id: (s.exact, s.f1) for s in score_questions(read(data), texts)}
    expected = plain.raw_20(raw, texts)
    different = [id_ for id_ in texts if scored[id_] != expected[id_]]
    assert not different, ascii([(texts[id_], scored[id_], expected[id_]) for id_ in different[:3]])
    odds = {id_: round(rng.uniform(-2, 2), rng.randrange(4)) for id_ in texts}
    threshold = rng.choice((0.0, 1.0, rng.choice(list(odds.values()))))
    official = score(read(data), texts, null_scores=odds, threshold=threshold).official
    assert json.dumps(official) == json.dumps(plain.evaluate_20(raw, texts, odds, threshold))
    paragraphs = [p for article in raw for p in article["paragraphs"] if p["qas"][0]["answers"]]
    raw_11 = [{"title": "Mill", "paragraphs": paragraphs}]
    for version, data_of, reference in (("v2.0", raw, plain.evaluate_20), ("1.1", raw_11, plain.evaluate_11)):
        data.write_text(json.dumps({"version": version, "data": data_of}), "utf-8")
        _, out, err = evaluate(data, file)
        assert f"SQuAD {version.strip('v')} (from the data)" in err
        assert json.loads(out).items() >= reference(data_of, texts).items()


@pytest.mark.parametrize(
    ("id_", "value"),
    [("q\ud800", None), ("q\n\x1b[31mred", True), ("\u2028", 10**400), ("", math.nan), (" ", ["mill"])],
    ids=ascii,
)
def test_error_with_an_odd_id_is_one_line(evaluate, id_, value):
    code, _, err = evaluate("synthetic:dev", {id_: value})
    line = err.splitlines()[-1]
    assert code == 4
    assert f"predictions.json: {id_!r}: the prediction is " in line
    assert line.endswith('; give a string ("" = no answer)')
    assert len(line) < 300

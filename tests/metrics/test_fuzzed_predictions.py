"""Predictions of arbitrary characters, and non-strings, against the reference evaluation."""

import json
import random
import unicodedata
from typing import Any

import pytest

from qa_arch.data.answer_files import read_predictions
from qa_arch.data.squad import read
from qa_arch.metrics.squad import score, score_questions

ROUNDS, QUESTIONS = 100, 1000
SURROGATES = [chr(code) for code in range(0xD800, 0xE000)]
CHARACTERS = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200))]
"""Two planes and the tags; all others have only letters and unassigned characters."""
PUNCTUATION = [c for c in CHARACTERS if unicodedata.category(c)[0] in "PS"]
SPACES = [c for c in CHARACTERS if c.isspace() or unicodedata.category(c)[0] == "Z"]
INVISIBLE = [c for c in CHARACTERS if unicodedata.category(c) in ("Cc", "Cf", "Mn")]
CASED = ["İ", "ı", "ß", "ẞ", "ſ", "K", "Σ", "ς", "ŉ", "ǰ", "DŽ", "Dž", "ᾳ", "ﬃ", "Å", "Ａ", "Ⅻ", "ⓐ"]
ARTICLES = ["a", "an", "the", "The", "AN", "tHe", "thé", "a\u0301n", "ａ", "an_", "the1"]
WORDS = ["red", "mill", "1,204", "U.S.", "naïve", "東京", "o'clock", "🦊", "x" * 40, "co-op", "½", "-5"]
NON_STRINGS: list[Any] = [
    *(None, True, False, 0, -1, 2.5, float("nan"), float("inf"), 10**4000, 1e-300),
    *([], ["mill"], {}, {"text": "mill"}, [None]),
]


def character(rng: random.Random, *, broken: bool) -> str:
    """Any character; lone surrogates only if ``broken``."""
    return rng.choice(rng.choice([PUNCTUATION, SPACES, INVISIBLE, CASED, CHARACTERS] + [SURROGATES] * broken))


def text(rng: random.Random, *, broken: bool = False) -> str:
    """Words, articles and characters joined by any kind of space, punctuation or nothing."""
    parts = []
    for _ in range(rng.randint(1, 6)):
        part = rng.choice(rng.choice((WORDS, ARTICLES)))
        if rng.random() < 0.4:
            at = rng.randint(0, len(part))
            part = part[:at] + character(rng, broken=broken) + part[at:]
        parts += [part, rng.choice((" ", " ", "", rng.choice(SPACES), rng.choice(PUNCTUATION)))]
    return "".join(parts)


def perturbed(rng: random.Random, gold: str) -> str:
    """``gold`` with some characters changed, added, dropped or with their case swapped."""
    letters = list(gold)
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(letters)) if letters else 0
        new = rng.choice(
            ("", character(rng, broken=True), " the ", *"".join(letters[at : at + 1]).swapcase())
        )
        letters[at : at + rng.randint(0, 1)] = new
    return "".join(letters)


def articles(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Raw articles with ``count`` questions, a third of them unanswerable; golds occur in their context."""
    paragraphs = []
    for number in range(count):
        golds = [] if rng.random() < 1 / 3 else [text(rng) for _ in range(rng.randint(1, 3))]
        golds = [gold for gold in golds if gold.strip()]
        answers = [{"text": g, "answer_start": sum(map(len, golds[:i]))} for i, g in enumerate(golds)]
        qa = {"id": f"q{number}", "question": "?", "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": "".join(golds) or "none", "qas": [qa]})
    return [{"title": "Mill", "paragraphs": paragraphs}]


def prediction(rng: random.Random, golds: list[str]) -> str:
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(("", " ", "the", rng.choice(SURROGATES), rng.choice(PUNCTUATION)))
    return perturbed(rng, rng.choice(golds)) if golds and kind < 0.8 else text(rng, broken=True)


@pytest.fixture
def check(tmp_path, plain, qa_arch):
    """``check(seed, count)``: read and score files of fuzzed questions and predictions as a user would."""

    def run(seed: int, count: int) -> int:
        rng = random.Random(seed)
        raw = articles(rng, count)
        data, file = tmp_path / "data.json", tmp_path / "predictions.json"
        data.write_text(json.dumps({"version": "v2.0", "data": raw}), "utf-8")
        answers = {qa["id"]: [a["text"] for a in qa["answers"]] for qa in plain.all_questions(raw)}
        texts = {id_: prediction(rng, golds) for id_, golds in answers.items()}
        texts = json.loads(json.dumps(texts))  # JSON joins adjacent surrogates to a pair
        check_refusal(file, data, texts, rng)
        file.write_text(json.dumps(texts), "utf-8")
        assert read_predictions(file).values == texts
        check_scores(data, file, raw, texts, rng)
        return len(texts)

    def check_refusal(file, data, texts, rng) -> None:
        """A prediction that is not a string gives one line naming file, question and remedy."""
        bad = rng.choice(list(texts))
        file.write_text(json.dumps({**texts, bad: rng.choice(NON_STRINGS)}), "utf-8")
        code, out, err = qa_arch("evaluate", "--data", data, "--predictions", file)
        protocol, line = err.splitlines()
        assert (code, out, protocol) == (4, "", "protocol: SQuAD 2.0 (from the data)")
        assert line.startswith(f"qa-arch: {file}: {bad}: the prediction is ")
        assert line.endswith('; give a string ("" = no answer)')
        assert len(line) < len(str(file)) + 120

    def check_scores(data, file, raw, texts, rng) -> None:
        questions = read(data)
        scored = {s.id: (s.exact, s.f1) for s in score_questions(questions, texts)}
        expected = plain.raw_20(raw, texts)
        different = [id_ for id_ in texts if scored[id_] != expected[id_]]
        assert not different, ascii([(texts[id_], scored[id_], expected[id_]) for id_ in different[:3]])
        odds = {id_: round(rng.uniform(-2, 2), rng.randrange(4)) for id_ in texts}
        threshold = rng.choice((0.0, 1.0, rng.choice(list(odds.values()))))
        official = score(questions, texts, null_scores=odds, threshold=threshold).official
        assert json.dumps(official) == json.dumps(plain.evaluate_20(raw, texts, odds, threshold))
        check_command(plain.evaluate_20(raw, texts), data, file)
        answerable = [p for a in raw for p in a["paragraphs"] if p["qas"][0]["answers"]]
        for paragraph in answerable:
            del paragraph["qas"][0]["is_impossible"]  # which makes a set one of 2.0
        raw_11 = [{"title": "Mill", "paragraphs": answerable}]
        data.write_text(json.dumps({"version": "1.1", "data": raw_11}), "utf-8")
        check_command(plain.evaluate_11(raw_11, texts), data, file)

    def check_command(expected, data, file) -> None:
        flat = json.loads(qa_arch("evaluate", "--data", data, "--predictions", file)[1])
        assert {key: flat[key] for key in expected} == expected

    return run


def test_600_fuzzed_predictions(check):
    for seed in range(4):
        check(seed=seed, count=150)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_100_000_fuzzed_predictions(check):
    assert sum(check(seed, QUESTIONS) for seed in range(4, ROUNDS + 4)) == 100_000


@pytest.mark.parametrize("id_", ["q\ud800", "q\n\x1b[31mred", "\u2028", "", " "], ids=ascii)
def test_error_with_an_odd_id_is_one_line(tmp_path, qa_arch, id_):
    file = tmp_path / "predictions.json"
    file.write_text(json.dumps({id_: None}), "utf-8")
    code, _, err = qa_arch("evaluate", "--data", "synthetic:dev", "--predictions", file)
    line = err.splitlines()[-1]
    assert code == 4
    assert line.startswith(f"qa-arch: {file}: {id_!r}: the prediction is null (None); ")


def test_note_on_extra_ids_is_one_line(tmp_path, qa_arch, plain):
    raw = articles(random.Random(3), 5)
    data, file = tmp_path / "data.json", tmp_path / "predictions.json"
    data.write_text(json.dumps({"version": "v2.0", "data": raw}), "utf-8")
    ids = [qa["id"] for qa in plain.all_questions(raw)]
    file.write_text(json.dumps({**dict.fromkeys(ids, ""), "x\ny": "", "\udc00": ""}), "utf-8")
    code, _, err = qa_arch("evaluate", "--data", data, "--predictions", file)
    assert (code, r"ids that are not in the data, ignored: 2: 'x\ny' '\udc00'" in err) == (0, True)

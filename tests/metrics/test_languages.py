"""Scoring in other languages, against hand-written cases and MLQA's official evaluation."""

import importlib.util
import json
import random
from pathlib import Path

import pytest

from qa_arch.config.compose import compose
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.metrics import squad
from qa_arch.metrics.squad import LANGUAGES, aggregate, normalise, normaliser, score_questions
from qa_arch.provenance import identify
from qa_arch.types import Example, Gold

MLQA = ("ar", "de", "es", "hi", "vi", "zh")


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("de", "Die „Mühle“ des Müllers", "mühle müllers"),
        ("es", "¿La Casa de las Flores?", "casa de flores"),
        ("vi", "Những cái nhà của tôi", "nhà tôi"),
        ("ar", "الكتاب، القديم", "كتاب قديم"),
        ("zh", "北京大学，1898 年 Peking U.", "北 京 大 学 1898 年 peking u"),
        ("hi", "हिन्दी। भाषा", "हिन्दी भाषा"),
        ("ru", "«Дом» у реки — 12%", "дом у реки 12"),
        ("ja", "「東大寺」、752 年", "東 大 寺 7 5 2  年"),
        ("ko", "《한국》의 ‘서울’. A-B。", "한 국  의  서 울  a b 。"),  # KorQuAD keeps other punctuation
        ("th", "กรุงเทพ ๑ (Bkk)", "ก ร ุ ง เ ท พ  ๑  b k k"),
    ],
)
def test_normalisation_follows_the_language(language, text, expected):
    assert normaliser(language)(text) == expected


def test_scores_follow_the_language_of_the_set():
    examples = [Example("q", "Wo?", "Neben der Mühle steht ein Haus.", "T", (Gold("der Mühle", 6),))]
    german = question_set("set", examples, "1.1", language="de")
    english = question_set("set", examples, "1.1")
    exact = [aggregate(score_questions(s, {"q": "die Mühle"}), "1.1").exact for s in (german, english)]
    assert exact == [100.0, 0.0]
    assert german.fingerprint != english.fingerprint


KOREAN = "한국어 문장은 서울에서 쓴다."


@pytest.mark.parametrize(
    ("predicted", "exact", "f1"),
    [("서울에서", 0, 200 / 3), ("서울", 100, 100), ("서 울", 0, 100), ("《서울》", 100, 100)],
)
def test_korean_answers_are_compared_by_characters_but_for_exact_match(predicted, exact, f1):
    """By KorQuAD's evaluation: 2 of 4 characters; another division into words is not an exact match."""
    examples = [Example("q", "어디?", KOREAN, "T", (Gold("서울", KOREAN.index("서울")),))]
    scores = aggregate(
        score_questions(question_set("set", examples, "1.1", language="ko"), {"q": predicted}), "1.1"
    )
    assert (scores.exact, scores.f1) == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("question", "context", "language"),
    [
        ("東大寺はどこか。", "東大寺は奈良市にある。", "ja"),
        ("어디?", KOREAN, "ko"),
        ("ที่ไหน", "กรุงเทพ", "th"),
        ("北京在哪里？", "北京大学", "zh"),
        ("Where is 北京大学?", "It is in Peking.", None),
        ("Wo?", "Neben der Mühle.", None),
    ],
)
def test_text_that_is_not_divided_by_spaces_is_reported_once(
    question, context, language, caplog, monkeypatch
):
    monkeypatch.setattr(squad, "_warned", set())
    example = Example("q", question, context, "T", (Gold(context, 0),))
    english = Example("r", "Who?", "Ada.", "T", (Gold("Ada", 0),))
    for rules in ("en", language or "en"):
        questions = question_set(
            "set", [example, *([english] if language is None else [])], "1.1", language=rules
        )
        for _ in range(2):
            score_questions(questions, {"q": "x"})
    expected = [f"--language {language} (data.language={language})"] if language else []
    assert [
        code for message, code in zip(caplog.messages, expected, strict=True) if code in message
    ] == expected


def test_a_set_is_opened_in_a_language(tmp_path):
    qas = [{"id": "q", "question": "Wo?", "answers": [{"text": "der Mühle", "answer_start": 6}]}]
    articles = [{"title": "T", "paragraphs": [{"context": "Neben der Mühle.", "qas": qas}]}]
    file = tmp_path / "set.json"
    file.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    german = open_passages(str(file), language="de")
    assert german.language == "de"
    assert german.name == "set"
    assert german.fingerprint != open_passages(str(file)).fingerprint
    overrides = ["data=files", f"data.train={file}", f"data.dev={file}"]
    english, spoken = (compose([*overrides, f"data.language={code}"]) for code in ("en", "de"))
    assert identify(english) == identify({**english, "data": {**english["data"], "language": "en"}})
    assert identify(spoken) != identify(english)


@pytest.fixture(scope="module")
def official(real_data: Path):
    """The official evaluation of MLQA."""
    spec = importlib.util.spec_from_file_location("mlqa", real_data / "official/mlqa_evaluation_v1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("language", MLQA)
def test_fuzzed_answers_equal_the_official_evaluation(language, official):
    draw = random.Random(language)
    pieces = [
        *"aA Zß.,'$%-–„“«»¿¡、。।٪ \t\n\u00a0\u200d１北京ال",
        *["der", "die", "el", "las", "của", "những", "ال", "un", "Ало"],
    ]
    ours = normaliser(language)
    for _ in range(17_000):
        text = "".join(draw.choices(pieces, k=draw.randint(0, 12)))
        text += chr(draw.choice((draw.randrange(0x20, 0x3100), draw.randrange(0x4E00, 0xA000))))
        assert ours(text) == official.normalize_answer(text, language), repr(text)


@pytest.mark.parametrize("language", ["ar", "de", "es", "zh"])
def test_scores_of_xquad_equal_the_official_evaluation(language, official, real_data):
    file = real_data / f"xquad/xquad.{language}.json"
    questions = open_passages(str(file), language=language)
    draw = random.Random(0)
    predictions = {}
    for example in questions.examples:
        start = max(0, example.answers[0].start - draw.randint(0, 6))
        predictions[example.id] = example.context[start : start + draw.randint(1, 30)]
    scores = aggregate(score_questions(questions, predictions), "1.1")
    data = json.loads(file.read_text(encoding="utf-8"))["data"]
    assert dict(scores.official) == official.evaluate(data, predictions, language)
    assert scores.exact > 0
    assert scores.exact < scores.f1


def test_english_uses_the_rules_of_squad():
    assert LANGUAGES[0] == "en"
    assert normalise("The „Mill“") == "„mill“"  # MLQA would drop the quotes

"""The SQuAD evaluation by hand, against the reference, and in other languages against MLQA's official one."""

import importlib.util
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_arch.config.compose import compose
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import read
from qa_arch.errors import DataError
from qa_arch.metrics import squad
from qa_arch.metrics.squad import (
    aggregate,
    best_overlap,
    missing_ids,
    normalise,
    normaliser,
    score,
    score_questions,
)
from qa_arch.provenance import identify
from qa_arch.types import Example, Gold

GOLDS = {
    "q1": ["the red mill", "old red mill"],
    "q2": ["a ferry"],
    "q3": [],
    "q4": [],
    "q5": ["the"],  # normalises to nothing
}
TEXTS = {"q1": "red mill house", "q2": "Ferry!", "q3": "", "q4": "some lamp", "q5": ""}
# exact: q1 0, q2 1, q3 1, q4 0, q5 1 (both empty)                     -> 3 / 5
# F1: q1 against "red mill": p 2/3, r 2/2, F1 = (4/3) / (5/3) = 0.8
#     q1 against "old red mill": p 2/3, r 2/3, F1 = 2/3; best 0.8
#     q2 1, q3 1, q4 0, q5 1                                           -> 3.8 / 5
# HasAns (q1, q2, q5): exact 2/3, F1 2.8/3.  NoAns (q3, q4): 1/2, 1/2
# token precision: (2/3 + 1 + 1 + 0 + 1) / 5; recall: (1 + 1 + 1 + 0 + 1) / 5
# answered: q1, q2 (answerable), q4 (not); abstained: q5 (answerable), q3 (not)


def test_scores_by_hand(gold_set):
    scores = score(gold_set(GOLDS), TEXTS)
    assert list(scores.official) == [
        *("exact", "f1", "total"),
        *("HasAns_exact", "HasAns_f1", "HasAns_total"),
        *("NoAns_exact", "NoAns_f1", "NoAns_total"),
    ]
    expected = [60, 76, 5, 200 / 3, 280 / 3, 3, 50, 50, 2]
    assert list(scores.official.values()) == pytest.approx(expected)
    rates = dict.fromkeys(("precision", "recall", "f1"), pytest.approx(200 / 3))
    assert scores.more == {
        "token_precision": pytest.approx(100 * (2 / 3 + 3) / 5),
        "token_recall": pytest.approx(80),
        **{f"answerable_{key}": rate for key, rate in rates.items()},
        "answerable_accuracy": pytest.approx(60),
        **{"answered_answerable": 2, "answered_unanswerable": 1},
        **{"abstained_answerable": 1, "abstained_unanswerable": 1},
    }
    more = score(gold_set(GOLDS), TEXTS | {"q2": "", "q4": ""}).more
    assert (more["answerable_precision"], more["answerable_recall"]) == (100.0, pytest.approx(100 / 3))
    assert more["answerable_f1"] == pytest.approx(50)  # 2 * 1 * (1/3) / (4/3)


def test_missing_predictions_count_as_0_in_11_and_are_omitted_in_20(gold_set):
    golds = {"q1": ["mill"], "q2": ["ferry"], "q3": ["lamp"], "q4": ["oar"]}
    texts = {"q1": "mill", "q2": "barge", "q3": "lamp"}
    for protocol, total, exact in (("1.1", 4, 50.0), ("2.0", 3, 100.0 * 2 / 3)):
        questions = gold_set(golds, protocol)
        assert missing_ids(questions, texts) == ["q4"]
        scores = aggregate(score_questions(questions, texts), protocol, missing=1)
        counted = scores.more["answered_answerable"] + scores.more["abstained_answerable"]
        assert (counted, scores.exact) == (total, exact)
        with pytest.raises(DataError, match="1 of 4 questions have no prediction: q4"):
            score(questions, texts)


def test_unscorable_sets_are_refused(gold_set):
    two = gold_set({"q1": [], "q2": []})
    with pytest.raises(DataError, match=r"q3: has no answer.*1\.1"):
        score(gold_set(GOLDS, "1.1"), TEXTS)
    with pytest.raises(DataError, match="no prediction belongs"):
        aggregate((), "2.0", missing=5)
    with pytest.raises(DataError, match="q2: has a prediction but no no-answer score"):
        score(two, {"q1": "", "q2": ""}, null_scores={"q1": 0.0, "q2": None})
    for wrong in (None, 3):  # a score of the others would pass for the score of all
        with pytest.raises(DataError, match=f"q2: predicted is {wrong}; give a text"):
            score(two, {"q1": "", "q2": wrong})


def test_single_question_sets_omit_the_missing_kind(gold_set):
    only = score(gold_set({"q": ["mill"]}), {"q": "mill"}, null_scores={"q": 0.2})
    assert (only.exact, only.official["best_f1_thresh"], only.official["pr_exact_ap"]) == (100.0, 0.2, 100.0)
    assert not any(key.startswith("NoAns") for key in only.official)
    never = score(gold_set({"q": []}), {"q": "mill"}, null_scores={"q": 0.2})
    assert (never.exact, never.official["best_f1"], never.official["best_f1_thresh"]) == (0.0, 100.0, 0.0)
    assert not any(key.startswith(("HasAns", "pr_")) for key in never.official)


def test_nan_score_or_infinite_threshold_never_abstains(gold_set):
    questions = gold_set({"q1": [], "q2": [], "q3": ["lamp"], "q4": ["lamp"]})
    texts = {"q1": "mill", "q2": "mill", "q3": "lamp", "q4": "lamp"}
    null = {"q1": math.nan, "q2": math.inf, "q3": -math.inf, "q4": 0.0}  # the last at the threshold itself
    scores = score(questions, texts, null_scores=null, threshold=0.0)
    assert (scores.official["NoAns_exact"], scores.official["HasAns_exact"]) == (50.0, 100.0)
    always = score(questions, texts, null_scores=null, threshold=math.inf)
    assert always.official["NoAns_exact"] == 0.0


@pytest.mark.data
@pytest.mark.parametrize(
    ("data", "published", "exact", "f1"),
    [
        ("dev-v1.1.json", "match_lstm_boundary_ensemble_v1.1_dev.json", 67.63, 76.76),
        ("dev-v2.0.json", "bert_single_v2.0_dev.json", 78.74, 81.78),
    ],
)
def test_published_predictions(data, published, exact, f1, real_data, plain):
    path = real_data / "squad" / data
    questions = read(path)
    texts = json.loads((real_data / "published" / published).read_text("utf-8"))
    scores = score(questions, texts)
    assert (round(scores.exact, 2), round(scores.f1, 2)) == (exact, f1)
    articles = json.loads(path.read_text("utf-8"))["data"]
    reference = plain.evaluate_11 if questions.protocol == "1.1" else plain.evaluate_20
    assert scores.official == reference(articles, texts)


CASES = [
    ("a lamp, an oar & the mill.", "lamp oar mill"),
    ("theatre anthem a1", "theatre anthem a1"),  # only whole words are articles
    ("the", ""),
    ("T.H.E. end", "end"),  # punctuation is removed first and leaves an article
    ("co-operative", "cooperative"),  # removed, not replaced by a space
    ("the–best", "–best"),  # an en dash is not ASCII punctuation and ends a word
    ("an_oar", "anoar"),  # the underscore is punctuation here
    ("the\x00mill", "\x00mill"),  # a control character is neither space nor letter
    ("the\x1cmill", "mill"),  # a space
    ("ΣΑΣ Ünder İ", "σας ünder i\u0307"),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_normalise(text, expected):
    assert normalise(text) == expected


@given(st.text(alphabet=st.one_of(st.sampled_from("aAnNtThHeE \t\n.,'–“_\x00\x1c½Σİ"), st.characters())))
def test_normalise_equals_the_reference(plain, text):
    assert normalise(text) == plain.normal(text)


@pytest.mark.parametrize(
    ("text", "golds", "protocol", "overlap"),
    [
        # shared {red, mill}; precision 2/3, recall 2/4, F1 = 2 * (1/3) / (7/6) = 4/7; of "mill" alone 1/2
        ("red mill house", ["mill", "old red brick mill"], "2.0", (0, 4 / 7, 2 / 3, 2 / 4)),
        ("red mill house", ["old red brick mill", "mill"], "2.0", (0, 4 / 7, 2 / 3, 2 / 4)),
        # multisets: "mill" is shared twice of three and two; precision 2/3, recall 2/2, F1 = 0.8
        ("mill mill mill", ["mill mill"], "1.1", (0, 0.8, 2 / 3, 1)),
        ("mill", ["mill mill"], "1.1", (0, 2 / 3, 1, 0.5)),  # repeated in the gold alone: shared once
        ("mill red", ["red mill"], "2.0", (0, 1, 1, 1)),  # in another order: no exact match
        # Ties in F1 take precision and recall of the first gold. Against "k": shared 1, p 1/4, r 1/1, F1 2/5;
        # against "k m x y z w": shared 2, p 2/4, r 2/6, F1 = (1/3) / (5/6) = 2/5 as well
        ("k k m m", ["k", "k m x y z w"], "2.0", (0, 2 / 5, 1 / 4, 1)),
        ("k k m m", ["k m x y z w", "k"], "2.0", (0, 2 / 5, 2 / 4, 2 / 6)),
        ("", [""], "2.0", (1, 1, 1, 1)),
        ("", [""], "1.1", (1, 0, 0, 0)),
        ("", ["mill"], "2.0", (0, 0, 0, 0)),
        ("mill", [""], "1.1", (0, 0, 0, 0)),
        ("mill", [], "2.0", (0, 0, 0, 0)),
    ],
)
def test_overlap_by_hand(text, golds, protocol, overlap):
    assert best_overlap(text, golds, protocol) == pytest.approx(overlap, abs=1e-15)


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
    examples = [Example("q", question, context, "T", (Gold(context, 0),))]
    if language is None:
        examples.append(Example("r", "Who?", "Ada.", "T", (Gold("Ada", 0),)))
    for rules in ("en", "en", language or "en"):
        score_questions(question_set("set", examples, "1.1", language=rules), {"q": "x"})
    assert len(caplog.messages) == (language is not None)
    assert all(f"--language {language} (data.language={language})" in line for line in caplog.messages)


def test_a_set_is_opened_and_scored_in_a_language(tmp_path):
    qas = [{"id": "q", "question": "Wo?", "answers": [{"text": "der Mühle", "answer_start": 6}]}]
    articles = [{"title": "T", "paragraphs": [{"context": "Neben der Mühle.", "qas": qas}]}]
    file = tmp_path / "set.json"
    file.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    german, english = open_passages(str(file), language="de"), open_passages(str(file))
    assert (german.language, german.name) == ("de", "set")
    assert german.fingerprint != english.fingerprint
    exact = [aggregate(score_questions(s, {"q": "die Mühle"}), "1.1").exact for s in (german, english)]
    assert exact == [100.0, 0.0]
    overrides = ["data=files", f"data.train={file}", f"data.dev={file}"]
    plain, spoken = (compose([*overrides, f"data.language={code}"]) for code in ("en", "de"))
    assert identify(plain) == identify({**plain, "data": {**plain["data"], "language": "en"}})
    assert identify(spoken) != identify(plain)


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

"""Heuristic baselines: what each answers, and that they do not solve the demo set."""

from collections import Counter

import pytest

from baselines.heuristics import AlwaysNoAnswer, RandomSpan, WordOverlap
from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic import named
from qa_arch.metrics.squad import score
from qa_arch.types import Example, Gold, QuestionSet

PASSAGE = "Ostrel is a port. The old bridge was painted by Ilva Morn in spring. Its keeper sells 40 lamps."

HEURISTICS = {
    "always_no_answer": AlwaysNoAnswer(),
    "random_span": RandomSpan(),
    "word_overlap": WordOverlap(),
}


def make_questions(*pairs: tuple[str, str | None]) -> QuestionSet:
    """Questions about PASSAGE with their answers; None for unanswerable ones."""
    examples = [
        Example(f"q{i}", question, PASSAGE, "t", (Gold(text, PASSAGE.index(text)),) if text else ())
        for i, (question, text) in enumerate(pairs)
    ]
    return question_set("made", examples, "2.0")


def test_word_overlap_answers_from_the_sentence_with_most_shared_words() -> None:
    questions = make_questions(
        ("Who painted the old bridge?", None), ("What is Ostrel?", None), ("How many lamps?", None)
    )
    assert WordOverlap(threshold=0.5).predict(questions) == {"q0": "Ilva Morn", "q1": "port", "q2": "40"}
    two_of_three = make_questions(("Who painted the new bridge?", None))
    assert WordOverlap(threshold=2 / 3).predict(two_of_three) == {"q0": "Ilva Morn"}
    assert WordOverlap(threshold=0.67).predict(two_of_three) == {"q0": ""}


def test_word_overlap_fits_the_threshold_that_separates_answerability() -> None:
    questions = make_questions(
        ("Who painted the old bridge?", "Ilva Morn"),
        ("Who drowned near the silver bridge?", None),
        ("Who ran?", None),
    )
    fitted = WordOverlap(threshold=0.0).fit(questions)
    assert fitted.threshold == 1.0
    assert score(questions, fitted.predict(questions)).f1 == 100.0


def test_random_span_draws_spans_uniformly() -> None:
    context = "one two three"
    examples = [Example(f"q{i}", "?", context, "t") for i in range(5000)]
    drawn = Counter(
        RandomSpan(max_words=2, abstain_rate=0.0).predict(question_set("m", examples, "2.0")).values()
    )
    assert set(drawn) == {"one", "two", "three", "one two", "two three"}
    assert max(drawn.values()) < 1.2 * min(drawn.values())


def test_random_span_abstains_at_the_fitted_rate() -> None:
    calibration, dev = named("calibration"), named("dev")
    fitted = RandomSpan(seed=3).fit(calibration)
    assert fitted.abstain_rate == pytest.approx(0.4, abs=0.02)
    texts = list(fitted.predict(dev).values())
    assert texts.count("") / len(texts) == pytest.approx(0.4, abs=0.06)


def test_random_span_depends_only_on_seed_and_id() -> None:
    dev = named("dev")
    whole = RandomSpan(seed=1).predict(dev)
    part = question_set("part", dev.examples[::-3], "2.0")
    assert all(whole[id_] == text for id_, text in RandomSpan(seed=1).predict(part).items())
    assert whole != RandomSpan(seed=2).predict(dev)


def test_heuristics_do_not_solve_the_demo_set() -> None:
    """Models must score 15 points above never answering; heuristics must stay below that."""
    calibration, dev = named("calibration"), named("dev")
    scores = {name: score(dev, model.fit(calibration).predict(dev)) for name, model in HEURISTICS.items()}
    floor = scores["always_no_answer"].f1
    assert floor == pytest.approx(40, abs=2)
    assert scores["random_span"].f1 < floor
    assert scores["word_overlap"].f1 < floor + 12

"""Baselines without a network: heuristics, logistic regression, and rankers that read half of the input."""

import math
import re
from collections import Counter
from random import Random

import numpy as np
import pytest

from baselines.artefacts import main, rank
from baselines.candidates import guess, passage
from baselines.heuristics import AlwaysNoAnswer, RandomSpan, WordOverlap
from baselines.logistic import Settings, SpanLogistic, span_scores
from baselines.span_features import (
    CorpusStatistics,
    PassageFeatures,
    bucket_edges,
    inverse_document_frequencies,
)
from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.data.synthetic import named
from qa_arch.errors import DataError
from qa_arch.files import write_json
from qa_arch.metrics.squad import score
from qa_arch.types import Candidate, Example, Gold, Prediction, QuestionSet

PASSAGE = "Ostrel is a port. The old bridge was painted by Ilva Morn in spring. Its keeper sells 40 lamps."


def make_questions(*pairs: tuple[str, str | None]) -> QuestionSet:
    """Questions about PASSAGE with their answers; None for unanswerable ones."""
    examples = [
        Example(f"q{i}", question, PASSAGE, "t", (Gold(text, PASSAGE.index(text)),) if text else ())
        for i, (question, text) in enumerate(pairs)
    ]
    return question_set("made", examples, "2.0")


def test_word_overlap_answers_from_the_sentence_with_most_shared_words() -> None:
    painted = "Who painted the old bridge?"
    questions = make_questions((painted, None), ("What is Ostrel?", None), ("How many lamps?", None))
    assert WordOverlap(threshold=0.5).predict(questions) == {"q0": "Ilva Morn", "q1": "port", "q2": "40"}
    two_of_three = make_questions(("Who painted the new bridge?", None))
    assert WordOverlap(threshold=2 / 3).predict(two_of_three) == {"q0": "Ilva Morn"}
    assert WordOverlap(threshold=0.67).predict(two_of_three) == {"q0": ""}
    mixed = make_questions((painted, "Ilva Morn"), ("Who drowned near the silver bridge?", None))
    assert WordOverlap(threshold=0.0).fit(mixed).threshold == 1.0, "separates answerability"


def test_random_span_is_uniform_and_depends_only_on_seed_and_id() -> None:
    examples = [Example(f"q{i}", "?", "one two three", "t") for i in range(3000)]
    questions = question_set("m", examples, "2.0")
    texts = RandomSpan(max_words=2, abstain_rate=0.0).predict(questions)
    drawn = Counter(texts.values())
    assert set(drawn) == {"one", "two", "three", "one two", "two three"}
    assert max(drawn.values()) < 1.2 * min(drawn.values())
    part = question_set("part", examples[::-3], "2.0")
    assert RandomSpan(max_words=2, abstain_rate=0.0).predict(part).items() <= texts.items()
    assert RandomSpan(max_words=2, abstain_rate=0.0, seed=2).predict(questions) != texts


def test_heuristics_do_not_solve_the_demo_set() -> None:
    """Models must score 15 points above never answering; heuristics must stay below that."""
    calibration, dev = named("calibration"), named("dev")
    models = [model.fit(calibration) for model in (AlwaysNoAnswer(), RandomSpan(), WordOverlap())]
    assert models[1].abstain_rate == pytest.approx(0.4, abs=0.02)
    floor, random, overlap = (score(dev, model.predict(dev)).f1 for model in models)
    assert floor == pytest.approx(40, abs=2)
    assert random < floor
    assert overlap < floor + 12


TEXT = "The mill stands. Ilva Morn (a painter) sold 1,204 lamps!"


def texts(context: str, max_words: int) -> list[str]:
    spans = passage(context, max_words)
    return [context[slice(*spans.span(place))] for place in range(len(spans))]


def test_candidates_stay_in_a_sentence_without_its_final_mark() -> None:
    assert texts("Ab cd. Ef, gh!", 3) == ["Ab", "cd", "Ef", "gh", "Ab cd", "Ef, gh"]
    spans = texts(TEXT, 4)
    assert {"The mill stands", "Ilva Morn", "(a painter)", "1,204 lamps", "Morn (a painter"} <= set(spans)
    assert not any("stands. Ilva" in text or text[-1] in ".!," for text in spans)
    candidates = passage(TEXT, 4)
    tokens = zip(candidates.first, candidates.last, strict=True)
    assert max(len(candidates.tokens[first : last + 1]) for first, last in tokens) == 4
    assert len(spans) == len(set(spans)), "a span occurs twice"
    assert texts(" ", 3) == texts("...", 3) == []


def made_set(*golds: str) -> QuestionSet:
    examples = [
        Example(f"q{i}", "Who sold them?", TEXT, "t", (Gold(text, TEXT.index(text)),))
        for i, text in enumerate(golds)
    ]
    return question_set("made", examples, "1.1")


def test_guess_depends_only_on_seed_and_id() -> None:
    questions = made_set("mill", "mill", "mill")
    everything = {answer.id: answer.best for answer in guess(questions, seed=3, max_words=2)}
    alone = question_set("one", questions.examples[1:2], "1.1")
    assert guess(alone, seed=3, max_words=2)[0].best == everything["q1"]
    drawn = Counter(guess(alone, seed=seed, max_words=2)[0].text(math.inf) for seed in range(300))
    candidates = texts(TEXT, 2)
    assert set(drawn) == set(candidates)
    expected = 300 / len(candidates)
    assert sum((drawn[text] - expected) ** 2 / expected for text in candidates) < 2.5 * len(candidates)
    (empty,) = guess(question_set("e", [Example("e", "?", "...", "t", (Gold(".", 0),))], "1.1"))
    assert (empty.best, empty.text(math.inf)) == (None, "")


def test_idf_and_buckets() -> None:
    idf, unseen = inverse_document_frequencies(["a mill a mill", "A ferry", "lamp", "oar"])
    assert idf["a"] == pytest.approx(math.log(2))
    assert idf["mill"] == pytest.approx(math.log(4))
    assert unseen == pytest.approx(math.log(5))
    edges = bucket_edges({"x": np.arange(1000.0), "flat": np.zeros(9)})
    sizes = Counter(np.searchsorted(edges["x"], np.arange(1000.0)).tolist())
    assert set(sizes) == set(range(10))
    assert max(sizes.values()) - min(sizes.values()) <= 2
    assert len(edges["flat"]) == 1


IDF = {"the": 1.0, "red": 2.0, "mill": 4.0, "by": 8.0, "ferry": 16.0, "sells": 32.0, "lamps": 64.0}


def features(context: str, rows: int = 2**40) -> PassageFeatures:
    spans = passage(context, 3)
    names = PassageFeatures(spans, CorpusStatistics(IDF, 128.0, {}), 1).values("Who?")
    return PassageFeatures(
        spans, CorpusStatistics(IDF, 128.0, {name: np.arange(300.0) for name in names}), rows
    )


def test_feature_values_by_hand() -> None:
    passage_features = features("Oar. The red mill by the ferry sells lamps.")
    values = passage_features.values("Does the red mill sell lamps?")
    spans = passage_features.spans
    place = spans.index(13, 20)  # "mill by"
    assert place is not None
    a, b = int(spans.first[place]), int(spans.last[place])
    lengths = {name: int(values[name][a]) for name in ("left length", "sentence length")}
    assert lengths == {"left length": 2, "sentence length": 9}  # the full stop counts
    assert (values["right length"][b], values["length"][place]) == (5, 2)
    assert values["span words"][place] == 4 + 8
    # shared: the red mill ... the ... lamps
    shared = values["words left"][a], values["words right"][b], values["words inside"][place]
    assert shared == (3, 65, 4)
    assert values["words in sentence"][a] == 1 + 2 + 4 + 1 + 64
    # shared bigrams: "the red", "red mill", each at its first word
    assert values["bigrams left"][a] == (1 + 2) + (2 + 4)
    assert values["bigrams in sentence"][a] == 9
    assert (values["bigrams right"][b], values["bigrams inside"][place]) == (0, 0)
    assert not any(map(len, features(" ").values("Who?").values()))


CONTEXT = "Oar. The red mill by the ferry sells lamps. Ilva sold 40 in 1971, and left."


def test_words_of_one_class_look_alike_and_their_order_matters() -> None:
    shapes = PassageFeatures(passage("the wet mill the old mill", 3), CorpusStatistics({}, 1.0, {}), 1).shape
    assert shapes[-4] == shapes[-1]
    assert len(set(shapes[-4:-1])) == 3
    passage_features = features(CONTEXT)
    who, when = passage_features.rows("Who sells?"), passage_features.rows("When sells?")
    assert not set(who.inside[:, 0]) & set(when.inside[:, 0]), "features are paired with the question word"


def test_scores_are_sums_of_their_weights() -> None:
    passage_features = features(CONTEXT, rows=97)
    spans, rows = passage_features.spans, passage_features.rows("Who sells red lamps?")
    weight = np.random.default_rng(0).normal(size=(97, 2))

    def plain(place: int) -> np.ndarray:
        """Scores of one candidate, adding its weights one by one."""
        a, b = int(spans.first[place]), int(spans.last[place])
        parts = [rows.span[place], rows.start[a], rows.end[b]]
        for t in (t for t in range(len(spans.tokens)) if spans.sentence[t] == spans.sentence[a]):
            if a <= t <= b:
                parts.append(rows.inside[t])
            elif a - 2 <= t < a:
                parts.append(rows.left[t])
            elif b < t <= b + 2:
                parts.append(rows.right[t])
        return sum(weight[part].sum(0) for part in parts)

    np.testing.assert_allclose(span_scores(spans, rows, weight), [*map(plain, range(len(spans)))])


def test_step_follows_the_gradient_of_the_penalised_likelihood() -> None:
    questions = made_set("Ilva Morn", "mill")
    model = SpanLogistic(Settings(l2=(0.0, 0.3), bits=9, max_words=3, passes=1))
    list(model.fit(questions))
    assert model.statistics is not None
    start = np.random.default_rng(2).normal(size=model.weight.shape)
    spans = passage(TEXT, 3)
    passage_features = PassageFeatures(spans, model.statistics, 2**9)
    golds = [(e.question, e.answers[0]) for e in questions.examples]
    examples = [
        (passage_features.rows(question), spans.index(gold.start, gold.end)) for question, gold in golds
    ]
    touched = np.unique(np.concatenate([ids.ravel() for rows, _ in examples for ids in rows]))

    def objective(weight: np.ndarray, column: int, l2: float) -> float:
        scored = [(span_scores(spans, rows, weight)[:, column], gold) for rows, gold in examples]
        loss = sum(math.log(np.exp(scores).sum()) - scores[gold] for scores, gold in scored)
        return loss + l2 * (weight[touched, column] ** 2).sum()

    model.weight = start.copy()
    model._squares = np.full_like(start, 1e6)  # AdaGrad's step is then lr * gradient / 1000, nearly
    model._step(questions.examples)
    step = (start - model.weight) / 0.1 * 1000
    untouched = np.setdiff1d(np.arange(2**9), touched)
    assert (step[untouched] == 0).all()
    for row in touched[::7]:
        for column, l2 in enumerate((0.0, 0.3)):
            nudge = np.zeros_like(start)
            nudge[row, column] = 1e-5
            slope = (objective(start + nudge, column, l2) - objective(start - nudge, column, l2)) / 2e-5
            assert step[row, column] == pytest.approx(slope, rel=1e-3, abs=1e-5)


class Scripted(SpanLogistic):
    """Column l answers as many questions correctly as its weights say, which follow a script."""

    def __init__(self, script: list[tuple[int, int]], patience: int) -> None:
        super().__init__(Settings(l2=(0.1, 1.0), bits=2, patience=patience))
        self.script = script

    def fit(self, train):
        for number, row in enumerate(self.script, 1):
            self.weight[:] = row
            yield {"pass": number}

    def predict(self, questions, column):
        right = int(self.weight[0, column])
        texts = [e.answers[0].text if nth < right else "x" for nth, e in enumerate(questions.examples)]
        candidates = [Candidate(text, 0, 1, 0.0, 1.0) for text in texts]
        return [Prediction(e.id, c, 0.0, 1) for e, c in zip(questions.examples, candidates, strict=True)]


@pytest.mark.parametrize(
    ("script", "patience", "number", "column", "passes"),
    [
        ([(1, 2), (3, 2), (2, 3), (4, 4)], 1, 2, 0, 3),  # the third pass is no better, the fourth is not run
        ([(1, 2), (1, 3), (2, 4)], 1, 3, 1, 3),  # still improving at the end
        ([(3, 3), (0, 0)], 5, 1, 0, 2),  # the best pass is not the last
    ],
)
def test_best_pass_and_penalty_are_restored(script, patience, number, column, passes) -> None:
    held, history = made_set("Ilva Morn", "mill", "painter", "lamps"), []
    model = Scripted(script, patience)
    chosen = model.choose(held, held, history.append)
    assert (chosen.number, chosen.column) == (number, column)
    right = script[number - 1][column]
    assert (model.weight[:, column] == right).all(), "the weights of the best pass are restored"
    assert [a.best.text == "x" for a in chosen.answers].count(False) == right
    assert chosen.f1 == 25 * right
    by_l2 = [[25 * n for n in row] for row in script[:passes]]
    assert [metrics["calibration_f1_by_l2"] for metrics in history] == by_l2


def planted(name: str, *, seed: int) -> QuestionSet:
    """Questions of random words; exactly those with "never" are unanswerable."""
    rng, examples = Random(seed), []
    for q in range(400):
        words = [f"w{rng.randrange(60)}" for _ in range(6)]
        impossible = rng.random() < 0.5
        words.insert(rng.randrange(6), "never" if impossible else "often")
        context = " ".join(f"c{rng.randrange(60)}" for _ in range(20))
        golds = () if impossible else (Gold(context.split()[0], 0),)
        examples.append(Example(f"{name}{q}", " ".join(words), context, f"{name}{q % 40}", golds))
    return question_set(name, examples, "2.0")


def test_ordered_word_pairs_are_features():
    def make_questions(*questions: tuple[str, bool]) -> QuestionSet:
        golds = {True: (Gold("p", 0),), False: ()}
        rows = [Example(f"q{i}", text, "p", "t", golds[yes]) for i, (text, yes) in enumerate(questions)]
        return question_set("made", rows, "2.0")

    train = make_questions(*[("a b", True), ("b a", False)] * 3)
    scores = rank(train, make_questions(("A b", True), ("b a", False), ("unknown", True)), "question")
    assert scores[0] > scores[2] > scores[1]
    np.testing.assert_allclose(scores[0], -scores[1], atol=1e-4)
    with pytest.raises(DataError, match="fitting needs both answerable and unanswerable"):
        rank(make_questions(("a", True), ("b", True)), train, "question")


def test_planted_word_is_found_only_in_the_half_that_contains_it(tmp_path, capsys):
    paths = {name: str(tmp_path / f"{name}.json") for name in ("train", "other")}
    for seed, (name, path) in enumerate(paths.items()):
        write_json(path, write(planted(name, seed=seed)))
    assert main(["--train", paths["train"], "--data", paths["other"]]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "question alone: AUC 100.0 (95% 100.0 to 100.0)"
    assert float(re.match(r"context alone: AUC ([\d.]+) ", second)[1]) == pytest.approx(50, abs=8)
    assert main(["--train", paths["train"], "--data", paths["train"]]) != 0
    assert "share 40 articles" in capsys.readouterr().err

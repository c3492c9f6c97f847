"""Rankers that read half of the input: a planted artefact is found, shuffled labels give chance."""

from random import Random

import numpy as np
import pytest

from baselines.artefacts import answerable, main, rank
from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.errors import DataError
from qa_arch.files import write_json
from qa_arch.metrics.abstention import auroc
from qa_arch.types import Example, Gold, QuestionSet


def planted(name: str, *, seed: int, shuffled: bool = False, articles: int = 40) -> QuestionSet:
    """Questions of random words; exactly those with "never" are unanswerable."""
    rng, examples = Random(seed), []
    for q in range(400):
        words = [f"w{rng.randrange(60)}" for _ in range(6)]
        impossible = rng.random() < 0.5
        words.insert(rng.randrange(6), "never" if impossible else "often")
        unanswerable = impossible if not shuffled else rng.random() < 0.5
        context = " ".join(f"c{rng.randrange(60)}" for _ in range(20))
        golds = () if unanswerable else (Gold(context.split()[0], 0),)
        examples.append(Example(f"{name}{q}", " ".join(words), context, f"{name}{q % articles}", golds))
    return question_set(name, examples, "2.0")


def area(train: QuestionSet, scored: QuestionSet, half: str) -> float:
    value = auroc(rank(train, scored, half), answerable(scored))
    assert value is not None
    return 100 * value


def test_planted_word_is_found_only_in_the_half_that_contains_it():
    train, scored = planted("train", seed=1), planted("other", seed=2)
    assert area(train, scored, "question") == 100
    assert area(train, scored, "context") == pytest.approx(50, abs=8)


def test_shuffled_labels_are_ranked_at_chance():
    train = planted("train", seed=3, shuffled=True)
    assert area(train, planted("other", seed=4, shuffled=True), "question") == pytest.approx(50, abs=8)


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


def test_command_prints_both_rows_and_refuses_shared_articles(tmp_path, capsys):
    paths = {name: tmp_path / f"{name}.json" for name in ("train", "other")}
    for seed, (name, path) in enumerate(paths.items()):
        write_json(path, write(planted(name, seed=seed)))
    train, other = map(str, paths.values())
    assert main(["--train", train, "--data", other]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "question alone: AUC 100.0 (95% 100.0 to 100.0)"
    assert second.startswith("context alone: AUC ")
    assert main(["--train", train, "--data", train]) != 0
    assert "share 40 articles" in capsys.readouterr().err

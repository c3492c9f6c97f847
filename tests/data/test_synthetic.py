"""Generated questions: correct offsets, disjoint splits, all kinds, and no shortcuts."""

import re
from collections import Counter

import pytest
from scripts import load

from qa_arch.data.synthetic import DEMO_LEVELS, DEMO_SEED, DEMO_SIZES, SPLITS, generate, named, split_of
from qa_arch.errors import ConfigError

LEVEL_3 = load("synthetic/level3.py")
LEVELS, KINDS = LEVEL_3.LEVELS, LEVEL_3.KINDS


@pytest.mark.parametrize("level", LEVELS)
def test_questions_are_correct_and_have_no_shortcut(level: int) -> None:
    """Always answering from the n-th sentence or from a fixed position is rarely right."""
    examples = generate(60, seed=5, levels=level, known=LEVELS).examples
    for example in examples:
        for gold in example.answers + example.plausible:
            assert example.context[gold.start : gold.end] == gold.text != ""
    assert 0.37 < sum(not example.answerable for example in examples) / len(examples) < 0.43
    assert all(example.answerable == (example.kind is None) for example in examples)
    if level == 3:
        counts = Counter(example.kind for example in examples if example.kind)
        assert set(counts) == set(KINDS)
        assert min(counts.values()) > 0.1 * sum(counts.values())
    answerable = [example for example in examples if example.answerable]
    sentences = Counter(example.context[: example.answers[0].start].count(". ") for example in answerable)
    tenths = Counter(10 * example.answers[0].start // len(example.context) for example in answerable)
    assert max(sentences.values()) < 0.5 * len(answerable)
    assert max(tenths.values()) < 0.3 * len(answerable)


def test_sets_of_recorded_runs_are_fixed() -> None:
    """Their records store these fingerprints: a changed text would make them records of other data. Every
    test process has different string hashes."""
    fingerprints = {which: named(which).fingerprint[:12] for which in ("dev", "calibration", "dev:L2")}
    assert fingerprints == {"dev": "8553419ba09f", "calibration": "cca9347f12b9", "dev:L2": "8b39e19ec6bb"}
    third = generate(DEMO_SIZES["dev"], DEMO_SEED, 3, "dev", LEVELS)
    assert third.fingerprint[:12] == "d78f788919f2"
    assert generate(5, 3).fingerprint != generate(5, 4).fingerprint


def test_names_of_one_split_do_not_occur_in_another() -> None:
    words = {}
    for split in SPLITS:
        examples = generate(40, 1, 1, split).examples
        text = " ".join(" ".join([e.title, *(gold.text for gold in e.answers)]) for e in examples)
        words[split] = set(re.findall(r"[A-Z]\w+", text))
    shared = set.union(*(words[a] & words[b] for a in SPLITS for b in SPLITS if a != b))
    titles = "Captain Clan Doctor Guild Judge Lady Sister The Tower Works"
    assert shared <= {*titles.split()}
    names = words["train"] - shared
    assert len(names) > 200
    assert all(split_of(word) == "train" for word in names)


def test_demo_sets_have_the_same_difficulty_and_share_no_article() -> None:
    sets = [generate(100, DEMO_SEED, DEMO_LEVELS, split) for split in SPLITS]
    assert len(frozenset().union(*(questions.titles for questions in sets))) == 300
    for questions in sets:
        levels = Counter(re.search(r"-L(\d)-", example.id)[1] for example in questions.examples)
        assert levels["1"] / len(questions) == pytest.approx(DEMO_LEVELS[1], abs=0.08)
        assert levels["3"] == 0


def test_out_of_range_arguments_are_named() -> None:
    for arguments in ((0, 1), (1, 1, 4), (1, 1, {}), (1, 1, {1: -1.0})):
        with pytest.raises(ConfigError, match="articles=0" if arguments[0] == 0 else "levels="):
            generate(*arguments)

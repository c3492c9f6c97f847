"""Generated questions: correct offsets, disjoint splits, all kinds, and no shortcuts."""

import json
import re
from collections import Counter

import pytest
from scripts import load

from qa_arch.data.squad import read
from qa_arch.data.synthetic import (
    DEMO_LEVELS,
    DEMO_SEED,
    DEMO_SIZES,
    RELATIONS,
    SPLITS,
    SUBJECTS,
    generate,
    named,
    split_of,
)
from qa_arch.errors import ConfigError
from qa_arch.types import Example, QuestionSet

LEVEL_3 = load("synthetic/level3.py")
LEVELS, KINDS, EVENTS = LEVEL_3.LEVELS, LEVEL_3.KINDS, LEVEL_3.EVENTS
SETS = {level: generate(60, seed=5, levels=level, known=LEVELS) for level in LEVELS}
FRAMES = "After According As Captain Clan Doctor Each Guild In Judge Lady Sister Songs The Travellers"
TEMPLATE_WORD = re.compile(r"[A-Z]\w+")


@pytest.mark.parametrize("level", LEVELS)
def test_offsets_are_correct_and_two_fifths_are_unanswerable(level: int) -> None:
    examples = SETS[level].examples
    for example in examples:
        for gold in example.answers + example.plausible:
            assert example.context[gold.start : gold.end] == gold.text != ""
    assert 0.37 < sum(not example.answerable for example in examples) / len(examples) < 0.43
    assert all(example.answerable == (example.kind is None) for example in examples)
    if level == 3:
        counts = Counter(example.kind for example in examples if example.kind)
        assert set(counts) == set(KINDS)
        assert min(counts.values()) > 0.1 * sum(counts.values())


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
        text = " ".join(f"{e.title} {e.question} {e.context}" for e in generate(40, 1, 1, split).examples)
        words[split] = set(TEMPLATE_WORD.findall(text))
    shared = set.union(*(words[a] & words[b] for a in SPLITS for b in SPLITS if a != b))
    inventory = words["train"] - shared
    assert len(inventory) > 200
    assert all(split_of(word) == "train" for word in inventory)
    assert shared <= _fixed_words()


def _fixed_words() -> set[str]:
    """Capitalised words that come from sentence patterns, not from name inventories."""
    patterns = [word.question + word.before + word.after for r in RELATIONS.values() for word in r.wordings]
    fixed = set(TEMPLATE_WORD.findall(" ".join(patterns) + " ".join(kind.name for kind in SUBJECTS)))
    return fixed | set(FRAMES.split())


def test_level_1_shares_the_relation_word_and_level_2_does_not() -> None:
    """The relation word is what a question has besides the subject's name and function words."""
    assert all(_relation_word(e) in _sentence(e) for e in SETS[1].examples if e.answerable)
    assert not any(_relation_word(e) in _sentence(e) for e in SETS[2].examples if e.answerable)


def _relation_word(example: Example) -> str:
    """The word shared by question and statement in the wording whose question pattern fits."""
    for relation in RELATIONS.values():
        for wording in relation.wordings:
            pattern = re.escape(wording.question).replace(r"\{s\}", ".+").replace(r"\{n\}", "")
            if re.fullmatch(pattern, example.question):
                stated = set(re.findall(r"\w+", wording.before + wording.after))
                shared = [word for word in re.findall(r"\w+", wording.question) if word in stated]
                return next(w for w in shared if len(w) > 1 and w not in ("was", "had", "by", "of", "the"))
    raise AssertionError(example.question)


def _sentence(example: Example) -> str:
    start = example.context.rfind(". ", 0, example.answers[0].start) + 1
    return example.context[start : example.context.index(".", example.answers[0].start)]


def test_unanswerable_questions_of_level_3_use_facts_of_the_passage() -> None:
    for example in SETS[3].examples:
        if example.kind == "impossible_condition":
            event = next(event for event in EVENTS if example.question.endswith(f" after {event}?"))
            assert event not in example.context
        if example.kind == "mutual_exclusion":
            trait = re.search(r"the (\S+) \w+ ", example.question)
            assert trait
            assert f"{example.question.split(trait[0])[1].rstrip('?').split(' ')[0]}" in example.context
        assert bool(example.plausible) == (example.kind not in (None, "other_neutral"))


def test_answerable_questions_have_conditions_and_negations_too() -> None:
    """Otherwise a model could recognise unanswerable questions by their form alone."""
    answerable = [example.question for example in SETS[3].examples if example.answerable]
    traits = {trait for kind in SUBJECTS for pair in kind.traits for trait in pair}
    assert sum(" never " in question for question in answerable) > 20
    assert sum(" after the " in question for question in answerable) > 20
    assert sum(not traits.isdisjoint(question.split()) for question in answerable) > 20


@pytest.mark.parametrize("level", LEVELS)
def test_answer_position_is_not_predictive(level: int) -> None:
    """Always answering from the n-th sentence or from a fixed position is rarely right."""
    answerable = [example for example in SETS[level].examples if example.answerable]
    sentences = Counter(example.context[: example.answers[0].start].count(". ") for example in answerable)
    tenths = Counter(10 * example.answers[0].start // len(example.context) for example in answerable)
    assert max(sentences.values()) < 0.5 * len(answerable)
    assert max(tenths.values()) < 0.3 * len(answerable)


def test_demo_sets_have_the_same_difficulty_and_share_no_article() -> None:
    sets = [generate(100, DEMO_SEED, DEMO_LEVELS, split) for split in SPLITS]
    assert len(frozenset().union(*(questions.titles for questions in sets))) == 300
    for questions in sets:
        assert _share(questions, "-L1-") == pytest.approx(DEMO_LEVELS[1], abs=0.08)
        assert _share(questions, "-L3-") == 0


def _share(questions: QuestionSet, part: str) -> float:
    return sum(part in example.id for example in questions.examples) / len(questions)


def test_out_of_range_arguments_are_named() -> None:
    for arguments in ((0, 1), (1, 1, 4), (1, 1, {}), (1, 1, {1: -1.0})):
        with pytest.raises(ConfigError, match="articles=0" if arguments[0] == 0 else "levels="):
            generate(*arguments)


def test_command_writes_a_file_that_reads_back_unchanged(tmp_path, qa_arch) -> None:
    out = tmp_path / "deep" / "set.json"
    settings = ("--articles", 4, "--seed", 9, "--level", 2, "--split", "dev")
    code, printed, _ = qa_arch("data", "synthetic", *settings, "--out", out)
    questions = generate(4, 9, 2, "dev")
    assert (code, f"{len(questions)} questions in 4 articles" in printed) == (0, True)
    assert read(out).fingerprint == questions.fingerprint
    assert json.loads(out.read_text())["version"] == "v2.0"

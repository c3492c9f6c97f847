"""Whole sets: splits of disjoint articles that lose nothing and are reproducible, and statistics."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_arch.config.schema import Data
from qa_arch.data import sources
from qa_arch.data.files import Format
from qa_arch.data.question_sets import question_set, statistics
from qa_arch.data.splits import by_article, hold_out, load_splits, require_disjoint, shared_articles, subset
from qa_arch.data.squad import read, write
from qa_arch.errors import ConfigError, DataError
from qa_arch.files import write_json
from qa_arch.types import Example, Gold, Problem, QuestionSet

THIRDS = {"train": 0.6, "calibration": 0.2, "dev": 0.2}


def make_set(sizes: list[int], order: list[int] | None = None) -> QuestionSet:
    """A set with ``sizes[i]`` questions on article i ("A0", "A1", ...), the articles in ``order``."""
    examples = [
        Example(f"{article}-{index}", "Q?", f"Text of {article}.", f"A{article}", (Gold("Text", 0),))
        for article in (order or range(len(sizes)))
        for index in range(sizes[article])
    ]
    return question_set("set", examples, "2.0")


SIZES = st.lists(st.integers(1, 40), min_size=3, max_size=12)


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 99), data=st.data())
def test_split_loses_and_shares_nothing(sizes, seed, data):
    questions = make_set(sizes)
    parts = by_article(questions, THIRDS, seed)
    assert list(parts) == list(THIRDS)
    assert all(parts.values())
    require_disjoint(**parts)
    assert sum(map(len, parts.values())) == len(questions)
    for name, part in parts.items():
        assert part.examples == tuple(e for e in questions.examples if e.title in part.titles)
        assert (part.name, part.protocol) == (f"set.{name}", "2.0")
    other = make_set(sizes, data.draw(st.permutations(range(len(sizes)))))  # another order of the file
    reordered = by_article(other, THIRDS, seed)
    assert [part.titles for part in parts.values()] == [part.titles for part in reordered.values()]
    assert hold_out(questions, 2, seed)[1].titles == hold_out(other, 2, seed)[1].titles


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=3, max_size=7), seed=st.integers(0, 9))
def test_no_single_move_or_swap_comes_closer_to_the_fractions(sizes, seed):
    parts = by_article(make_set(sizes), THIRDS, seed)
    place = {title: name for name, part in parts.items() for title in part.titles}

    def distance(place):
        counts = Counter(dict.fromkeys(THIRDS, 0))
        for title, name in place.items():
            counts[name] += sizes[int(title[1:])]
        return sum((counts[name] - share * sum(sizes)) ** 2 for name, share in THIRDS.items())

    for a, b in product(place, repeat=2):
        for changed in ({**place, a: place[b]}, {**place, a: place[b], b: place[a]}):
            if set(changed.values()) == set(THIRDS):
                assert distance(changed) > distance(place) - 1e-5


def test_hold_out_takes_whole_articles_and_not_all():
    # Recorded experiments list these articles: another draw for the same seed would invalidate them.
    assert hold_out(make_set([2] * 10), 3, seed=13)[1].titles == {"A6", "A2", "A3"}
    questions = make_set([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    for count in (1, 9):
        rest, held = hold_out(questions, count, seed=1)
        assert (len(held.titles), rest.name, held.name) == (count, "set.rest", "set.held")
        assert not rest.titles & held.titles
        assert len(rest) + len(held) == len(questions)
    for count in (-1, 0, 10):
        with pytest.raises(ConfigError, match="choose 1 to 9"):
            hold_out(questions, count, seed=0)
    for fractions in ({"a": 0.5, "b": 0.4}, {"a": 1.2, "b": -0.2}, {"a": 1.0, "b": 0.0}, {}):
        with pytest.raises(ConfigError, match="positive and sum to 1"):
            by_article(make_set([1, 1]), fractions, 0)


@pytest.mark.parametrize("seed", range(5))
def test_every_part_has_answerable_and_unanswerable_questions_if_articles_allow_it(seed, caplog):
    def mixed_set(articles):  # a question for every letter of every article: ``a`` answerable, ``n`` not
        examples = [
            Example(f"{n}-{i}", "Q?", f"Text of {n}.", f"A{n}", (Gold("Text", 0),) if kind == "a" else ())
            for n, kinds in enumerate(articles)
            for i, kind in enumerate(kinds)
        ]
        return question_set("set", examples, "2.0")

    def one_class(part):
        return len({example.answerable for example in part.examples}) == 1

    questions = mixed_set(["aaaa"] * 12 + ["nn", "nn", "an"])
    fractions = {"train": 0.8, "calibration": 0.2}
    parts = by_article(questions, fractions, seed)
    assert not any(map(one_class, [*parts.values(), *hold_out(questions, 3, seed)]))
    assert not caplog.messages
    assert parts["train"].titles == by_article(questions, fractions, seed)["train"].titles
    parts = by_article(mixed_set(["aaaa"] * 12 + ["nn"]), fractions, seed)
    lacking = [name for name, part in parts.items() if one_class(part)]
    named = [re.search(r"the part (\w+) are answerable, or all", line)[1] for line in caplog.messages]
    assert named == lacking != []


def test_a_single_article_is_split_by_passage(caplog):
    passages = [Example(str(n), "Q?", f"Text {n // 2}.", "Test", (Gold("Text", 0),)) for n in range(20)]
    questions = question_set("set", passages, "1.1")
    for train, held in (by_article(questions, {"a": 0.8, "b": 0.2}, 3).values(), hold_out(questions, 2, 3)):
        assert (len(train), len(held)) == (16, 4)
        require_disjoint(train=train, held=held)
        assert not {e.context for e in train.examples} & {e.context for e in held.examples}
    assert set(caplog.messages) == {"set: has a single article, and is split by passage"}
    one = question_set("set", passages[:2], "1.1")
    with pytest.raises(DataError, match=r"1 article cannot be split into 2 parts; .* \(data.calibration\)"):
        by_article(one, {"a": 0.8, "b": 0.2}, 3)
    with pytest.raises(ConfigError, match=r"1 articles of set; name a calibration set \(data.calibration\)"):
        hold_out(one, 1, 3)


def test_passages_of_a_single_article_may_not_recur_under_another_title(tmp_path):
    for name, title, numbers in (
        ("train", "Test", range(4)),
        ("fresh", "Test", range(4, 6)),
        ("dev", "Dev", [3]),
    ):
        examples = [Example(f"{name}{n}", "Q?", f"Text {n}.", title, (Gold("Text", 0),)) for n in numbers]
        write_json(tmp_path / f"{name}.json", write(question_set(name, examples, "1.1")))
    paths = [str(tmp_path / f"{name}.json") for name in ("train", "fresh", "dev")]
    data = Data("x", paths[0], paths[1], None, 0, 0.25, 1, 0, "raise", True)
    assert [len(questions) for questions in load_splits(data).values()] == [3, 1, 2]
    assert load_splits(replace(data, language="de"))["train"].language == "de"
    for changed in (replace(data, dev=paths[2]), replace(data, dev=paths[2], open_dev=False)):
        with pytest.raises(DataError, match=r"and dev.* share 1 article"):
            load_splits(changed)


@pytest.mark.parametrize(("train", "scored"), [("titled", "bare"), ("bare", "titled")])
def test_a_set_without_titles_is_compared_by_passages(tmp_path, train, scored):
    titled, paths = make_set([2, 2, 2]), {name: str(tmp_path / f"{name}.json") for name in ("titled", "bare")}
    content = write(titled)
    write_json(tmp_path / "titled.json", content)
    for article in content["data"]:
        del article["title"]
    write_json(tmp_path / "bare.json", content)
    data = Data("x", paths[train], None, None, 0, 0.0, 1, 0, "raise", True)
    given = replace(data, calibration=paths[scored]), replace(data, dev=paths[scored])
    for changed in (*given, replace(given[1], open_dev=False)):
        with pytest.raises(DataError, match=r"share 3 articles"):
            load_splits(changed)
    bare = read(paths["bare"])
    assert shared_articles(titled.titles, bare) == set(), "a record has no passages"
    assert len(shared_articles(bare.titles, titled)) == 3


def test_only_training_questions_need_places_of_answers(tmp_path):
    sound, misplaced = (tmp_path / name for name in ("sound.json", "misplaced.json"))
    write_json(sound, write(make_set([2, 2])))
    content = write(make_set([0, 0, 2]))
    content["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "Elsewhere", "answer_start": 3}]
    write_json(misplaced, content)
    data = Data("files", str(sound), str(misplaced), None, 1, 0.0, 13, 0, "raise", True)
    assert load_splits(data)["dev"].examples[0].answers == (Gold("Elsewhere", -1),)
    with pytest.raises(DataError, match=r"misplaced\.json"):
        load_splits(replace(data, train=str(misplaced), dev=str(sound)))


def test_subset_depends_on_the_seed_and_grows_with_its_size():
    sizes = [4, 7, 1, 9, 4, 4, 6, 2, 3, 5, 8, 4]
    questions = make_set(sizes)
    assert len({subset(questions, 8, seed).titles for seed in range(6)}) > 3
    assert set(subset(questions, 7, 2).examples) < set(subset(questions, 19, 2).examples)
    for n in (1, 10, 33, 200):
        part = subset(questions, n, 2)
        assert len(part) == min(n, len(questions))
        assert list(part.examples) == [e for e in questions.examples if e in set(part.examples)]
        counts = Counter(example.title for example in part.examples)
        assert sum(count < sizes[int(title[1:])] for title, count in counts.items()) <= 1, "whole articles"
    with pytest.raises(ConfigError, match="at least 1"):
        subset(questions, 0, 0)
    faulty = replace(questions, skipped=(Problem("q", "", ""),))
    parts = by_article(faulty, {"train": 0.5, "calibration": 0.5}, 0)
    for part in (*parts.values(), *hold_out(faulty, 2, 0), subset(faulty, 3, 0)):
        assert len(part.skipped) == 1, "parts say what was left out of their file"


def test_shared_articles_are_named():
    first, second, other = make_set([2, 2, 2]), make_set([1, 1]), frozenset({"A2", "Z"})
    message = r"train and dev share 2 articles \('A0', 'A1'\); train and past share 1 article \('A2'\);"
    with pytest.raises(DataError, match=message):
        require_disjoint(train=first, dev=second, past=other)
    require_disjoint(dev=second, past=other)


@pytest.mark.data
def test_real_parts_are_disjoint_and_an_80_20_split_is_close(real_data):
    folder = real_data / "squad"
    train, dev = read(folder / "train-v2.0.part.json"), read(folder / "dev-v2.0.fold_a.json")
    require_disjoint(train=train, calibration=read(folder / "calibration-v2.0.json"), dev=dev)
    parts = by_article(train, {"train": 0.8, "dev": 0.2}, seed=13)
    assert abs(len(parts["train"]) / len(train) - 0.8) < 0.001
    with pytest.raises(DataError, match="share 16 articles"):
        require_disjoint(fold=dev, whole=read(folder / "dev-v2.0.json"))


def test_format_without_counts_is_refused(qa_arch, monkeypatch):
    pairs = Format("pairs:FILE", "a set of pairs", open=None, holds="pairs")
    monkeypatch.setattr(sources, "_format", lambda scheme: pairs)
    code, _, err = qa_arch("stats", "--data", "pairs.tsv")
    assert (code, err.count("\n")) == (2, 1)
    assert "pairs.tsv: its format has no statistics; name a set with passages" in err


@pytest.mark.parametrize("option", ["--on-error skip", "--on-error raise", "--language de", "--encoder bert"])
def test_option_of_passages_is_refused_for_a_set_without(qa_arch, monkeypatch, option):
    pairs = Format("pairs:FILE", "a set of pairs", open=None, holds="pairs", counts=lambda source: {})
    monkeypatch.setattr(sources, "_format", lambda scheme: pairs)
    code, _, err = qa_arch("stats", "--data", "pairs.tsv", *option.split())
    reason = "is for sets with passages, and pairs.tsv has none; leave it out"
    assert (code, f"{option.split()[0]} {reason}" in err) == (2, True)


def test_ceiling_of_a_tokenizer(tmp_path, qa_arch, monkeypatch):
    """ "Velmora" is a part of a token, and an answer of 40 tokens longer than conf/decode allows."""
    from qa_arch.features import tokenizers

    encoder, text = tmp_path / "encoder", "Velmoran sailors left a mill-wheel."
    tokenizers.build("wordpiece", [text] * 50, 400).save_pretrained(encoder)
    (encoder / "config.json").write_text('{"model_type": "bert"}')
    long = "Velmoran sailors left a " * 10
    examples = [
        Example("1", "who", text, "X", (Gold("Velmora", 0),)),
        Example("2", "what", text, "X", (Gold("mill-wheel", 24),)),
        Example("3", "which", text, "X", (Gold("sailors", 9),)),
        Example("4", "why", text, "X"),
        Example("5", "what", f"{long}mill-wheel.", "X", (Gold(long.strip(), 0),)),
    ]
    path = write_json(tmp_path / "small.json", write(question_set("small", examples, "2.0")))
    _, out, _ = qa_arch("stats", "--data", path, "--encoder", encoder, "--json")
    reached = json.loads(out)["ceiling"]
    assert reached["exact"] == 50
    facts = {"inexact": 2, "in_no_window": 0, "max_answer_tokens": 30, "too_long": 1}
    assert {key: reached[key] for key in ("encoder", *facts)} == {"encoder": str(encoder), **facts}
    monkeypatch.setenv("COLUMNS", "200")
    twice = qa_arch("stats", "--data", path, path, "--encoder", encoder, "--json")[1]
    assert json.loads(twice) == {str(path): json.loads(out)}  # by source, as of any two
    table = qa_arch("stats", "--data", path, "--encoder", encoder)[1]
    assert f"{reached['exact']:.2f} / {reached['f1']:.2f}" in table
    assert re.search(r"answers above 30 tokens\D+1\b", table)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "row"),
    [("dev-v2.0", (11_873, 5_945, 35, 35)), ("dev-v1.1", (10_570, 0, 48, 0))],
    ids=["2.0", "1.1"],
)
def test_counts_of_the_published_dev_sets(real_data, name, row):
    counts = statistics(read(real_data / "squad" / f"{name}.json"))
    keys = ("examples", "negatives", "articles", "articles_with_negatives")
    assert tuple(counts[key] for key in keys) == row

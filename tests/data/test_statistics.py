"""Statistics counted by hand and on the published sets, and the command that prints them."""

import json
import re

import pytest

from qa_arch.data import sources
from qa_arch.data.files import Format
from qa_arch.data.question_sets import question_set, statistics
from qa_arch.data.squad import read, write
from qa_arch.files import write_json
from qa_arch.types import Example, Gold, QuestionSet

FIRST, SECOND = "a b c d e", "one  two\u00a0three\nfour"


def small() -> QuestionSet:
    examples = [
        Example("1", "who is it", FIRST, "X", (Gold("a", 0), Gold("b c d", 2))),
        Example("2", "what", FIRST, "X", kind="negation"),
        Example("3", "where now ?", SECOND, "X", (Gold("four", 15),), kind="plain"),
        Example("4", "why", FIRST, "Y", (Gold("e", 8),), kind="plain"),
        Example("5", "when", SECOND, "Z", kind="negation"),
        Example("6", "when else", SECOND, "Z", kind="antonym"),
    ]
    return question_set("small", examples, "2.0")


@pytest.fixture
def file(tmp_path):
    return write_json(tmp_path / "small.json", write(small()))


def test_command_prints_counts_as_json(file, qa_arch):
    code, out, _ = qa_arch("stats", "--data", file, "--json")
    assert code == 0
    assert json.loads(out) == statistics(small()) == {
        "examples": 6,
        "negatives": 3,
        "articles": 3,
        "articles_with_negatives": 2,
        "paragraphs": 4,
        "answers_per_question": pytest.approx(4 / 3),
        "context_words": {"mean": 4.5, "median": 4.5, "p95": 5, "max": 5},
        "question_words": {"mean": pytest.approx(11 / 6), "median": 1.5, "p95": 3, "max": 3},
        "answer_words": {"mean": 1.5, "median": 1.0, "p95": 3, "max": 3},
        "kinds": {"antonym": 1, "negation": 2, "plain": 2},
        "protocol": "2.0",
        "skipped": 0,
        "fingerprint": small().fingerprint,
    }  # fmt: skip


def test_format_without_counts_is_refused(qa_arch, monkeypatch):
    pairs = Format("pairs:FILE", "a set of pairs", open=None, holds="pairs")
    monkeypatch.setattr(sources, "_format", lambda scheme: pairs)
    code, _, err = qa_arch("stats", "--data", "pairs.tsv")
    assert (code, err.count("\n")) == (2, 1)
    assert "pairs.tsv: its format has no statistics; name a set with passages" in err


@pytest.fixture
def encoder(tmp_path):
    """A folder with a tokenizer that keeps "Velmoran" in one piece."""
    from qa_arch.features import tokenizers

    folder = tmp_path / "encoder"
    tokenizers.build("wordpiece", ["Velmoran sailors left a mill-wheel."] * 50, 400).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


def test_ceiling_of_a_tokenizer(encoder, tmp_path, qa_arch, monkeypatch):
    context = "Velmoran sailors left a mill-wheel."
    examples = [
        Example("1", "who", context, "X", (Gold("Velmora", 0),)),
        Example("2", "what", context, "X", (Gold("mill-wheel", 24),)),
        Example("3", "which", context, "X", (Gold("sailors", 9),)),
        Example("4", "why", context, "X"),
    ]
    path = write_json(tmp_path / "small.json", write(question_set("small", examples, "2.0")))
    _, out, _ = qa_arch("stats", "--data", path, "--encoder", encoder, "--json")
    reached = json.loads(out)["ceiling"]
    assert reached.pop("exact") == reached.pop("f1") == pytest.approx(100 * 2 / 3)
    facts = {"inexact": 1, "in_no_window": 0, "max_answer_tokens": 30, "too_long": 0}
    assert reached == {"encoder": str(encoder), **facts}
    monkeypatch.setenv("COLUMNS", "200")
    assert "66.67 / 66.67" in qa_arch("stats", "--data", path, "--encoder", encoder)[1]


def test_answer_that_decoding_excludes_is_not_in_the_ceiling(encoder, tmp_path, qa_arch):
    """40 tokens; conf/decode allows 30."""
    text = "Velmoran sailors left a " * 10
    examples = [Example("1", "what", f"{text}mill-wheel.", "X", (Gold(text.strip(), 0),))]
    path = write_json(tmp_path / "long.json", write(question_set("long", examples, "1.1")))
    reached = json.loads(qa_arch("stats", "--data", path, "--encoder", encoder, "--json")[1])["ceiling"]
    assert (reached["exact"], reached["inexact"], reached["too_long"]) == (0, 1, 1)
    table = qa_arch("stats", "--data", path, "--encoder", encoder)[1]
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

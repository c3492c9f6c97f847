"""``qa-arch pretrain tokenizer`` and ``compare-tokenizers``; figures of how tokenizers split a text."""

import gzip
import json

import pytest
from kills import contents
from transformers import AutoTokenizer

from qa_arch.extras.pretraining import commands
from qa_arch.extras.pretraining.commands import KINDS, figures
from qa_arch.features import tokenizers


def test_figures_of_a_hand_made_tokenizer(monkeypatch):
    tokenizer = tokenizers.wordpiece(["the", "keep", "##er", "##s", "paid", ".", "!"])
    texts = ["The keepers paid.", "The crab paid!", "the."]
    expected = {
        **{"vocabulary": 12, "documents": 3, "words": 10, "tokens": 12, "tokens_per_word": 1.2},
        **{"unsplit": 90, "unknown": 10},  # all but keepers; crab
        **{"p50": 6, "p95": 8, "longest": 8},
    }
    assert figures(tokenizer, texts) == expected
    monkeypatch.setattr(commands, "CHUNK", 2)
    tokenizer.backend_tokenizer.enable_truncation(5)
    assert figures(tokenizer, iter(texts)) == expected


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [f"Keeper {n} of lock {n * 7} paid {n % 13} crowns at the quay.\n\n" for n in range(300)]
    path.write_text("".join(lines) * 2)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_is_written_with_its_training_record(qa_arch, text_file, tmp_path, kind):
    for name in "ab":
        options = ["--kind", kind, "--vocabulary", 300, "--out", tmp_path / name]
        code, out, error = qa_arch("pretrain", "tokenizer", text_file, "squad:synthetic:dev", *options)
        assert (code, error) == (0, "")
        assert f"{name}: {kind}, " in out
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    record = json.loads((tmp_path / "a" / "trained_on.json").read_text())
    assert record["corpus"] == f"{text_file} + squad:synthetic:dev"
    assert record["documents"] > 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert 250 < len(tokenizer) == record["vocabulary"] <= 300
    assert tokenizer.unk_token_id not in tokenizer("Keeper 7 paid.")["input_ids"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["text.txt", "--vocabulary", -5], 2, "--vocabulary -5: must be at least 1"),
        (["packed.gz"], 4, "packed.gz: is not UTF-8 text (contains byte 0x8b); name a text file, unpack"),
        (["hub:"], 4, "hub:: names no data set; write hub:NAME:COLUMN"),
        (["blank.txt"], 4, "blank.txt: holds no text"),
        (["text.txt", "--out", "empty"], 2, "--out empty: exists and was not changed; name a new folder"),
    ],
)
def test_refused_tokenizer_command_writes_nothing(qa_arch, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("Keeper 7 paid.")
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"Keeper 7 paid."))
    (tmp_path / "empty").mkdir()
    before = {path.name for path in tmp_path.rglob("*")}
    result = qa_arch("pretrain", "tokenizer", "--vocabulary", 200, "--out", "out", *arguments)
    assert (result[0], message in result[2]) == (code, True), result
    assert {path.name for path in tmp_path.rglob("*")} == before


def test_compare_tokenizers_prints_a_table(qa_arch, text_file, tmp_path, monkeypatch):
    for name, size in (("ours", 300), ("other", 200)):
        tokenizers.build("wordpiece", [text_file.read_text()], size).save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    compare = ["pretrain", "compare-tokenizers", "ours", "other", "--text", text_file]
    code, out, error = qa_arch(*compare)
    assert (code, error) == (0, "")
    assert f"{text_file}: 600 documents, 7,200 words" in out
    ours, other = json.loads(qa_arch(*compare, "--json")[1])[0]["rows"]
    assert (ours["tokenizer"], other["tokenizer"]) == ("ours", "other")
    assert ours["vocabulary"] > other["vocabulary"]
    assert ours["tokens_per_word"] < other["tokens_per_word"]
    code, _, error = qa_arch("pretrain", "compare-tokenizers", "missing/folder")
    assert (code, "TOKENIZER missing/folder: no such folder" in error) == (6, True)

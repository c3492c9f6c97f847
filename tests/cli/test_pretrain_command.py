"""``qa-arch pretrain``: what is written, what is printed, and what a mistake says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kills import contents
from pages import commands

from qa_arch.config.files import write_json
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.pretraining.tokenizer_comparison import SENTENCES
from qa_arch.pretraining.tokenizer_training import CHARACTERS, KINDS


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [f"Keeper {n} of lock {n * 7} paid {n % 13} crowns at the quay.\n\n" for n in range(300)]
    path.write_text("".join(lines) * 2)
    return path


@pytest.fixture
def tokenizer_folder(qa_arch, text_file, tmp_path):
    code, _, error = qa_arch(
        "pretrain", "tokenizer", text_file, "--vocabulary", 300, "--out", tmp_path / "ours"
    )
    assert code == 0, error
    return tmp_path / "ours"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_is_written_the_same_twice(qa_arch, text_file, tmp_path, kind):
    for name in "ab":
        code, out, error = qa_arch(
            "pretrain", "tokenizer", text_file, "--kind", kind, "--vocabulary", 300, "--out", tmp_path / name
        )
        assert (code, error) == (0, "")
        assert f"{name}: {kind}, 300 pieces, from 600 documents (0.0 MB) in " in out
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    record = json.loads((tmp_path / "a" / "trained_on.json").read_text())
    assert record["documents"] == 600
    assert record["corpus"] == str(text_file)
    assert len(record["fingerprint"]) == 64
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_several_corpora_and_settings(qa_arch, text_file, tmp_path, read_json):
    write_json(tmp_path / "set.json", write(synthetic.named("dev")))
    out = tmp_path / "new" / "tokenizer"
    sources = [text_file, f"squad:{tmp_path}/set.json"]
    settings = ["--vocabulary", 250, "--no-lowercase", "--characters", 60]
    assert qa_arch("pretrain", "tokenizer", *sources, *settings, "--out", out)[0] == 0
    record = read_json(out / "trained_on.json")
    assert (record["lowercase"], record["characters"], record["vocabulary"]) == (False, 60, 250)
    assert record["documents"] > 600
    assert "Keeper" in (out / "tokenizer.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.txt"], 4, "missing.txt: no such file or folder"),
        (["empty"], 4, "the folder holds no *.txt file"),
        (["blank.txt"], 4, "blank.txt: holds no text"),
        (["binary.txt"], 4, "binary.txt: byte 2 is zero: this is a binary file"),
        (["text.txt", "--vocabulary", 10**6], 2, "1,000,000 is more than this corpus allows: "),
        (["text.txt", "--vocabulary", 3], 2, "3 is too small: special tokens and characters alone are "),
        (["text.txt", "--out", "empty"], 2, "--out empty: exists and was not changed; name a new folder"),
        (["text.txt", "--kind", "wordpeace"], 2, "invalid choice: 'wordpeace'"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    qa_arch, text_file, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(text_file.read_bytes())
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "binary.txt").write_bytes(b"ab\x00")
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    defaults = ["--vocabulary", 200, "--out", "out"]
    result = qa_arch("pretrain", "tokenizer", *defaults, *arguments)
    assert (result[0], message in result[2]) == (code, True), result
    assert contents(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_help_names_the_kinds_and_the_default(qa_arch):
    _, out, _ = qa_arch("pretrain", "tokenizer", "--help")
    assert f"{{{','.join(KINDS)}}}" in out
    assert f"(default: {CHARACTERS})" in " ".join(out.split())
    assert qa_arch("pretrain")[0] == 2


def test_the_commands_of_the_docs_do_what_they_say(qa_arch, text_file, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "tokenizers.md").read_text(encoding="utf-8")
    calls = commands(page)
    assert [call[1] for call in calls] == ["tokenizer", "tokenizer", "compare-tokenizers"]
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_bytes(text_file.read_bytes())
    for split in ("train-v2.0", "calibration", "dev-v2.0"):
        write_json(f"{split}.json", write(synthetic.generate(9, seed=len(split))))
    # The files are small, and minilm may not be installed.
    stand_ins = {"8000": "250", "minilm": "./minilm"}
    Path("minilm").symlink_to("TOKENIZER")
    for call in calls:
        code, out, error = qa_arch(*(stand_ins.get(word, word) for word in call))
        assert code == 0, error
    assert "│ UNIGRAM" in out
    assert Path("tokenizers.html").is_file()


# Comparison --------------------------------------------------------------------------------------


def test_tokenizers_are_compared_within_80_columns(qa_arch, tokenizer_folder, text_file, tmp_path):
    for kind in ("bpe", "wordpiece"):
        out = tmp_path / f"a-rather-long-name-{kind}"
        qa_arch("pretrain", "tokenizer", text_file, "--kind", kind, "--vocabulary", 400, "--out", out)
    folders = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    code, out, error = qa_arch("pretrain", "compare-tokenizers", *folders)
    assert (code, error) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    flat = " ".join(out.split())
    assert "│ ours │ 300 │" in flat
    assert "a-rather-long-n… │ 400 │" in flat
    for sentence in SENTENCES:
        assert sentence in flat
    assert flat.count("ours (") == len(SENTENCES)


def test_figures_as_json_and_the_page(qa_arch, tokenizer_folder, text_file, tmp_path, read_json):
    page = tmp_path / "page.html"
    arguments = ["--text", text_file, "--sentence", "Keeper 12 paid.", "--html", page, "--json"]
    code, out, _ = qa_arch("pretrain", "compare-tokenizers", tokenizer_folder, *arguments)
    assert code == 0
    printed = json.loads(out)
    assert printed["text"] == str(text_file)
    assert printed["tokenizers"]["ours"]["documents"] == 600
    assert printed["tokenizers"]["ours"]["shared_with"] == {"ours": 1}
    assert printed["examples"] == [
        {"sentence": "Keeper 12 paid.", "pieces": {"ours": ["keeper", "12", "paid", "."]}}
    ]
    assert "<h3>Keeper 12 paid.</h3>" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing/folder"], 6, "no tokenizer for 'missing/folder'"),
        (["OURS", "OURS"], 2, "is named twice; name different ones"),
        (["OURS", "--text", "missing.txt"], 4, "missing.txt: no such file"),
    ],
)
def test_a_wrong_comparison_is_refused(qa_arch, tokenizer_folder, arguments, code, message):
    named = [tokenizer_folder if word == "OURS" else word for word in arguments]
    result = qa_arch("pretrain", "compare-tokenizers", *named)
    assert (result[0], message in result[2]) == (code, True), result

"""``qa-arch pretrain`` with files of the wrong kind: one line that names the file, and nothing written."""

from __future__ import annotations

import json

import pytest

from qa_arch.config.files import write_json

DEEP = "[" * 100_000
CORPORA = {
    "empty": b"",
    "blank": b"\n \n\n",
    "not utf-8": b"\xff\xfe\x00q\x00a\x00",
    "binary": bytes(range(256)) * 40,
}
QUESTION_SETS = {
    "no json": b"once upon a time",
    "cut": b'{"version": "v2.0", "data": [{"title": "a", "para',
    "deep": DEEP.encode(),
    "a list": b"[]",
    "no data": b'{"version": "v2.0"}',
    "no passage": b'{"data": [{"title": "a", "paragraphs": [{"qas": []}]}]}',
    "passage of another type": b'{"data": [{"title": "a", "paragraphs": [{"context": 3, "qas": []}]}]}',
}
TOKENIZERS = {
    "empty": "",
    "cut": '{"version": "1.0", "model": {',
    "deep": DEEP,
    "no model": '{"version": "1.0"}',
    "model of another type": '{"version": "1.0", "model": "os.system"}',
    "a vocabulary that is no mapping": json.dumps(
        {"version": "1.0", "model": {"type": "WordPiece", "vocab": 3}}
    ),
}
RECORDS = {
    "empty": "",
    "deep": DEEP,
    "a list": "[]",
    "no status": "{}",
    "another type": '{"schema": 2, "status": 3, "config": "mlm"}',
}


@pytest.fixture
def refused(qa_arch, tmp_path):
    """``refused(*arguments)``: one line on standard error, the exit code of bad input, no output folder."""

    def check(*arguments: object) -> None:
        code, _, errors = qa_arch("pretrain", *arguments)
        assert code in (2, 4, 5, 6), (code, errors)
        assert errors.splitlines()[-1].startswith("qa-arch: "), errors
        assert "Traceback" not in errors
        assert not (tmp_path / "out").exists()

    return check


@pytest.mark.parametrize("content", CORPORA.values(), ids=CORPORA)
def test_a_corpus_that_holds_no_text(refused, tmp_path, content):
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    refused("tokenizer", path, "--vocabulary", 300, "--out", tmp_path / "out")


@pytest.mark.parametrize("content", QUESTION_SETS.values(), ids=QUESTION_SETS)
def test_a_question_set_without_passages(refused, tmp_path, content):
    path = tmp_path / "data.json"
    path.write_bytes(content)
    refused("tokenizer", f"squad:{path}", "--vocabulary", 300, "--out", tmp_path / "out")


@pytest.mark.parametrize("content", TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_tokenizer_that_is_none(refused, tmp_path, content):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(content)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    refused("compare-tokenizers", folder, "--sentence", "once upon a time")


@pytest.mark.parametrize("content", RECORDS.values(), ids=RECORDS)
def test_a_run_whose_record_is_damaged(refused, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    refused("ask", tmp_path, "once upon a [MASK]")

"""An encoder's folder must hold the tokenizer that belongs to its weights."""

from __future__ import annotations

import pytest
from transformers import BertConfig, BertModel

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.spans.task import TASK


@pytest.fixture
def folder(configure, tmp_path):
    """Writes a small pretrained BERT with the tokenizer of a random one; gives its folder and those parts."""

    def write(vocab_size: int | None = None, *, tokenizer: bool = True):
        parts = TASK.assemble(configure())
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        BertModel(BertConfig(vocab_size=vocab_size or len(parts.tokenizer), **sizes)).save_pretrained(
            tmp_path
        )
        if tokenizer:
            parts.tokenizer.save_pretrained(tmp_path)
        return tmp_path, parts

    return write


def of(folder) -> list[str]:
    sizes = ("family", "layers", "width", "heads", "vocabulary", "initializer_range")
    return ["encoder.init=pretrained", f"encoder.name={folder}", *(f"encoder.{size}=null" for size in sizes)]


def test_a_folder_with_all_that_belongs_to_it(configure, folder):
    path, parts = folder()
    read = TASK.assemble(configure(*of(path)))
    assert (read.tables["train"].ids == parts.tables["train"].ids).all()
    assert read.encoder.vocab_size == len(parts.tokenizer)


def test_an_id_that_the_encoder_has_no_embedding_of(configure, folder):
    """The last id of the texts counts, not the tokenizer's size: published tokenizers know unused ids."""
    _, parts = folder()
    largest = max(table.largest_id for table in parts.tables.values())
    path, _ = folder(largest + 1)
    TASK.assemble(configure(*of(path)))
    path, _ = folder(largest)
    with pytest.raises(ConfigError, match=rf"{largest} token embeddings, .* produces id {largest}"):
        TASK.assemble(configure(*of(path)))


def test_a_folder_without_its_tokenizer(configure, folder):
    path, _ = folder(tokenizer=False)
    with pytest.raises(UnavailableError, match=r"no tokenizer for .*tokenizer\.json"):
        TASK.assemble(configure(*of(path)))

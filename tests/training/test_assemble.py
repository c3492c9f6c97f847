"""Assembling a pretrained encoder: its folder must have the tokenizer that matches its weights."""

import shutil
from dataclasses import replace

import pytest
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from qa_arch.errors import ConfigError, RunError, UnavailableError
from qa_arch.provenance import encoder_run, system_hash
from qa_arch.qa import task
from qa_arch.sweep import point_key
from qa_arch.training.inputs import require_same_inputs
from qa_arch.training.run import train


@pytest.fixture
def save_pretrained(configure, tmp_path):
    """Save a tiny pretrained BERT with a tokenizer; returns the folder and parts with that tokenizer."""

    def save(vocab_size: int | None = None, *, tokenizer: bool = True):
        parts = task.assemble(configure())
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        BertModel(BertConfig(vocab_size=vocab_size or len(parts.tokenizer), **sizes)).save_pretrained(
            tmp_path
        )
        if tokenizer:
            parts.tokenizer.save_pretrained(tmp_path)
        return tmp_path, parts

    return save


def pretrained_from(folder) -> list[str]:
    """Overrides that load the encoder from ``folder``."""
    sizes = ("family", "layers", "width", "heads", "vocabulary", "initializer_range")
    return ["encoder.init=pretrained", f"encoder.name={folder}", *(f"encoder.{size}=null" for size in sizes)]


def test_pretrained_folder_with_its_tokenizer(configure, save_pretrained):
    path, parts = save_pretrained()
    loaded = task.assemble(configure(*pretrained_from(path)))
    assert (loaded.tables["train"].ids == parts.tables["train"].ids).all()
    assert loaded.encoder.vocab_size == len(parts.tokenizer)


def test_encoder_folder_counts_by_what_it_holds(configure, save_pretrained, tmp_path):
    """For runs, systems and points of a sweep; not by where it lies."""

    def configured(folder):
        return configure(*pretrained_from(folder), "trainer.max_steps=1")

    path, _ = save_pretrained()
    config, moved = configured(path), configured(shutil.copytree(path, tmp_path / "moved"))
    record = train(config, folder=tmp_path / "run")
    for same in (config, moved):
        require_same_inputs(tmp_path / "run", same, record)
    assert point_key(config) == point_key(moved)
    save_pretrained()
    with pytest.raises(RunError, match=r"encoder\.name: \S+ is not what the run has read"):
        require_same_inputs(tmp_path / "run", config, record)
    assert point_key(config) != point_key(moved)
    other = replace(record, encoder=encoder_run(str(path)))
    assert system_hash(other) != system_hash(record)


def test_token_id_without_embedding_is_refused(configure, save_pretrained):
    """The largest id in the texts counts, not the tokenizer's size: published tokenizers have unused ids."""
    _, parts = save_pretrained()
    largest = max(table.largest_id for table in parts.tables.values())
    path, _ = save_pretrained(largest + 1)
    task.assemble(configure(*pretrained_from(path)))
    path, _ = save_pretrained(largest)
    with pytest.raises(ConfigError, match=rf"{largest} token embeddings, .* produces id {largest}"):
        task.assemble(configure(*pretrained_from(path)))


def test_folder_without_tokenizer_is_refused(configure, save_pretrained):
    path, _ = save_pretrained(tokenizer=False)
    with pytest.raises(UnavailableError, match=r"no tokenizer for .*tokenizer\.json"):
        task.assemble(configure(*pretrained_from(path)))


def test_parameters_are_counted_with_a_given_tokenizer(configure, save_pretrained):
    path, _ = save_pretrained()
    config = configure(f"encoder.tokenizer={path}", "encoder.vocabulary=null")
    built = sum(parameter.numel() for parameter in task.assemble(config).model.parameters())
    assert task.count_parameters(config).total == built


def test_decoder_is_refused_as_an_encoder(configure, save_pretrained):
    """As in decoders; adding the padding token that they lack would not make them encoders."""
    path, parts = save_pretrained()
    PreTrainedTokenizerFast(tokenizer_object=parts.tokenizer.backend_tokenizer).save_pretrained(path)
    with pytest.raises(ConfigError, match=r"encoder\.name=.*do not begin with a \[CLS\] token.*decoders"):
        task.assemble(configure(*pretrained_from(path)))

"""Unusable checkpoints are refused in one line; windows, segments and null follow the checkpoint."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from broken_records import change_json
from checkpoints import make_checkpoint, make_tokenizer, relabel
from families import new_encoder
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from qa_arch.errors import ConfigError, RunError, UnavailableError
from qa_arch.features import tokenizers
from qa_arch.models.checkpoint_files import open_checkpoint
from qa_arch.models.span_checkpoint import load_span_checkpoint
from qa_arch.qa.loading import load_predictor

LONG = "Mira paints red boats in the harbour of Velmora, and Old Tarn keeps nine bees. " * 8
TEXTS = [LONG, "Who paints?"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("sound") / "bert", TEXTS)


def assert_refused(folder: Path, message: str, error: type[Exception] = ConfigError) -> None:
    with pytest.raises(error, match=message):
        load_span_checkpoint(open_checkpoint(folder))


@pytest.mark.parametrize("model_class", [AutoModel, AutoModelForMaskedLM])
def test_model_without_a_trained_span_head_is_refused(model_class, tmp_path):
    folder = make_checkpoint("bert", tmp_path / "bare", TEXTS, model_class=model_class)
    assert_refused(folder, r"no trained span head .* qa-arch train encoder\.name=")


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module._orig_mod.", "model.", "base_model.model."])
def test_weights_of_a_wrapped_model_are_read(bert, tmp_path, prefix, caplog):
    """As a span model and as an encoder; what is saved again has the usual names."""
    caplog.set_level(logging.INFO, "qa_arch")
    folder = shutil.copytree(bert, tmp_path / "wrapped")
    state = load_file(folder / "model.safetensors")
    wrapped = {prefix + name: value for name, value in state.items()}
    save_file(wrapped, folder / "model.safetensors", {"format": "pt"})
    model = load_span_checkpoint(open_checkpoint(folder)).model.model
    assert f"its weights are named {prefix}*" in caplog.text
    model.save_pretrained(tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    assert again.keys() == state.keys()
    assert all(again[name].equal(value) for name, value in state.items())
    encoder = new_encoder(name=str(folder)).backbone.state_dict()
    assert all(value.equal(state[f"bert.{name}"]) for name, value in encoder.items())


def test_adapter_without_its_base_model_is_named(bert, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "velmora/bert"}')
    save_file({"x": torch.zeros(1)}, folder / "adapter_model.safetensors")
    whole = shutil.copytree(folder, tmp_path / "whole", dirs_exist_ok=True)
    shutil.copytree(bert, whole, dirs_exist_ok=True)
    for place in (folder, whole):
        for load in (load_predictor, lambda folder: new_encoder(name=str(folder))):
            with pytest.raises(RunError, match=r"holds a PEFT adapter .*merge_and_unload\(\)"):
                load(place)


def test_truncated_weights_are_refused(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "cut")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:999])
    assert_refused(folder, "its weights cannot be read", UnavailableError)


def test_weights_that_are_not_finite_are_refused(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "nan")
    state = load_file(folder / "model.safetensors")
    state["qa_outputs.bias"].fill_(float("nan"))
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert_refused(folder, r"qa_outputs\.bias is not finite", UnavailableError)


def test_relabelled_checkpoint_is_refused(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "relabelled")
    relabel(folder / "model.safetensors", "I32", "query.weight")
    assert_refused(folder, r"query\.weight holds I32", UnavailableError)
    with pytest.raises(UnavailableError, match=r"query\.weight holds I32"):
        new_encoder(name=str(folder))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"num_hidden_layers": 3}, UnavailableError, "lacks? 16 of the .* such as (bert|encoder)"),
        ({"intermediate_size": 7}, UnavailableError, r"has the shape \(.*\), and config\.json asks for \(7"),
        ({"hidden_size": 10**6}, UnavailableError, "far larger than its files"),
        ({"num_hidden_layers": -1}, UnavailableError, "num_hidden_layers: -1"),
        ({"hidden_size": 0}, UnavailableError, "cannot be"),
        ({"num_attention_heads": -1}, UnavailableError, "cannot be"),
        ({"pad_token_id": 10**6}, UnavailableError, "Padding_idx"),
        ({"return_dict": False}, UnavailableError, "cannot be"),
        ({"model_type": "bart"}, ConfigError, "'bart' is an encoder-decoder"),
        ({"model_type": "layoutlmv3"}, ConfigError, "'layoutlmv3' also reads bbox"),
        ({"model_type": "vit"}, ConfigError, "no question-answering class for 'vit'"),
        ({"num_labels": 3}, ConfigError, "its head has 3 outputs"),
    ],
)
def test_configuration_that_makes_no_working_model_is_refused(bert, tmp_path, values, error, message):
    """As a span model and, unless it is sound but scores no spans, as an encoder."""
    folder = shutil.copytree(bert, tmp_path / "odd")
    change_json(folder / "config.json", **values)
    assert_refused(folder, message, error)
    if error is UnavailableError:
        with pytest.raises(error, match=message):
            new_encoder(name=str(folder))


def test_model_that_reads_padding_is_refused(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "fnet")
    config = AutoConfig.for_model("fnet", hidden_size=16, num_hidden_layers=1)
    AutoModelForQuestionAnswering.from_config(config).save_pretrained(folder)
    assert_refused(folder, "fnet: fnet reads a text differently next to padding")


def test_tokenizer_without_cls_is_refused(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "nameless")
    tokenizers.build("words", TEXTS, 300).save_pretrained(folder)
    assert_refused(folder, r"do not begin with a \[CLS\] token")


def test_cls_after_the_text_is_refused(bert, tmp_path):
    """As in XLNet."""
    folder = shutil.copytree(bert, tmp_path / "xlnet")
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP] [CLS]",
        pair="$A [SEP] $B [SEP] [CLS]",
        special_tokens=[("[CLS]", tokenizer.cls_token_id), ("[SEP]", tokenizer.sep_token_id)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    ).save_pretrained(folder)
    assert_refused(folder, r"do not begin with a \[CLS\] token.*cls_token is '\[CLS\]'")


def test_null_is_read_at_the_cls_token(bert, tmp_path):
    """Not simply at the first token."""
    folder = shutil.copytree(bert, tmp_path / "marked")
    tokenizer = AutoTokenizer.from_pretrained(bert)
    specials = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]", "[MASK]")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[MASK] [CLS] $A [SEP]", pair="[MASK] [CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=specials
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **names).save_pretrained(folder)
    assert load_span_checkpoint(open_checkpoint(folder)).model.null_at == 1


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_tokenizer_without_segments_gives_none(bert, family, tmp_path):
    """The library's call would use zeros, as did the training of such a checkpoint."""
    folder = shutil.copytree(bert, tmp_path / "bert")
    make_tokenizer(family, TEXTS, size=300).save_pretrained(folder)
    if family == "bert":
        change_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    loaded = load_span_checkpoint(open_checkpoint(folder))
    assert loaded.model.has_segments
    assert not loaded.segments


def test_tokenizer_of_another_model_is_refused(tmp_path):
    folder = make_checkpoint("bert", tmp_path / "bert", TEXTS, vocab_size=60)
    with pytest.raises(ConfigError, match=f"^{folder} has 60 token embeddings, .* produces id"):
        load_predictor(folder, device="cpu").predict([("Who paints?", LONG)])
    (folder / "tokenizer.json").unlink()
    assert_refused(folder, f"^{folder}: no tokenizer for", UnavailableError)


@pytest.mark.parametrize(
    ("family", "sizes", "length"),
    [
        ("bert", {"max_position_embeddings": 96}, 96),
        ("roberta", {"max_position_embeddings": 98}, 96),
        ("bert", {"max_position_embeddings": 512}, 384),
    ],
)
def test_windows_shrink_to_the_length_of_the_model(tmp_path, family, sizes, length):
    folder = make_checkpoint(family, tmp_path / "model", TEXTS, **sizes)
    predictor = load_predictor(folder, device="cpu")
    windows = predictor.config.features
    assert (windows.max_length, windows.stride, windows.max_question) == (length, length // 3, length // 6)
    assert predictor.predict([("Who?", LONG * 4)])[0].windows > 1  # the last position of each is read
    too_long = sizes["max_position_embeddings"] + 1
    with pytest.raises(ConfigError, match=rf"{too_long} is more than the"):
        load_predictor(folder, device="cpu", settings={"features": {"max_length": too_long}})


def test_only_windows_and_decoding_can_be_set(bert):
    with pytest.raises(ConfigError, match="model: describes the checkpoint"):
        load_predictor(bert, device="cpu", settings={"model": {"name": "better"}})
    with pytest.raises(ConfigError, match=r"features\.strid"):
        load_predictor(bert, device="cpu", settings={"features": {"strid": 3}})

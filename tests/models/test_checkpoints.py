"""Checkpoints: the library's logits in every family, where files come from, refusals in one line."""

import json
import logging
import math
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from broken_records import change_json
from checkpoints import CONFIGS, make_checkpoint, relabel
from families import new_encoder
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError, RunError, UnavailableError
from qa_arch.features.batches import Collator
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint, record_folder
from qa_arch.models.span_checkpoint import load_span_checkpoint
from qa_arch.models.store import open_tokenizer
from qa_arch.nn.encoder import Encoder
from qa_arch.qa.loading import load_predictor
from qa_arch.tensors import Batch, SpanLogits
from qa_arch.types import Example

HARBOUR = "Mira paints red boats in Velmora's harbour."
FERRY = " ".join(
    f"On day {n} the ferry of Lomm carried {n + 20} goats, café au lait & mail." for n in range(14)
)
PAIRS = [
    ("Who paints?", HARBOUR),
    ("How many goats crossed on day 9?", FERRY),
    ("What does [SEP] Mira paint, naïvely?", FERRY),
]
PAIR_TEXTS = [text for pair in PAIRS for text in pair]
WINDOW = {"max_length": 56, "stride": 12}
SETTINGS = {"features": {**WINDOW, "max_question": 36}}
SEGMENTED = {"bert", "albert", "electra", "splinter"}


class Case(NamedTuple):
    family: str
    folder: str


@pytest.fixture(scope="session", params=CONFIGS)
def case(request, tmp_path_factory) -> Case:
    folder = tmp_path_factory.mktemp("checkpoint") / f"tiny-{request.param}"
    return Case(request.param, str(make_checkpoint(request.param, folder, PAIR_TEXTS)))


def windows(predictor) -> Batch:
    examples = [Example(str(n), question, context) for n, (question, context) in enumerate(PAIRS)]
    table = predictor.table(question_set("pairs", examples, "2.0"), cache=False)
    assert table.truncated_questions == 0  # the library's call truncates none
    return Collator(table, labels=False)(range(len(table)))


def expected(case: Case) -> tuple[dict, tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and logits of the library's own tokenizer call and class on the same pairs."""
    tokenizer = AutoTokenizer.from_pretrained(case.folder)
    encoded = tokenizer(
        *map(list, zip(*PAIRS, strict=True)),
        truncation="only_second",
        return_overflowing_tokens=True,
        return_token_type_ids=case.family in SEGMENTED,
        padding=True,
        return_tensors="pt",
        **WINDOW,
    )
    encoded.pop("overflow_to_sample_mapping")
    if case.family not in SEGMENTED:
        encoded.pop("token_type_ids", None)
    model = AutoModelForQuestionAnswering.from_pretrained(case.folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        output = model(**encoded)
    return encoded, (output.start_logits, output.end_logits)


def logits_of(predictor, batch: Batch) -> SpanLogits:
    with torch.inference_mode():
        return predictor.model(batch)


def test_windows_and_logits_match_the_library(case):
    predictor = load_predictor(case.folder, device="cpu", settings=SETTINGS)
    batch, (encoded, (start, end)) = windows(predictor), expected(case)
    assert len(batch) > len(PAIRS)
    assert torch.equal(batch.ids, encoded["input_ids"])
    assert torch.equal(batch.mask.long(), encoded["attention_mask"])
    assert (batch.segments is not None) == (case.family in SEGMENTED)
    if batch.segments is not None:
        assert set(batch.segments.unique().tolist()) == {0, 1}
        assert torch.equal(batch.segments, encoded["token_type_ids"])
    logits = logits_of(predictor, batch)
    assert logits.start[0][batch.context[0]].std() > 0.01, "the logits must depend on the inputs"
    assert len(set(logits.null.tolist())) == len(batch)
    for actual, theirs in ((logits.start, start), (logits.end, end)):
        torch.testing.assert_close(actual[batch.context], theirs[batch.context], rtol=0, atol=1e-6)
        assert (actual[~batch.context] == -math.inf).all()
    cls = AutoTokenizer.from_pretrained(case.folder).cls_token_id
    at_cls = (batch.ids == cls).long().argmax(1, keepdim=True)
    torch.testing.assert_close(logits.null_start, start.gather(1, at_cls)[:, 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(logits.null_end, end.gather(1, at_cls)[:, 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["deberta-v2"], indirect=True)
def test_lower_precision_changes_scores_little(case):
    predictor, low = (
        load_predictor(case.folder, device="cpu", precision=precision, settings=SETTINGS)
        for precision in ("fp32", "bf16")
    )
    batch = windows(predictor)
    exact, moved = logits_of(predictor, batch), logits_of(low, batch)
    assert moved.start.dtype == torch.float32
    error = (moved.start - exact.start)[batch.context].abs().max() / exact.start[batch.context].std()
    assert 0 < error < 0.15
    heads = [child for child in low.model.model.children() if child is not low.model.backbone]
    assert {p.dtype for head in heads for p in head.parameters()} == {torch.float32}


LONG = "Mira paints red boats in the harbour of Velmora, and Old Tarn keeps nine bees. " * 8
TEXTS = [LONG, "Who paints?"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("sound") / "bert", TEXTS)


@pytest.fixture
def folder(bert, tmp_path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(bert, tmp_path / "copy")


COMMIT = "5f1d" * 10


@pytest.fixture
def hub(bert, tmp_path, monkeypatch):
    """A local hub cache with one commit of ``velmora/tiny``."""
    model = tmp_path / "hub" / "models--velmora--tiny"
    shutil.copytree(bert, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return model


def test_checkpoint_names_are_recognised(bert, folder, tmp_path, monkeypatch):
    """A folder with a record is a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (folder / "run.json").write_text("{}")
    assert names_checkpoint(bert)
    assert names_checkpoint("deepset/roberta-base-squad2")
    for other in ("runs", "runs/mistyped", "mistyped", "a/b/c", "../mistyped/x", tmp_path / "x", ".hidden/x"):
        assert not names_checkpoint(other), other
    assert not names_checkpoint(folder)


def test_ids_that_once_had_no_owner_are_read_from_their_owner(hub):
    name = "distilbert-base-cased-distilled-squad"
    assert names_checkpoint(name)
    assert record_folder(name).as_posix() == f"distilbert/{name}"
    with pytest.raises(
        UnavailableError, match=f"^distilbert/{name}: neither a local folder nor .* the network"
    ):
        open_checkpoint(name)


def test_hub_id_is_read_from_the_cache(hub):
    """Also in the revision that was scored."""
    files = open_checkpoint("velmora/tiny")
    assert (files.revision, files.name) == (COMMIT, "tiny")
    assert record_folder("velmora/tiny").as_posix() == "velmora/tiny"
    record = load_predictor("velmora/tiny", device="cpu").record
    assert (record.model, record.config["encoder"]["name"]) == ("tiny", "velmora/tiny")
    assert record.config["model"]["revision"] == COMMIT
    shutil.copytree(hub / "snapshots" / COMMIT, hub / "snapshots" / ("a" * 40))
    (hub / "refs" / "main").write_text("a" * 40)
    assert open_checkpoint("velmora/tiny").revision == "a" * 40
    assert open_checkpoint("velmora/tiny", COMMIT).folder.name == COMMIT


def test_changed_checkpoint_folder_is_refused(folder, bert):
    before = open_checkpoint(folder).revision
    assert before == open_checkpoint(bert).revision  # wherever it is
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(RunError, match="is not the checkpoint that was scored"):
        open_checkpoint(folder, before)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"weight_map": {"qa_outputs.bias": "pytorch_model.bin"}, "metadata": {}},
            "names 'pytorch_model.bin'",
        ),
        ({"weight_map": {"x": "../../e.safetensors"}, "metadata": {}}, "names '../../e.safetensors'"),
        ({"weight_map": {}}, "is not a weight index"),
    ],
)
def test_weight_index_may_only_name_safetensors_in_its_folder(folder, index, message):
    (folder / "model.safetensors").unlink()
    torch.save({"qa_outputs.bias": torch.zeros(2)}, folder / "pytorch_model.bin")
    with pytest.raises(UnavailableError, match=r"holds no model\.safetensors; .* can run code"):
        load_predictor(folder, device="cpu")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for load in (lambda: load_predictor(folder, device="cpu"), lambda: new_encoder(name=str(folder))):
        with pytest.raises(RunError, match=f"index.json: {re.escape(message)}"):
            load()


def test_checkpoint_cannot_choose_its_attention(folder, monkeypatch):
    """The library would fetch OWNER/NAME from the hub and run it."""
    change_json(folder / "config.json", attn_implementation="velmora/kernel")
    encoder = new_encoder(name=str(folder))
    description = encoder.describe() | {"attn_implementation": "velmora/kernel"}
    models = (load_predictor(folder, device="cpu").model, encoder, Encoder.from_description(description))
    assert {model.backbone.config._attn_implementation for model in models} <= {"sdpa", "qa_arch_sdpa"}


def test_checkpoint_code_is_never_run(folder, tmp_path):
    classes = {"AutoConfig": "trap.Config", "AutoModelForQuestionAnswering": "trap.Model"}
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    change_json(folder / "config.json", auto_map=classes)
    load_predictor(folder, device="cpu")
    change_json(folder / "config.json", model_type="unheard-of")
    marks = {"tokenizer_class": "Trap", "auto_map": {"AutoTokenizer": ["trap.Tokenizer", None]}}
    change_json(folder / "tokenizer_config.json", **marks)
    for load in (load_predictor, open_tokenizer, lambda place: new_encoder(name=place)):
        with pytest.raises(UnavailableError, match="qa_arch never runs a checkpoint's code"):
            load(str(folder))
    assert not (tmp_path / "ran").exists()


def assert_refused(folder: Path, message: str, error: type[Exception] = ConfigError) -> None:
    with pytest.raises(error, match=message) as caught:
        load_span_checkpoint(open_checkpoint(folder))
    assert "\n" not in str(caught.value)


def test_model_without_a_trained_span_head_is_refused(tmp_path):
    folder = make_checkpoint("bert", tmp_path / "bare", TEXTS, model_class=AutoModelForMaskedLM)
    assert_refused(folder, r"no trained span head .* qa-arch train encoder\.name=")


@pytest.mark.parametrize("prefix", ["module._orig_mod.", "base_model.model."])
def test_weights_of_a_wrapped_model_are_read(folder, tmp_path, prefix, caplog):
    """As a span model and as an encoder; what is saved again has the usual names."""
    caplog.set_level(logging.INFO, "qa_arch")
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


def test_damaged_weights_are_refused(folder):
    """Truncated, not finite, or relabelled as integers."""
    place = folder / "model.safetensors"
    whole = place.read_bytes()
    state = {name: value.clone() for name, value in load_file(place).items()}
    place.write_bytes(whole[:999])
    assert_refused(folder, "its weights cannot be read .*; fetch the checkpoint again", UnavailableError)
    state["qa_outputs.bias"].fill_(float("nan"))
    save_file(state, place, {"format": "pt"})
    assert_refused(folder, r"qa_outputs\.bias is not finite", UnavailableError)
    place.write_bytes(whole)
    relabel(place, "I32", "query.weight")
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
        ({"pad_token_id": 10**6}, UnavailableError, "Padding_idx"),
        ({"return_dict": False}, UnavailableError, "cannot be"),
        ({"hidden_act": "os.system"}, UnavailableError, "os.system"),
        ({"deep": json.loads("[" * 500 + "]" * 500)}, RunError, "config.json"),
        ({"model_type": "bart"}, ConfigError, "'bart' is an encoder-decoder; name a checkpoint"),
        ({"model_type": "layoutlmv3"}, ConfigError, "'layoutlmv3' also reads bbox.*; name a checkpoint"),
        ({"model_type": "vit"}, ConfigError, "no question-answering class for 'vit'; name a checkpoint"),
        ({"num_labels": 3}, ConfigError, "its head has 3 outputs.*; name a checkpoint"),
    ],
)
def test_configuration_that_makes_no_working_model_is_refused(folder, values, error, message):
    """As a span model and, unless it is sound but scores no spans, as an encoder."""
    change_json(folder / "config.json", **values)
    assert_refused(folder, message, error)
    if error is not ConfigError:
        with pytest.raises(error, match=message):
            new_encoder(name=str(folder))


def test_model_that_reads_padding_is_refused(folder):
    config = AutoConfig.for_model("fnet", hidden_size=16, num_hidden_layers=1)
    AutoModelForQuestionAnswering.from_config(config).save_pretrained(folder)
    assert_refused(folder, "copy: fnet reads a text differently next to padding")


def retokenize(folder: Path, single: str, pair: str) -> None:
    """Give the checkpoint a tokenizer with these templates."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    specials = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]", "[MASK]")]
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=specials)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)


def test_null_is_read_at_the_cls_token(folder):
    """Not simply at the first token. After the text, as in XLNet, it is refused."""
    retokenize(folder, "[MASK] [CLS] $A [SEP]", "[MASK] [CLS] $A [SEP] $B:1 [SEP]:1")
    assert load_span_checkpoint(open_checkpoint(folder)).model.null_at == 1
    retokenize(folder, "$A [SEP] [CLS]", "$A [SEP] $B [SEP] [CLS]")
    assert_refused(folder, r"do not begin with a \[CLS\] token.*cls_token is '\[CLS\]'")


def test_tokenizer_without_segments_gives_none(folder):
    """The library's call would use zeros, as did the training of such a checkpoint."""
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


@pytest.mark.parametrize(("family", "positions", "length"), [("roberta", 98, 96), ("bert", 512, 384)])
def test_windows_shrink_to_the_length_of_the_model(tmp_path, family, positions, length):
    folder = make_checkpoint(family, tmp_path / "model", TEXTS, max_position_embeddings=positions)
    predictor = load_predictor(folder, device="cpu")
    windows = predictor.config.features
    assert (windows.max_length, windows.stride, windows.max_question) == (length, length // 3, length // 6)
    assert predictor.predict([("Who?", LONG * 4)])[0].windows > 1  # the last position of each is read
    with pytest.raises(ConfigError, match=rf"{positions + 1} is more than the"):
        load_predictor(folder, device="cpu", settings={"features": {"max_length": positions + 1}})


def test_settings_are_for_a_checkpoint_that_has_none_of_its_own(bert, folder, tmp_path, qa_arch):
    assert qa_arch("adopt", bert, "--folder", tmp_path / "run", "--set", "features.max_length=64")[0] == 0
    assert load_predictor(tmp_path / "run", device="cpu").config.features.max_length == 64
    for source in (tmp_path / "run", [bert, folder], [tmp_path / "run", folder]):
        with pytest.raises(ConfigError, match=r"^settings: are for a downloaded checkpoint by itself"):
            load_predictor(source, device="cpu", settings={"typo": {"max_length": 20}})
    with pytest.raises(ConfigError, match="model: describes the checkpoint"):
        load_predictor(bert, device="cpu", settings={"model": {"name": "better"}})
    with pytest.raises(ConfigError, match=r"features\.strid"):
        load_predictor(bert, device="cpu", settings={"features": {"strid": 3}})
    for wrong in ("features.max_length=20", ["features"], {"features": 20}):
        with pytest.raises(ConfigError, match=r"^settings: expected section -> setting -> value, such as"):
            load_predictor(bert, device="cpu", settings=wrong)


def test_pickle_is_never_opened(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UnavailableError, match=r"holds no model\.safetensors; .* can run code"):
        load_predictor(folder, device="cpu")

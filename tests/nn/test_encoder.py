"""Encoders: families, freezing, depth, descriptions, attention, errors; no downloads."""

import json
import pickle

import pytest
import torch
from families import EXTRA_FAMILIES, new_encoder
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.nn import encoder as sdpa
from qa_arch.nn.encoder import Encoder, WordEncoder, encoder_from, new_backbone
from qa_arch.nn.encoder_configs import MPNET_FOLDER, known_config, resolve

FAMILIES = ["bert", "albert", "roberta", "distilbert", "electra", *EXTRA_FAMILIES]


def tiny(family="bert", **options):
    sizes = {"layers": 3, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 12, "pad_token_id": 0}
    return new_encoder(family=family, **sizes | options)


def encode(encoder, ids, mask=None):
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return encoder(ids, mask, torch.zeros_like(ids) if encoder.has_segments else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_encoder_has_no_pooler_and_is_rebuilt_from_its_description(family):
    encoder = tiny(family, initializer_range=0.3).eval()
    assert encoder.out_dim == 16
    assert not any("pooler" in name for name, _ in encoder.named_parameters())
    for name, parameter in encoder.named_parameters():
        if parameter.dim() == 2 and parameter.numel() > 90:
            assert 0.2 < parameter.std() < 0.4, name
    ids = torch.randint(5, 50, (2, 12))
    assert encoder.max_tokens == 12
    assert encode(encoder, ids).shape == (2, 12, 16)
    assert family in EXTRA_FAMILIES or encoder.config._attn_implementation == sdpa.NAME
    description = json.dumps(encoder.describe())
    assert sdpa.NAME not in description
    copy = Encoder.from_description(json.loads(description)).eval()
    copy.load_state_dict(encoder.state_dict())
    assert torch.equal(encode(copy, ids), encode(encoder, ids))


@pytest.mark.parametrize(
    "family", ["roberta", "mpnet", "longformer", "data2vec-text", "roberta-prelayernorm"]
)
def test_position_count_depends_on_the_padding_id(family):
    encoder = tiny(family, pad_token_id=3, vocab_size=200).eval()
    # MPNet's padding id is 1 whatever its config says.
    assert encoder.config.max_position_embeddings == 12 + (2 if family == "mpnet" else 4)
    assert encoder.max_tokens == 12
    assert encode(encoder, torch.randint(5, 50, (1, 12))).isfinite().all()


def test_segment_ids_are_required_or_refused_by_family():
    ids, mask = torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="albert needs segment ids"):
        tiny("albert")(ids, mask)
    with pytest.raises(ValueError, match="roberta has no segment ids"):
        tiny("roberta")(ids, mask, torch.zeros_like(ids))
    encoder = tiny("albert", initializer_range=0.3).eval()
    assert not torch.allclose(encoder(ids, mask, ids), encoder(ids, mask, 0 * ids))


@pytest.mark.parametrize(
    ("family", "depth"),
    [("albert", 1), *((name, 3) for name in FAMILIES if name not in ("albert", "electra"))],
)
def test_depth_counts_from_the_embeddings(family, depth):
    encoder = tiny(family)
    depths = {name: encoder.depth_of(name) for name, _ in encoder.named_parameters()}
    assert set(depths.values()) == set(range(depth + 1))
    assert all((value == 0) == ("embed" in name) for name, value in depths.items())
    layers = [(value, name.split(".layer.")[1][0]) for name, value in depths.items() if ".layer." in name]
    assert all(value == int(number) + 1 for value, number in layers)


def test_freezing():
    encoder = tiny()
    frozen = tiny(freeze="all").train()
    assert not any(p.requires_grad for p in frozen.parameters())
    assert not frozen.backbone.training
    top = tiny(freeze=1)
    assert {encoder.depth_of(n) for n, p in top.named_parameters() if p.requires_grad} == {3}
    assert top.backbone.training
    assert all(p.requires_grad for p in tiny(freeze="none").parameters())
    for wrong in (4, -1, "some"):
        with pytest.raises(ConfigError, match=rf"encoder\.freeze={wrong}: .* top layers to train \(1-3\)"):
            tiny(freeze=wrong)


@pytest.mark.parametrize("family", ["bert", *EXTRA_FAMILIES])
def test_gradient_checkpointing_keeps_gradients_and_dropout_applies(family):
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
        encoder = tiny(family, gradient_checkpointing=checkpointing, **dropout)
        encode(encoder, torch.arange(5, 13)[None])[..., 0].sum().backward()
        gradients.append([p.grad for p in encoder.parameters()])
    torch.testing.assert_close(*gradients)
    noisy, ids = tiny(family, attention_dropout=0.0, hidden_dropout=0.5).train(), torch.arange(5, 13)[None]
    assert not torch.equal(encode(noisy, ids), encode(noisy, ids))


def test_saved_folders_load_and_missing_weights_are_refused(tmp_path):
    encoder = tiny().eval()
    encoder.backbone.save_pretrained(tmp_path / "whole")
    loaded = new_encoder(name=str(tmp_path / "whole")).eval()
    ids = torch.randint(5, 50, (1, 6))
    assert torch.equal(encode(loaded, ids), encode(encoder, ids))
    del encoder.backbone.encoder.layer[1].output.dense
    encoder.backbone.save_pretrained(tmp_path / "gap")
    with pytest.raises(
        UnavailableError, match=r"lacks 2 of the weights of bert, such as encoder.layer.1.output"
    ):
        new_encoder(name=str(tmp_path / "gap"))
    with torch.no_grad():
        loaded.backbone.embeddings.LayerNorm.bias[3] = torch.nan
    loaded.backbone.save_pretrained(tmp_path / "nan")
    with pytest.raises(UnavailableError, match=r"nan cannot be loaded \(embeddings\.LayerNorm\.bias is not"):
        new_encoder(name=str(tmp_path / "nan"))
    (tmp_path / "whole" / "model.safetensors").write_bytes(b"x" * 100)
    again = "fetch or save it again"
    for name, remedy in ((tmp_path / "whole", again), ("no/such-encoder", "local folder"), (tmp_path, again)):
        with pytest.raises(UnavailableError, match=f"cannot be loaded.*{remedy}") as caught:
            new_encoder(name=str(name))
        assert "\n" not in str(caught.value)


OTHER_FAMILIES = {
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "mpnet": {"pad_token_id": 1},
}


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_other_families_load_from_folders(tmp_path, family):
    """Independent of padding, gradients for all, rebuilt from the description, layers in order."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model(
        family, vocab_size=60, **{"pad_token_id": 0} | sizes | OTHER_FAMILIES[family]
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)
    encoder = new_encoder(name=str(tmp_path)).eval()
    ids, mask = torch.randint(5, 60, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    alone = encode(encoder, ids[1:, :6])
    torch.testing.assert_close(encode(encoder, ids, mask)[1:, :6], alone, rtol=0, atol=1e-5)
    copy = Encoder.from_description(json.loads(json.dumps(encoder.describe()))).eval()
    copy.load_state_dict(encoder.state_dict())
    assert torch.equal(encode(copy, ids[1:, :6]), alone)
    alone.square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert {encoder.depth_of(name) for name, _ in encoder.named_parameters()} == {0, 1, 2}


@pytest.mark.parametrize(
    ("family", "sizes", "tokens"),
    [
        ("xlnet", {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}, None),  # states -1 positions
        ("ibert", {"hidden_size": 12, "max_position_embeddings": 64}, 62),  # embeddings of a class of its own
    ],
)
def test_sizes_of_unusual_backbones(family, sizes, tokens):
    encoder = Encoder(new_backbone(AutoConfig.for_model(family, vocab_size=60, **sizes)))
    assert (encoder.vocab_size, encoder.max_tokens) == (60, tokens)


def test_bigbird_reads_a_text_alike_before_and_after_a_short_one(tmp_path):
    encoder = tiny("big_bird", max_positions=896, initializer_range=0.3).eval()
    encoder.backbone.config.attention_type = "block_sparse"  # as published
    encoder.backbone.save_pretrained(tmp_path)
    encoder, ids = new_encoder(name=str(tmp_path)).eval(), torch.randint(5, 50, (1, 896))
    before = encode(encoder, ids)
    encode(encoder, ids[:, :9])
    assert torch.equal(encode(encoder, ids), before)


def test_encoder_that_reads_padding_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"encoder convbert: .* depend on the batch"):
        tiny("convbert")
    config = AutoConfig.for_model("fnet", vocab_size=60, hidden_size=16, num_hidden_layers=1)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"encoder {tmp_path}: fnet reads a text differently"):
        new_encoder(name=str(tmp_path))


def test_names_resolve_to_library_names_or_folders(tmp_path, monkeypatch):
    assert resolve("roberta-base") == "roberta-base"
    assert resolve("minilm").endswith(("all-MiniLM-L6-v2", "model"))
    monkeypatch.chdir(tmp_path)
    assert resolve("mpnet") == "sentence-transformers/all-mpnet-base-v2"
    MPNET_FOLDER.mkdir(parents=True)
    assert resolve("mpnet") == str(MPNET_FOLDER)
    assert known_config("someone/bert-base-uncased") is None
    assert known_config("sentence-transformers/all-MiniLM-L6-v2")["hidden_size"] == 384


def test_pickled_encoder_registers_its_attention(monkeypatch):
    encoder, ids = tiny().eval(), torch.arange(10)[None]
    arrived = pickle.dumps(encoder)
    for registry in (AttentionInterface, AttentionMaskInterface):  # as in a process that has none yet
        monkeypatch.delitem(registry._global_mapping, sdpa.NAME)
    torch.testing.assert_close(encode(pickle.loads(arrived), ids), encode(encoder, ids))


IDS = torch.tensor([[4, 2, 4, 0], [3, 3, 1, 5]])


def test_word_encoder_gives_one_vector_per_word_and_none_without_width():
    no_vectors = new_encoder(family="words", vocab_size=6)
    assert no_vectors(IDS, IDS > 0).shape == (2, 4, no_vectors.out_dim) == (2, 4, 0)
    assert not list(no_vectors.parameters())
    encoder = new_encoder(family="words", vocab_size=6, width=3)
    vectors = encoder(IDS, IDS > 0)
    assert torch.equal(vectors[0, 0], vectors[0, 2])
    assert not vectors[IDS == 0].any()
    assert len({tuple(v.tolist()) for v in vectors[IDS > 0]}) == 5
    copy = encoder_from(json.loads(json.dumps(encoder.describe())))
    copy.load_state_dict(encoder.state_dict())
    assert torch.equal(copy(IDS, IDS > 0), vectors)


def test_options_that_an_encoder_lacks_are_refused():
    assert not WordEncoder(6, 3).freeze("all").embedding.weight.requires_grad
    with pytest.raises(ConfigError, match="no layers"):
        WordEncoder(6, 3).freeze(2)
    with pytest.raises(ValueError, match="no segment ids"):
        WordEncoder(6, 3)(IDS, IDS > 0, IDS)
    for settings, message in (
        ({"family": "words", "vocab_size": 6, "gradient_checkpointing": True}, "gradient checkpointing"),
        ({"family": "albert", "layers": 1, "gradient_checkpointing": True}, "no gradient"),
        ({"family": "mamba", "layers": 1, "hidden_dropout": 0.1}, "mamba has no such dropout"),
    ):
        with pytest.raises(ConfigError, match=message):
            new_encoder(**settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_values_and_gradients_match_the_library(dtype):
    mask = (torch.arange(7) < torch.tensor([[7], [4]]))[:, None, None].expand(-1, 1, 7, 7)
    torch.manual_seed(0)
    states = [torch.randn(2, 3, 7, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    wide = [state.detach().float().requires_grad_() for state in states]
    values = []
    for function, inputs in ((sdpa.attention, states), (sdpa_attention_forward, wide)):
        output, _ = function(torch.nn.Module(), *inputs, mask, scaling=8**-0.5)
        output.float().square().sum().backward()
        values.append([output, *(state.grad for state in inputs)])
    for actual, expected in zip(*values, strict=True):
        assert actual.dtype == dtype
        tolerance = 0.02 if dtype == torch.bfloat16 else 0
        torch.testing.assert_close(actual.float(), expected, rtol=0.02, atol=tolerance)

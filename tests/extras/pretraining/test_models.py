"""Language models: BERT's logits from BERT's weights, the loss by hand, tied embeddings, causality."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import BertConfig, BertForPreTraining

from qa_arch.extras.pretraining.denoising import Denoiser
from qa_arch.extras.pretraining.models import CausalLM, LanguageBatch, LanguageLogits, MaskedLM, TokenLoss
from qa_arch.extras.pretraining.recipe import is_causal
from qa_arch.models import store
from qa_arch.nn.encoder import Encoder


def masked_batch(segments: bool = True) -> LanguageBatch:
    """Three blocks of 9, 6 and 11 tokens with 2, 1 and 3 targets."""
    torch.manual_seed(1)
    T = 11
    mask = torch.arange(T) < torch.tensor([9, 6, 11])[:, None]
    ids = torch.where(mask, torch.randint(5, 50, (3, T)), 0)
    positions = torch.tensor([[2, 5, 0], [3, 0, 0], [1, 4, 10]])
    counted = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    return LanguageBatch(
        index=torch.arange(3),
        ids=ids,
        mask=mask,
        segments=(torch.arange(T).expand(3, T) > 4).long() if segments else None,
        targets=torch.randint(5, 50, (3, 3)),
        counted=counted,
        weight=torch.ones(3),
        positions=positions,
        follows=torch.tensor([True, False, True]),
        prefix=ids[:, :3],
    )


@pytest.fixture
def reference() -> BertForPreTraining:
    torch.manual_seed(2)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=32, max_position_embeddings=40, initializer_range=0.3)
    model = BertForPreTraining(config).eval()
    for parameter in model.parameters():  # biases and norms included
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def ours(reference) -> MaskedLM:
    """The same weights in our model."""
    backbone = type(reference.bert)(reference.config, add_pooling_layer=False)
    state = reference.bert.state_dict()
    backbone.load_state_dict({name: state[name] for name in backbone.state_dict()})
    model = MaskedLM(Encoder(backbone), sentence_task="nsp").eval()
    head, sentence = reference.cls.predictions, reference.cls.seq_relationship
    model.tokens.load_state_dict(
        {
            "dense.weight": head.transform.dense.weight,
            "dense.bias": head.transform.dense.bias,
            "norm.weight": head.transform.LayerNorm.weight,
            "norm.bias": head.transform.LayerNorm.bias,
            "bias": head.decoder.bias,
        }
    )
    model.sentence.dense.load_state_dict(reference.bert.pooler.dense.state_dict())
    model.sentence.score.load_state_dict(  # the difference of the logits of "follows" (0) and "random" (1)
        {"weight": sentence.weight[:1] - sentence.weight[1:], "bias": sentence.bias[:1] - sentence.bias[1:]}
    )
    return model


def test_logits_equal_bert(reference, ours):
    batch = masked_batch()
    inputs = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.segments}
    with torch.inference_mode():
        expected, actual = reference(**inputs), ours(batch)
    for row in range(3):
        for index, position in enumerate(batch.positions[row][batch.counted[row]]):
            torch.testing.assert_close(
                actual.tokens[row, index], expected.prediction_logits[row, position], rtol=0, atol=1e-5
            )
    odds = expected.seq_relationship_logits
    torch.testing.assert_close(actual.follows, odds[:, 0] - odds[:, 1], rtol=0, atol=1e-5)


def test_loss_by_hand():
    batch = masked_batch()
    logits = LanguageLogits(torch.randn(3, 3, 50), torch.tensor([0.5, -1.0, 2.0]))
    losses = -logits.tokens.log_softmax(-1).gather(-1, batch.targets[..., None]).squeeze(-1)
    tokens = torch.stack([losses[0, :2].mean(), losses[1, 0], losses[2].mean()])
    sentence = -functional.logsigmoid(torch.tensor([0.5, 1.0, 2.0]))
    torch.testing.assert_close(TokenLoss()(logits, batch), tokens + sentence)
    no_targets = replace(batch, counted=torch.zeros(3, 3, dtype=torch.bool), follows=None)
    assert TokenLoss()(logits, no_targets).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("make", [MaskedLM, CausalLM, Denoiser], ids=lambda make: make.__name__)
def test_tied_weights_are_saved_once_and_tied_after_loading(tiny_encoder, make, tmp_path):
    model = make(tiny_encoder("albert")).eval()
    store.save_weights(tmp_path, model)
    saved = load_file(tmp_path / store.WEIGHTS)
    embeddings = [name for name, value in saved.items() if value.shape == model.embedding.weight.shape]
    assert len(embeddings) == 1
    copy = make(tiny_encoder("albert")).eval()
    for parameter in copy.parameters():
        torch.nn.init.normal_(parameter)
    batch = masked_batch(model.encoder.has_segments)
    assert not torch.equal(copy(batch).tokens, model(batch).tokens)
    store.load_weights(tmp_path, copy)
    assert torch.equal(copy(batch).tokens, model(batch).tokens)
    copy(batch).tokens[..., 7].sum().backward()
    assert copy.embedding.weight.grad[7].abs().sum() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in copy.parameters())
    with torch.no_grad():
        copy.embedding.weight[7] += 1.0
    assert not torch.equal(copy(batch).tokens[..., 7], model(batch).tokens[..., 7])


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_causal_model_never_looks_ahead(tiny_encoder, family):
    model = CausalLM(tiny_encoder(family)).eval()
    batch = masked_batch(model.encoder.has_segments)
    for cut in (1, 5):
        changed = batch.ids.clone()
        changed[:, cut:] = torch.where(batch.mask[:, cut:], 8, 0)
        other = model(replace(batch, ids=changed)).tokens
        torch.testing.assert_close(other[:, :cut], model(batch).tokens[:, :cut], rtol=0, atol=0)
        assert not torch.equal(other[0, cut], model(batch).tokens[0, cut])
    assert is_causal(model)


def test_is_causal_detects_encoders_that_look_ahead(tiny_encoder):
    assert not is_causal(CausalLM(tiny_encoder("mpnet")))
    model = CausalLM(tiny_encoder("bert")).train()
    model.encoder.forward = lambda ids, mask, segments: model.encoder.backbone(ids)[0]
    assert not is_causal(model)
    assert model.training

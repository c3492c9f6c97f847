"""A causal model with random weights and a byte-pair tokenizer, with or without a chat template."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate

CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="session")
def question_sets():
    """Sets about different articles."""
    sets = {name: generate(n, 2, 1, name) for name, n in (("dev", 2), ("calibration", 2), ("train", 4))}
    return {**sets, "other": generate(1, 3, 1, "dev")}


@pytest.fixture(scope="session", params=["plain"])
def model_folder(request, question_sets, tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [example.context for example in question_sets["dev"].examples] + ["unanswerable", "Unanswered"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=["<eos>"], initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.chat_template = CHAT if request.param == "chat" else None
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(fast), eos_token_id=0, initializer_range=0.5, **sizes)
    folder = tmp_path_factory.mktemp(request.param)
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def files(question_sets, tmp_path):
    """Files of the sets, by name."""
    for name, questions in question_sets.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(write(questions)))
    return {name: tmp_path / f"{name}.json" for name in question_sets}

"""Teacher and student have to cut texts alike."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from qa_arch.config.schema import Features
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError
from qa_arch.features import tokenizers
from qa_arch.features.cache import require_same_tokens

QUESTIONS = generate(2, 0)
TEXTS = [text for example in QUESTIONS.examples for text in (example.context, example.question)]
SETTINGS = Features(max_length=96, stride=16, max_question=32, cache_dir=None)


def check(first, second):
    require_same_tokens(first, second, QUESTIONS, SETTINGS, names=("the teacher", "the student"))


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.build("wordpiece", TEXTS, 300)


def changed(tokenizer, change):
    """``tokenizer`` with its file changed by ``change``."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    change(content)
    specials = {
        name: getattr(tokenizer, name) for name in ("pad_token", "cls_token", "sep_token", "unk_token")
    }
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)), **specials)


def test_a_tokenizer_and_its_saved_copy_are_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    copy = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    copy.backend_tokenizer.enable_truncation(16)  # cutting to length is no part of it
    check(tokenizer, copy)


def test_other_vocabularies_are_refused_with_their_sizes(tokenizer):
    fewer = tokenizers.build("wordpiece", TEXTS, 200)
    sizes = f"{len(tokenizer)} and {len(fewer)} pieces"
    with pytest.raises(
        ConfigError, match=f"the teacher and the student do not read the same tokens: .* {sizes}"
    ):
        check(tokenizer, fewer)


def test_of_equal_vocabularies_the_windows_decide(tokenizer):
    """Cased and uncased, or other special tokens: the same pieces, other tokens; a decoder changes none."""

    def cased(content):
        content["normalizer"] = None

    def twice(content):
        pair = content["post_processor"]["pair"]
        pair.append(pair[0])

    def decoder(content):
        content["decoder"] = None

    for change in (cased, twice):
        with pytest.raises(ConfigError, match="is cut otherwise"):
            check(tokenizer, changed(tokenizer, change))
    check(tokenizer, changed(tokenizer, decoder))

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


def test_the_first_unlike_piece_and_the_sizes_are_named(tokenizer):
    fewer = tokenizers.build("wordpiece", TEXTS, 200)
    sizes = f"{len(tokenizer)} and {len(fewer)} pieces"
    with pytest.raises(ConfigError, match=rf"the teacher and the student do not .* {sizes}, number \d+ is '"):
        check(tokenizer, fewer)

    def swap(content):
        vocab = content["model"]["vocab"]
        first, second = list(vocab)[20:22]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    with pytest.raises(ConfigError, match="pieces, number 20 is"):
        check(tokenizer, changed(tokenizer, swap))


def test_a_vocabulary_that_is_cut_otherwise_is_refused(tokenizer):
    """Cased and uncased: the same pieces, other tokens."""

    def cased(content):
        content["normalizer"] = None

    with pytest.raises(
        ConfigError, match=r"where the former cuts '.*' out of a training text, the latter has '"
    ):
        check(tokenizer, changed(tokenizer, cased))


def test_a_difference_that_changes_no_token_does_not_matter(tokenizer):
    def decoder(content):
        content["decoder"] = None

    check(tokenizer, changed(tokenizer, decoder))


def test_other_special_tokens_around_the_question_are_refused(tokenizer):
    def twice(content):
        pair = content["post_processor"]["pair"]
        pair.append(pair[0])

    with pytest.raises(ConfigError, match="special tokens around a question"):
        check(tokenizer, changed(tokenizer, twice))

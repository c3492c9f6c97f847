"""Feature tables on disk: hits, misses, damaged files, concurrent builders; and equality of tokenizers."""

import copy
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kills import check_recovery, killed_at_each_step, killed_at_sizes
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from qa_arch.config.schema import Features
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError
from qa_arch.features import cache, tokenizers
from qa_arch.features.batches import Collator
from qa_arch.features.cache import require_same_tokens, windows_of
from qa_arch.features.windows import FeatureTable, array_names, prepare

LENGTHS = {"max_length": 64, "stride": 16, "max_question": 20, "segments": True}


def prepare_cached(questions, tokenizer, folder, *, segments, **lengths) -> FeatureTable:
    settings = Features(cache_dir=None if folder is None else str(folder), **lengths)
    return windows_of(questions, tokenizer, settings, segments=segments)


@pytest.fixture
def questions(make_set, passage):
    return make_set(("Who dug it?", passage, "by hand"), ("What  is – naïve?", passage, None))


def assert_equal(actual: FeatureTable, expected: FeatureTable) -> None:
    for field in dataclasses.fields(FeatureTable):
        a, b = getattr(actual, field.name), getattr(expected, field.name)
        if field.name in array_names():
            assert a.dtype == b.dtype, field.name
            assert np.array_equal(a, b), field.name
        else:
            assert a == b, field.name


def test_cached_table_equals_built_table(tmp_path, questions, bert, monkeypatch):
    built = prepare_cached(questions, bert, tmp_path, **LENGTHS)
    assert_equal(built, prepare(questions, bert, **LENGTHS))
    bert.backend_tokenizer.enable_truncation(9)  # as calling the tokenizer does: must not cause a miss
    monkeypatch.setattr(cache, "prepare", lambda *_, **__: pytest.fail("built again"))
    read = prepare_cached(questions, bert, tmp_path, **LENGTHS)
    bert.backend_tokenizer.no_truncation()
    assert_equal(built, read)
    assert Collator(read)([0, 3]).ids.equal(Collator(built)([0, 3]).ids)


@pytest.mark.parametrize(
    "changed",
    [
        *("max_length", "stride", "max_question", "segments", "questions"),
        *("tokenizer", "padding", "library", "version"),
    ],
)
def test_changed_setting_misses(tmp_path, questions, bert, monkeypatch, changed):
    prepare_cached(questions, bert, tmp_path, **LENGTHS)
    settings, question_set, tokenizer = dict(LENGTHS), questions, bert
    if changed == "questions":
        question_set = dataclasses.replace(questions, language="de")
    elif changed == "tokenizer":
        tokenizer = tokenizers.build("wordpiece", ["other texts than before"], 90)
    elif changed == "padding":
        tokenizer = copy.deepcopy(bert)
        tokenizer.pad_token = "[UNK]"
    elif changed == "library":
        monkeypatch.setattr(cache.tokenizers, "__version__", "0.0.1")
    elif changed == "version":
        monkeypatch.setattr(cache, "FEATURES_VERSION", 10**6)
    else:
        settings[changed] = False if changed == "segments" else settings[changed] - 1
    fresh = prepare_cached(question_set, tokenizer, tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 2
    assert_equal(fresh, prepare(question_set, tokenizer, **settings))


def test_table_is_rebuilt_after_a_killed_write(tmp_path, questions, bert):
    table = prepare(questions, bert, **LENGTHS)

    def store():
        assert_equal(prepare_cached(questions, bert, tmp_path, **LENGTHS), table)

    assert check_recovery(killed_at_each_step(store, tmp_path), tmp_path, store) >= 4
    assert check_recovery(killed_at_sizes(store, [0, 4096]), tmp_path, store) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "misspelt", "other"])
def test_damaged_file_is_rebuilt(tmp_path, questions, bert, caplog, damage):
    built = prepare_cached(questions, bert, tmp_path, **LENGTHS)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    at = content.index(np.ascontiguousarray(built.ids).tobytes())
    damaged = {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "flipped": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
        "misspelt": content.replace(b"harbour", b"harbout"),
        "other": b"x" * 5000,
    }
    path.write_bytes(damaged[damage])
    assert_equal(prepare_cached(questions, bert, tmp_path, **LENGTHS), built)
    assert "damaged" in caplog.text
    caplog.clear()
    assert_equal(prepare_cached(questions, bert, tmp_path, **LENGTHS), built)
    assert not caplog.text


def test_concurrent_builders_do_not_interfere(tmp_path, questions, bert):
    table = prepare(questions, bert, **LENGTHS)
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: prepare_cached(questions, bert, tmp_path, **LENGTHS), range(12)))
    assert len(list(tmp_path.iterdir())) == 1
    for expected in tables:
        assert_equal(table, expected)


def test_unwritable_folder_only_disables_caching(tmp_path, questions, bert, caplog):
    (tmp_path / "file").write_text("in the way")
    table = prepare_cached(questions, bert, tmp_path / "file", **LENGTHS)
    assert len(table) == len(prepare(questions, bert, **LENGTHS))
    assert "not cached" in caplog.text


def test_tokenizers_of_equal_vocabulary_are_compared_by_their_windows(tmp_path):
    """Casing and special tokens change the tokens of the same vocabulary; a decoder and saving do not."""
    questions, settings = generate(2, 0), Features(max_length=96, stride=16, max_question=32, cache_dir=None)
    texts = [text for example in questions.examples for text in (example.context, example.question)]
    tokenizer, fewer = (tokenizers.build("wordpiece", texts, size) for size in (300, 200))
    names = {name: getattr(tokenizer, f"{name}_token") for name in ("pad", "cls", "sep", "unk")}

    def require_same(other):
        require_same_tokens(tokenizer, other, questions, settings, names=("the teacher", "the student"))

    def edited(part, change):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content[part] = change(content[part])
        specials = {f"{name}_token": token for name, token in names.items()}
        backend = Tokenizer.from_str(json.dumps(content))
        return PreTrainedTokenizerFast(tokenizer_object=backend, **specials)

    def extra_separator(template):
        return {**template, "pair": [*template["pair"], template["pair"][0]]}

    require_same(edited("decoder", lambda _: None))
    for part, change in (("normalizer", lambda _: None), ("post_processor", extra_separator)):
        with pytest.raises(ConfigError, match="is tokenised differently"):
            require_same(edited(part, change))
    sizes = f"{len(tokenizer)} and {len(fewer)} pieces"
    with pytest.raises(ConfigError, match=f"student do not produce the same tokens: .* {sizes}"):
        require_same(fewer)
    tokenizer.save_pretrained(tmp_path)
    saved = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    saved.backend_tokenizer.enable_truncation(16)  # not compared
    require_same(saved)

"""Blocks hold the whole text and nothing else, are cached correctly, and are masked as configured."""

import pickle
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from qa_arch.data.sentences import sentence_spans
from qa_arch.errors import DataError
from qa_arch.extras.pretraining import blocks as packing
from qa_arch.extras.pretraining.blocks import LanguageCollator, LanguageTable, hidden_positions, hide
from qa_arch.extras.pretraining.corpus import Corpus
from qa_arch.extras.pretraining.manifest import Denoising, Pretraining
from qa_arch.features import tokenizers

DOCUMENTS = (
    "The harbour of Velmora was dug by hand. Its lighthouse burns whale oil, and 62 keepers live there.",
    "A café on the quay sells naïve paintings; the crème brûlée costs 3½ crowns.\nWhen the tide falls,"
    " mussels are gathered. Who dug it? Nobody knows!",
    "Short.",
    "The mayor (a retired pilot) re-opened the canal's northern lock in 1923. He never sailed. He never swam."
    " He rowed, and rowed, and rowed, and rowed, and rowed, and rowed, and rowed, and rowed until he slept.",
)


def corpus_of(*documents: str) -> Corpus:
    return Corpus("c", "c", f"f{hash(documents)}", lambda: iter(documents))


def pack(corpus: Corpus, tokenizer, cache_dir=None, **settings) -> LanguageTable:
    """Pack for an encoder with the tokenizer's vocabulary and segments, by default in blocks of 20 tokens."""
    options = {"max_length": 20, "vocab_size": len(tokenizer), **settings}
    return packing.pack(corpus, tokenizer, cache_dir, **options)


CORPUS = corpus_of(*DOCUMENTS)


@pytest.fixture(scope="module")
def bert():
    return tokenizers.build("wordpiece", DOCUMENTS, 400)


@pytest.fixture(scope="module", params=["wordpiece", "byte_bpe", "unigram"])
def tokenizer(request):
    return tokenizers.build(request.param, DOCUMENTS, 400)


def contents(table: LanguageTable) -> list[list[int]]:
    return [table.content(row).tolist() for row in range(len(table))]


def encoded(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


# Contents of blocks


def test_full_blocks_hold_all_text_in_order(tokenizer):
    table = pack(CORPUS, tokenizer, max_length=16)
    texts = [[*encoded(tokenizer, text), tokenizer.sep_token_id] for text in DOCUMENTS]
    rows = contents(table)
    assert list(chain(*rows)) == list(chain(*texts))
    room = 16 - tokenizer.num_special_tokens_to_add()
    assert [len(row) for row in rows[:-1]] == [room] * (len(rows) - 1)
    assert 0 < len(rows[-1]) <= room
    assert table.lengths.tolist() == [len(row) + 16 - room for row in rows]
    assert table.documents == len(DOCUMENTS)
    assert table.tokens == sum(len(encoded(tokenizer, text)) for text in DOCUMENTS)
    assert table.text_bytes == sum(len(document.encode()) for document in DOCUMENTS)


def test_framed_rows_equal_the_tokenizers(tokenizer):
    texts = ["The mayor", "He never sailed and never swam"]
    first, second = (np.array(encoded(tokenizer, text)) for text in texts)
    template = pack(CORPUS, tokenizer).template
    assert packing.framed_row(template, first)[0].tolist() == tokenizer(texts[0])["input_ids"]
    assert packing.framed_row(template, first, second)[0].tolist() == tokenizer(*texts)["input_ids"]


# Cached files


def data_file(table: LanguageTable) -> Path:
    [entry] = table.data.cache_files
    return Path(entry["filename"])


def test_cached_blocks_equal_built_ones_and_are_pickled_by_path(bert, tmp_path, monkeypatch):
    corpus = corpus_of(*DOCUMENTS * 50)
    built = pack(corpus, bert, tmp_path, pairs=True)
    assert contents(built) == contents(pack(corpus, bert, pairs=True))
    monkeypatch.setattr(packing, "tokenize_fn", lambda *_: pytest.fail("built again"))
    read = pack(corpus, bert, tmp_path, pairs=True)
    assert read.data.data.table.equals(built.data.data.table)
    pickled = pickle.dumps(read)
    assert len(pickled) < 8000 < data_file(read).stat().st_size
    assert contents(pickle.loads(pickled)) == contents(read)


def test_changed_input_misses_the_cache(bert, tmp_path, monkeypatch):
    settings = ({"max_length": 21}, {"pairs": True}, {"pairs": True, "shortest": 3})
    changes = [
        (replace(CORPUS, fingerprint="other"), bert, {}),
        (CORPUS, tokenizers.build("wordpiece", DOCUMENTS[:1], 200), {}),
        *((CORPUS, bert, new) for new in settings),
    ]
    files = {data_file(pack(CORPUS, bert, tmp_path))}
    for corpus, tokenizer, new in changes:
        table = pack(corpus, tokenizer, tmp_path, **new)
        assert contents(table) == contents(pack(corpus, tokenizer, **new))
        files.add(data_file(table))
    assert len(files) == 1 + len(changes)
    monkeypatch.setattr(packing, "PACKING_VERSION", 10**6)
    assert data_file(pack(CORPUS, bert, tmp_path)) not in files


def test_interrupted_build_leaves_no_file(bert, tmp_path):
    def stream():
        yield from DOCUMENTS
        raise KeyboardInterrupt

    cases = [
        (Corpus("c", "c", CORPUS.fingerprint, stream), KeyboardInterrupt, "^$"),
        (corpus_of(), DataError, "holds no text"),
        (corpus_of("寿司 🦀"), DataError, "no text that the tokenizer knows"),
    ]
    for corpus, error, message in cases:
        with pytest.raises(error, match=message):
            pack(corpus, bert, tmp_path)
        assert not list(tmp_path.rglob("*.arrow"))
    assert contents(pack(CORPUS, bert, tmp_path)) == contents(pack(CORPUS, bert))


def test_damaged_cache_is_rebuilt_and_an_unusable_folder_is_skipped(bert, tmp_path, caplog):
    built = pack(CORPUS, bert, tmp_path)
    expected, path = contents(built), data_file(built)
    content = path.read_bytes()
    path.unlink()  # the table above still maps the old file
    path.write_bytes(content[: len(content) // 2])
    assert contents(pack(CORPUS, bert, tmp_path)) == expected
    assert "damaged" in caplog.text
    (tmp_path / "file").write_text("in the way")
    assert contents(pack(CORPUS, bert, tmp_path / "file")) == expected
    assert "not cached" in caplog.text


# Masking

STORY = (
    "Old {0} keeps {1} bees. {0} sells honey to {2}. On day {1} it rains in {2}. Nobody minds the {1} bees."
    " In spring {0} paints {1} boats. They sink near {2}. {0} swims home."
)
PEOPLE = [("Tarn", "Lomm"), ("Mira", "Osk"), ("Bell", "Ryde"), ("Quill", "Fenn"), ("Ada", "Wick")]
STORIES = [STORY.format(name, n, town) for n, (name, town) in enumerate(PEOPLE)]


@pytest.fixture(scope="module")
def story_tokenizer():
    return tokenizers.build("wordpiece", STORIES, 200)


@pytest.fixture(scope="module")
def full(story_tokenizer) -> LanguageTable:
    return pack(corpus_of(*STORIES), story_tokenizer, max_length=32)


@pytest.fixture(scope="module")
def paired(story_tokenizer) -> LanguageTable:
    return pack(corpus_of(*STORIES), story_tokenizer, max_length=32, pairs=True)


def test_hidden_tokens_are_80_percent_masked_10_replaced_10_kept(full):
    ids = np.r_[2, full.replacements, 3, full.replacements, 3, 0, 0]  # with [CLS], [SEP] and padding
    before, after = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        positions = hidden_positions(ids, full, Pretraining(), rng)
        assert len(positions) == round(0.15 * 2 * len(full.replacements))
        assert (np.diff(positions) > 0).all()
        hidden = hide(ids, positions, full, Pretraining(), rng)
        assert (np.delete(hidden, positions) == np.delete(ids, positions)).all()
        before.append(ids[positions])
        after.append(hidden[positions])
    old, new = np.concatenate(before), np.concatenate(after)
    assert not full.special[old].any()
    assert not full.special[new[new != full.mask_token]].any()
    assert (new == full.mask_token).mean() == pytest.approx(0.8, abs=0.01)
    assert (new == old).mean() == pytest.approx(0.1, abs=0.01)
    settings = Pretraining(mask_share=0.5, masked=0.0, replaced=0.0)
    positions = hidden_positions(ids, full, settings, rng)
    assert len(positions) == len(full.replacements)
    assert (hide(ids, positions, full, settings, rng) == ids).all()


@pytest.mark.parametrize(("family", "size"), [("wordpiece", 90), ("byte_bpe", 290), ("unigram", 80)])
def test_whole_word_masking_hides_whole_words(family, size):
    tokenizer = tokenizers.build(family, STORIES, size)
    table = pack(corpus_of(*STORIES), tokenizer, max_length=10**4)
    ids = table.content(0)
    assert table.begins_word[encoded(tokenizer, " Tarn honeyboats")].sum() == 2
    within = ~table.begins_word[ids] & ~table.special[ids]
    within &= np.r_[False, ~table.special[ids[:-1]]]  # a block may begin inside a word
    assert within.any()
    for seed in range(30):
        hidden = np.zeros(len(ids), bool)
        positions = hidden_positions(ids, table, Pretraining(whole_words=True), np.random.default_rng(seed))
        hidden[positions] = True
        assert (hidden[within] == np.roll(hidden, 1)[within]).all()
        share = 0.15 * (~table.special[ids]).sum()
        assert 0.9 * share - 1 <= hidden.sum() <= share + 1
    word = np.array(encoded(tokenizer, " honeyboats"))
    positions = hidden_positions(word, table, Pretraining(whole_words=True), np.random.default_rng(0))
    assert positions.tolist() == [*range(len(word))], "the only word is hidden even if longer than the share"


def original(batch) -> torch.Tensor:
    """Ids of a masked batch with the hidden tokens restored."""
    ids = batch.ids.clone()
    for row, (positions, targets, real) in enumerate(
        zip(batch.positions, batch.targets, batch.counted, strict=True)
    ):
        ids[row, positions[real]] = targets[real]
    return ids


@pytest.mark.parametrize("objective", ["mlm", "nsp", "sop"])
def test_special_tokens_and_padding_are_never_predicted(full, paired, story_tokenizer, objective):
    table = full if objective == "mlm" else paired
    collate = LanguageCollator(table, Pretraining(), seed=3, objective=objective)
    for epoch in range(5):
        batch = collate((epoch, range(len(table))))
        assert not torch.from_numpy(table.special)[batch.targets[batch.counted]].any()
        assert (batch.ids[~batch.mask] == story_tokenizer.pad_token_id).all()
        assert batch.mask.gather(1, batch.positions)[batch.counted].all()
        assert (batch.ids == story_tokenizer.mask_token_id).sum() > len(table)
    for row, ids in enumerate(original(batch) if objective == "mlm" else ()):
        content = full.content(row)
        assert ids[batch.mask[row]].tolist() == [2, *content, 3], "the hidden tokens are the targets"
        assert int(batch.counted[row].sum()) == max(1, round(0.15 * int((~full.special[content]).sum())))


def test_masks_depend_on_epoch_seed_and_row_only(full):
    collate, rows = LanguageCollator(full, Pretraining(), seed=7), range(len(full))
    epochs = [collate((epoch, rows)).ids for epoch in range(4)]
    assert all(not torch.equal(a, b) for n, a in enumerate(epochs) for b in epochs[:n])
    assert torch.equal(collate((2, rows)).ids, epochs[2])
    assert not torch.equal(LanguageCollator(full, Pretraining(), seed=8)((2, rows)).ids, epochs[2])
    for row in rows:
        single, padding = collate((1, [row])), collate((1, [-1 - row]))
        assert torch.equal(single.ids[0], epochs[1][row, : single.ids.shape[1]])
        assert torch.equal(padding.ids, single.ids)
        assert (padding.weight.tolist(), padding.index.tolist()) == ([0.0], [row])


def segments_of(batch, row: int) -> tuple[list[int], list[int]]:
    ids = original(batch)[row][batch.mask[row]].tolist()
    middle = ids.index(3)
    segments = batch.segments[row][batch.mask[row]].tolist()
    assert segments == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
    return ids[1:middle], ids[middle + 1 : -1]


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_half_of_the_pairs_follow(paired, story_tokenizer, objective):
    """Neither a block of several sentences nor its replacement is cut within a sentence."""
    collate = LanguageCollator(paired, Pretraining(), seed=5, objective=objective)
    documents = [encoded(story_tokenizer, text) for text in STORIES]
    sentences = {
        tuple(encoded(story_tokenizer, text[a:b])[:2]) for text in STORIES for a, b in sentence_spans(text)
    }
    assert list(chain(*contents(paired))) == list(chain(*documents)), "all text, in order"
    true = total = 0
    for epoch in range(20):
        batch = collate((epoch, range(len(paired))))
        assert batch.ids.shape[1] <= 32
        for row, follows in enumerate(batch.follows.tolist()):
            first, second = segments_of(batch, row)
            content, document = paired.content(row).tolist(), documents[paired.document(row)]
            assert first
            assert second
            if follows:
                assert first + second == content
            elif objective == "sop":
                assert second + first == content
            else:
                assert first == content[: len(first)]
                assert not any(document[i : i + len(second)] == second for i in range(len(document)))
            if len(paired.sentence_starts(row)):
                assert all(tuple(part[:2]) in sentences for part in (first, second))
            true, total = true + follows, total + 1
    assert true / total == pytest.approx(0.5, abs=0.1)


def test_both_parts_of_a_pair_have_text(story_tokenizer):
    """Single tokens, as documents and as ends of a sentence that is cut, are no pair."""
    long = " ".join(["honey"] * 21)
    table = pack(corpus_of("Old", long, *STORIES), story_tokenizer, max_length=13, pairs=True, shortest=2)
    assert table.documents == 1 + len(STORIES)
    assert table.text_bytes == len(long) + sum(len(story.encode()) for story in STORIES)
    collate = LanguageCollator(table, Pretraining(), seed=5, objective="nsp")
    for epoch in range(8):
        batch = collate((epoch, range(len(table))))
        assert all(part for row in range(len(table)) for part in segments_of(batch, row))


def test_causal_batch_predicts_every_token_but_the_first(story_tokenizer):
    table = pack(corpus_of(*STORIES), story_tokenizer, max_length=32, segments=False)
    batch = LanguageCollator(table, Pretraining(), seed=1, objective="causal")((0, range(len(table))))
    for row in range(len(table)):
        text, real = [2, *table.content(row), 3], batch.counted[row]
        assert batch.targets[row][real].tolist() == text[1:]
        assert batch.ids[row][real].tolist() == text[:-1]
    assert (batch.positions, batch.segments) == (None, None)


def test_denoising_batch_predicts_the_text_from_a_noisy_one(paired):
    collate = LanguageCollator(paired, Denoising(), seed=1, objective="denoising")
    rows = range(len(paired))
    epochs = [collate((epoch, rows)) for epoch in (0, 1, 0)]
    assert torch.equal(epochs[0].ids, epochs[2].ids)
    assert not torch.equal(epochs[0].ids, epochs[1].ids)
    for row in rows:
        batch, alone = epochs[0], collate((0, [row]))
        text, real, seen = [2, *paired.content(row), 3], batch.counted[row], batch.mask[row]
        assert batch.targets[row][real].tolist() == text[1:]
        assert batch.prefix[row][real].tolist() == text[:-1]
        noised = batch.noised[row][real].tolist()
        assert sum(noised) == round(0.3 * (len(text) - 2))
        visible = [token for token, hidden in zip(text[1:], noised, strict=True) if not hidden]
        noisy = batch.ids[row][seen].tolist()
        assert [token for token in noisy if token != paired.mask_token] == [2, *visible]
        assert alone.ids[0].tolist() == noisy, "the same in every batch, process or worker"
        assert not batch.noised[row][~real].any()


def bounds(rows) -> list[int]:
    """Corpus position of the first token of each row, and the end."""
    return np.cumsum([0, *map(len, rows)]).tolist()


def sentence_begins(table: LanguageTable) -> list[int]:
    """Corpus position of the first token of each sentence that starts within a block."""
    begins = zip(range(len(table)), bounds(contents(table))[:-1], strict=True)
    return [begin + at for row, begin in begins for at in table.sentence_starts(row).tolist()]


def test_pair_blocks_hold_whole_sentences_of_one_document(tokenizer):
    texts = [encoded(tokenizer, text) for text in DOCUMENTS]
    tokens, borders = list(chain(*texts)), bounds(texts)
    long = pack(CORPUS, tokenizer, max_length=150, pairs=True)
    begins = sorted({*sentence_begins(long), *borders[:-1]})
    sentences = [text[a:b] for text in DOCUMENTS for a, b in sentence_spans(text)]
    for begin, sentence in zip(begins, sentences, strict=True):
        actual, expected = (tokenizer.decode(ids) for ids in (tokens[begin:], encoded(tokenizer, sentence)))
        assert actual.lstrip().startswith(expected.strip()[:6])
    table = pack(CORPUS, tokenizer, max_length=40, pairs=True)
    room, rows = 40 - tokenizer.num_special_tokens_to_add(pair=True), contents(table)
    assert list(chain(*rows)) == tokens
    for row, (begin, end) in enumerate(pairwise(bounds(rows))):
        assert end - begin <= room
        assert borders[table.document(row)] <= begin < end <= borders[table.document(row) + 1]
        # A block ends with its document or before a sentence that does not fit.
        following = next((at for at in [*begins, borders[-1]] if at > end), end)
        assert end in borders or following - begin > room
    assert {*sentence_begins(table)} < {*begins}


def test_chunk_size_does_not_matter_and_large_ids_are_stored(bert, monkeypatch):
    expected = contents(pack(CORPUS, bert))
    monkeypatch.setattr(packing, "CHUNK", 1)
    assert contents(pack(CORPUS, bert)) == expected
    large = tokenizers.wordpiece([f"word{n}" for n in range(70_000)])
    table = pack(corpus_of("word69999 word3"), large)
    assert table.content(0).tolist() == [70_004, 8, large.sep_token_id]

"""Packed blocks: nothing is lost, boundaries are right, and the file is mapped, whole and the right one."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest

from qa_arch.data.sentences import sentence_spans
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.pretraining import blocks as packing
from qa_arch.extras.pretraining.blocks import Framing, pack
from qa_arch.extras.pretraining.corpus import Corpus
from qa_arch.features import tokenizers

UNITS = ("tokens", "sentences")
DOCUMENTS = (
    "The harbour of Velmora was dug by hand. Its lighthouse burns whale oil, and 62 keepers live there.",
    "A café on the quay sells naïve paintings; the crème brûlée costs 3½ crowns.\nWhen the tide falls,"
    " mussels are gathered. Who dug it? Nobody knows!",
    "Short.",
    "The mayor (a retired pilot) re-opened the canal's northern lock in 1923. He never sailed. He never swam."
    " He rowed, and rowed, and rowed, and rowed, and rowed, and rowed, and rowed, and rowed until he slept.",
)


def corpus_of(*documents: str) -> Corpus:
    return Corpus("c", "c", f"f{hash(documents)}", None, lambda: iter(documents))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return corpus_of(*DOCUMENTS)


@pytest.fixture(scope="module", params=["wordpiece", "byte_bpe", "unigram", "words"])
def tokenizer(request):
    return tokenizers.build(request.param, DOCUMENTS, 400)


@pytest.fixture(scope="module")
def bert():
    return tokenizers.build("wordpiece", DOCUMENTS, 400)


def contents(blocks):
    return [blocks.content(row).tolist() for row in range(len(blocks))]


def encoded(tokenizer, text, **settings):
    return tokenizer(text, add_special_tokens=False, **settings)


def joined(rows):
    return list(chain.from_iterable(rows))


def bounds(blocks):
    """First token of each block, and the end, counted in the corpus."""
    return np.cumsum([0, *map(len, contents(blocks))]).tolist()


def sentences(blocks, tokenizer):
    """First token of each sentence, counted in the corpus: what blocks say, and where documents begin."""
    within = {
        begin + at
        for row, begin in enumerate(bounds(blocks)[:-1])
        for at in blocks.sentence_starts(row).tolist()
    }
    return sorted(within | set(documents(blocks, tokenizer)[:-1]))


def documents(blocks, tokenizer):
    """First token of each document, and the end, counted in the corpus."""
    lengths = [len(encoded(tokenizer, text)["input_ids"]) + (blocks.unit == "tokens") for text in DOCUMENTS]
    return np.cumsum([0, *lengths]).tolist()


# What is in the blocks ---------------------------------------------------------------------------


def test_blocks_of_tokens_are_full_and_hold_all_text_in_order(corpus, tokenizer):
    blocks = pack(corpus, tokenizer, max_length=16)
    texts = [[*encoded(tokenizer, text)["input_ids"], tokenizer.sep_token_id] for text in DOCUMENTS]
    rows = contents(blocks)
    assert joined(rows) == joined(texts)
    room = 16 - tokenizer.num_special_tokens_to_add()
    assert [len(row) for row in rows[:-1]] == [room] * (len(rows) - 1)
    assert 0 < len(rows[-1]) <= room
    assert blocks.lengths.tolist() == [len(row) + 16 - room for row in rows]
    assert blocks.documents == len(DOCUMENTS)


def test_blocks_of_sentences_hold_whole_sentences_of_a_document(corpus, tokenizer):
    blocks = pack(corpus, tokenizer, max_length=40, unit="sentences")
    room = 40 - tokenizer.num_special_tokens_to_add(pair=True)
    assert joined(contents(blocks)) == joined(encoded(tokenizer, text)["input_ids"] for text in DOCUMENTS)
    borders = documents(blocks, tokenizer)
    begins = {*sentences(blocks, tokenizer), *bounds(blocks)}
    for row, (begin, end) in enumerate(pairwise(bounds(blocks))):
        assert end - begin <= room
        assert not any(begin < border < end for border in borders)
        assert borders[blocks.document(row)] <= begin < borders[blocks.document(row) + 1]
        # A block ends with its document, or since the next sentence does not fit.
        following = next((at for at in sorted(begins) if at > end), end)
        assert end in borders or following - begin > room
    assert blocks.documents == len(DOCUMENTS)


@pytest.mark.parametrize(
    ("lengths", "room", "expected"),
    [
        ([4, 4, 1], 8, [8, 1]),
        ([4, 4, 1], 7, [4, 5]),
        ([3, 20, 2, 5], 8, [3, 8, 8, 6, 5]),
        ([16, 1], 8, [8, 8, 1]),
    ],
)
def test_as_many_sentences_as_fit_are_in_a_block(lengths, room, expected):
    bounds = np.cumsum([0, *lengths]).tolist()
    assert np.diff([0, *packing._whole_sentences(bounds, room)]).tolist() == expected


@pytest.mark.parametrize("unit", UNITS)
def test_sentences_begin_where_they_begin(corpus, tokenizer, unit):
    blocks = pack(corpus, tokenizer, max_length=1000 if unit == "tokens" else 100, unit=unit)
    ids = joined(contents(blocks))
    begun = [tokenizer.decode(ids[at : at + 30]).lstrip(" ") for at in sentences(blocks, tokenizer)]
    expected = [
        tokenizer.decode(encoded(tokenizer, document[begin:end])["input_ids"])
        for document in DOCUMENTS
        for begin, end in sentence_spans(document)
    ]
    assert len(begun) == len(expected) == 11
    for have, want in zip(begun, expected, strict=True):
        assert have.startswith(want[:6])
    for length in (9, 48):
        cut = pack(corpus, tokenizer, max_length=length)
        at_ends = {*bounds(cut)} & {*sentences(blocks, tokenizer)}
        assert {*sentences(cut, tokenizer)} | at_ends >= {*sentences(blocks, tokenizer)} or unit != "tokens"


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("max_length", [9, 1000])
def test_the_bytes_of_all_blocks_are_those_of_the_text(corpus, tokenizer, unit, max_length):
    blocks = pack(corpus, tokenizer, max_length=max_length, unit=unit)
    assert blocks.text_bytes == sum(len(document.encode()) for document in DOCUMENTS)


def test_the_bytes_of_a_block_are_those_of_its_text(bert):
    text = "Zoë dug. Éva swam – far, far, far away; Zoë and Éva met."
    blocks = pack(corpus_of(text), bert, max_length=9)
    starts = [begin for begin, _ in encoded(bert, text, return_offsets_mapping=True)["offset_mapping"]]
    places = [starts[at] if at < len(starts) else len(text) for at in bounds(blocks)]
    assert blocks.column("bytes").to_pylist() == [len(text[a:b].encode()) for a, b in pairwise(places)]
    assert len(blocks) > 3


def test_chunks_make_no_difference(corpus, bert, monkeypatch):
    whole = contents(pack(corpus, bert, max_length=20))
    monkeypatch.setattr(packing, "CHUNK", 1)
    monkeypatch.setattr(packing, "RENEWAL", 2)
    assert contents(pack(corpus, bert, max_length=20)) == whole


def test_a_large_vocabulary_has_large_numbers():
    tokenizer = tokenizers.wordpiece([f"word{n}" for n in range(70_000)])
    blocks = pack(corpus_of("word69999 word3"), tokenizer, max_length=9)
    assert blocks.content(0).tolist() == [70_004, 8, tokenizer.sep_token_id]


# Framing -----------------------------------------------------------------------------------------


def test_framed_rows_are_those_of_the_tokenizer(tokenizer):
    texts = ["The mayor", "He never sailed and never swam"]
    ids = [encoded(tokenizer, text)["input_ids"] for text in texts]
    framing = Framing.of(tokenizer)
    single, pair = framing.single(ids), framing.pair(zip(ids, ids[::-1], strict=True))
    for rows, expected in (
        (single, tokenizer(texts, padding=True)),
        (pair, tokenizer(texts, texts[::-1], padding=True)),
    ):
        assert rows.ids.tolist() == expected["input_ids"]
        assert rows.mask.tolist() == [[bool(real) for real in row] for row in expected["attention_mask"]]
    assert not single.segments.any()
    for row, first in zip(pair.segments, ids, strict=True):
        assert set(row.tolist()) == {0, 1}
        assert row[: len(framing.pairs.before) + len(first)].sum() == 0


def test_a_block_fits_with_its_special_tokens(corpus, tokenizer):
    blocks = pack(corpus, tokenizer, max_length=30, unit="sentences")
    for row in range(len(blocks)):
        content = blocks.content(row)
        for at in blocks.sentence_starts(row):
            framed = blocks.framing.pair([(content[:at], content[at:])])
            assert framed.ids.shape[1] == blocks.lengths[row] <= 30


# The file ----------------------------------------------------------------------------------------


def data_file(blocks) -> Path:
    [entry] = blocks.data.cache_files
    return Path(entry["filename"])


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_read_back_is_what_was_built(corpus, bert, tmp_path, monkeypatch, unit):
    built = pack(corpus, bert, tmp_path, max_length=20, unit=unit)
    monkeypatch.setattr(packing, "tokenize_fn", lambda *_: pytest.fail("built again"))
    bert.backend_tokenizer.enable_truncation(9)  # as calling the tokenizer does: no reason to miss
    read = pack(corpus, bert, tmp_path, max_length=20, unit=unit)
    bert.backend_tokenizer.no_truncation()
    assert read.data.data.table.equals(built.data.data.table)
    assert read.framing == built.framing
    assert data_file(read).is_relative_to(tmp_path)


def test_blocks_travel_to_workers_by_path(bert, tmp_path):
    blocks = pack(corpus_of(*DOCUMENTS * 50), bert, tmp_path, max_length=20)
    sent = pickle.dumps(blocks)
    assert len(sent) < 8000 < data_file(blocks).stat().st_size
    assert contents(pickle.loads(sent)) == contents(blocks)


@pytest.mark.parametrize("changed", ["corpus", "tokenizer", "max_length", "unit", "version"])
def test_a_changed_input_misses(corpus, bert, tmp_path, monkeypatch, changed):
    first = pack(corpus, bert, tmp_path, max_length=20)
    settings = {"max_length": 20}
    if changed == "corpus":
        corpus = replace(corpus, fingerprint="other")
    elif changed == "tokenizer":
        bert = tokenizers.build("wordpiece", DOCUMENTS[:1], 200)
    elif changed == "max_length":
        settings["max_length"] = 21
    elif changed == "unit":
        settings["unit"] = "sentences"
    else:
        monkeypatch.setattr(packing, "PACKING_VERSION", 10**6)
    fresh = pack(corpus, bert, tmp_path, **settings)
    assert data_file(fresh) != data_file(first)
    assert contents(fresh) == contents(pack(corpus, bert, **settings))


def test_an_interrupted_build_leaves_nothing(bert, tmp_path):
    def stream():
        yield from DOCUMENTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(Corpus("c", "c", "f", None, stream), bert, tmp_path, max_length=20)
    assert not list(tmp_path.rglob("*.arrow"))
    whole = Corpus("c", "c", "f", None, lambda: iter(DOCUMENTS))
    assert contents(pack(whole, bert, tmp_path, max_length=20)) == contents(pack(whole, bert, max_length=20))


@pytest.mark.parametrize("damage", ["empty", "cut", "other"])
def test_a_damaged_file_is_built_again(corpus, bert, tmp_path, caplog, damage):
    built = pack(corpus, bert, tmp_path, max_length=20)
    expected, path = contents(built), data_file(built)
    content = path.read_bytes()
    path.unlink()  # the blocks above still map the old file
    path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "other": b"x" * 5000}[damage])
    assert contents(pack(corpus, bert, tmp_path, max_length=20)) == expected
    assert "damaged" in caplog.text


def test_without_a_cache_the_file_goes_with_the_blocks(corpus, bert):
    blocks = pack(corpus, bert, max_length=20)
    path = data_file(blocks)
    assert path.exists()
    del blocks
    gc.collect()
    assert not path.exists()


def test_a_folder_that_cannot_be_written_costs_no_run(corpus, bert, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    assert contents(pack(corpus, bert, tmp_path / "file", max_length=20))
    assert "not cached" in caplog.text


@pytest.mark.slow
def test_packing_takes_the_same_memory_whatever_the_size(bert, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 5000)
    monkeypatch.setattr(packing, "RENEWAL", 4)
    peaks = []
    for count in (400, 400, 1600):  # the first builds what later ones share
        documents = (" ".join(f"{n}a{word}" for word in range(50)) for n in range(count))
        corpus = Corpus("c", "c", f"f{count}", None, lambda documents=documents: documents)
        tracemalloc.start()
        blocks = pack(corpus, bert, max_length=32)
        assert blocks.content(len(blocks) - 1)[-1] == bert.sep_token_id
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1]


# Bad input ---------------------------------------------------------------------------------------


def test_a_corpus_without_text_is_refused_and_leaves_nothing(bert, tmp_path):
    for documents, message in (([], "holds no text"), (["\u200b"], "no text that the tokenizer knows")):
        with pytest.raises(DataError, match=message):
            pack(corpus_of(*documents), bert, tmp_path, max_length=20)
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.parametrize(("unit", "specials"), [("tokens", 2), ("sentences", 3)])
def test_a_length_without_room_is_refused(corpus, bert, unit, specials):
    with pytest.raises(ConfigError, match=f"{specials} special tokens; raise its length to {specials + 1}"):
        pack(corpus, bert, max_length=specials, unit=unit)
    assert pack(corpus, bert, max_length=specials + 1, unit=unit).lengths.max() == specials + 1


def test_a_tokenizer_without_separator_or_padding_is_refused(corpus):
    for missing, message in (("sep_token", "marks no end of a text"), ("pad_token", "has no padding token")):
        tokenizer = tokenizers.build("wordpiece", DOCUMENTS, 400)
        setattr(tokenizer, missing, None)
        with pytest.raises(ConfigError, match=message):
            pack(corpus, tokenizer, max_length=20)

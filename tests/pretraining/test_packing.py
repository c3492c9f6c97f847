"""Packed blocks: nothing is lost, boundaries are right, and the file is mapped, whole and the right one."""

from __future__ import annotations

import gc
import json
import pickle
import tracemalloc
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
from kills import check_recovery, killed_at_each_step, killed_at_sizes
from safetensors.numpy import load_file

from qa_arch.data.selection_sets import sentence_spans
from qa_arch.errors import ConfigError, DataError
from qa_arch.features import tokenizers
from qa_arch.pretraining import column_store, packing
from qa_arch.pretraining.corpus import Corpus
from qa_arch.pretraining.packing import pack

UNITS = ("tokens", "sentences")
DOCUMENTS = (
    "The harbour of Velmora was dug by hand. Its lighthouse burns whale oil, and 62 keepers live there.",
    "A café on the quay sells naïve paintings; the crème brûlée costs 3½ crowns.\nWhen the tide falls,"
    " mussels are gathered. Who dug it? Nobody knows!",
    "Short.",
    "The mayor (a retired pilot) re-opened the canal's northern lock in 1923. He never sailed. He never swam."
    " He rowed, and rowed, and rowed, and rowed, and rowed, and rowed, and rowed, and rowed until he slept.",
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus("harbour", "harbour-1", None, lambda: iter(DOCUMENTS))


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


def test_blocks_of_sentences_hold_whole_sentences_of_a_document(corpus, tokenizer):
    blocks = pack(corpus, tokenizer, max_length=40, unit="sentences")
    room = 40 - tokenizer.num_special_tokens_to_add(pair=True)
    assert joined(contents(blocks)) == joined(encoded(tokenizer, text)["input_ids"] for text in DOCUMENTS)
    begins = {*blocks.sentences.tolist(), len(blocks.ids)}
    documents = [*blocks.documents.tolist(), len(blocks.ids)]
    for begin, end in pairwise(blocks.starts.tolist()):
        assert end - begin <= room
        assert not any(begin < border < end for border in documents)
        following = next(border for border in sorted(begins) if border > end) if end not in documents else end
        last = max(border for border in begins if border <= begin)
        # A block ends with a sentence, and only since the next does not fit; or it cuts one that never does.
        assert (end in begins and (following == end or following - begin > room)) or end - last >= room


@pytest.mark.parametrize(
    ("lengths", "room", "expected"),
    [
        ([4, 4, 1], 8, [8, 1]),
        ([4, 4, 1], 9, [9]),
        ([4, 4, 1], 7, [4, 5]),
        ([8], 8, [8]),
        ([3, 20, 2, 5], 8, [3, 8, 8, 6, 5]),
        ([17], 8, [8, 8, 1]),
        ([16, 1], 8, [8, 8, 1]),
    ],
)
def test_as_many_sentences_as_fit_are_in_a_block(lengths, room, expected):
    bounds = np.cumsum([0, *lengths]).tolist()
    assert np.diff([0, *packing._whole_sentences(bounds, room)]).tolist() == expected


def test_a_document_keeps_its_blocks_apart(corpus, bert):
    blocks = pack(corpus, bert, max_length=40, unit="sentences")
    numbers = [blocks.document(row) for row in range(len(blocks))]
    assert sorted(set(numbers)) == [0, 1, 2, 3]
    assert numbers == sorted(numbers)
    assert contents(blocks)[numbers.index(2)] == encoded(bert, "Short.")["input_ids"]


@pytest.mark.parametrize("unit", UNITS)
def test_sentences_begin_where_they_begin(corpus, tokenizer, unit):
    blocks = pack(corpus, tokenizer, max_length=48, unit=unit)
    starts = blocks.sentences.tolist()
    begun = [tokenizer.decode(blocks.ids[start : start + 30].astype(int)).lstrip(" ") for start in starts]
    expected = [
        tokenizer.decode(encoded(tokenizer, document[begin:end])["input_ids"])
        for document in DOCUMENTS
        for begin, end in sentence_spans(document)
    ]
    assert len(begun) == len(expected) == 11
    for have, want in zip(begun, expected, strict=True):
        assert have.startswith(want[:6])
    for row, (begin, end) in enumerate(pairwise(blocks.starts.tolist())):
        assert blocks.sentence_starts(row).tolist() == [s - begin for s in starts if begin < s < end]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("max_length", [9, 16, 1000])
def test_the_bytes_of_all_blocks_are_those_of_the_text(corpus, tokenizer, unit, max_length):
    blocks = pack(corpus, tokenizer, max_length=max_length, unit=unit)
    assert blocks.text_bytes.sum() == sum(len(document.encode()) for document in DOCUMENTS)
    assert len(blocks.text_bytes) == len(blocks)


def test_the_bytes_of_a_block_are_those_of_its_text(bert):
    text = "Zoë dug. Éva swam – far, far, far away; Zoë and Éva met."
    blocks = pack(Corpus("c", "f", None, lambda: iter([text])), bert, max_length=9)
    starts = [begin for begin, _ in encoded(bert, text, return_offsets_mapping=True)["offset_mapping"]]
    places = [starts[at] if at < len(starts) else len(text) for at in blocks.starts.tolist()]
    assert blocks.text_bytes.tolist() == [len(text[a:b].encode()) for a, b in pairwise(places)]
    assert len(blocks) > 3


def test_chunks_make_no_difference(corpus, bert, monkeypatch):
    whole = contents(pack(corpus, bert, max_length=20))
    monkeypatch.setattr(packing, "CHUNK", 1)
    monkeypatch.setattr(packing, "RENEWAL", 2)
    assert contents(pack(corpus, bert, max_length=20)) == whole


def test_a_large_vocabulary_has_large_numbers():
    words = [f"word{n}" for n in range(70_000)]
    tokenizer = tokenizers.wordpiece(words)
    blocks = pack(Corpus("c", "f", None, lambda: iter(["word69999 word3"])), tokenizer, max_length=9)
    assert blocks.content(0).tolist() == [70_004, 8, tokenizer.sep_token_id]


# Framing -----------------------------------------------------------------------------------------


def test_framed_rows_are_those_of_the_tokenizer(corpus, tokenizer):
    texts = ["The mayor", "He never sailed and never swam"]
    ids = [encoded(tokenizer, text)["input_ids"] for text in texts]
    framing = pack(corpus, tokenizer, max_length=16).framing
    single, pair = framing.single(ids), framing.pair(ids, ids[::-1])
    for rows, expected in (
        (single, tokenizer(texts, padding=True)),
        (pair, tokenizer(texts, texts[::-1], padding=True)),
    ):
        assert rows.ids.tolist() == expected["input_ids"]
        assert rows.mask.tolist() == [[bool(real) for real in row] for row in expected["attention_mask"]]
    assert [row[mask].tolist() for row, mask in zip(single.ids, single.content, strict=True)] == ids
    assert [row[mask].tolist() for row, mask in zip(pair.ids, pair.content, strict=True)] == [
        ids[0] + ids[1],
        ids[1] + ids[0],
    ]
    assert not single.segments.any()
    for row, first in zip(pair.segments, ids, strict=True):
        assert set(row.tolist()) == {0, 1}
        assert row[: len(framing.pairs.before) + len(first)].sum() == 0


def test_a_block_fits_with_its_special_tokens(corpus, tokenizer):
    blocks = pack(corpus, tokenizer, max_length=30, unit="sentences")
    for row in range(len(blocks)):
        content = blocks.content(row)
        for at in blocks.sentence_starts(row):
            framed = blocks.framing.pair([content[:at]], [content[at:]])
            assert framed.ids.shape[1] == blocks.lengths[row] <= 30


# The file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_read_back_is_what_was_built(corpus, bert, tmp_path, monkeypatch, unit):
    built = pack(corpus, bert, tmp_path, max_length=20, unit=unit)
    monkeypatch.setattr(packing, "tokenize_fn", lambda *_: pytest.fail("built again"))
    bert.backend_tokenizer.enable_truncation(9)  # as calling the tokenizer does: no reason to miss
    read = pack(corpus, bert, tmp_path, max_length=20, unit=unit)
    bert.backend_tokenizer.no_truncation()
    for name in ("ids", "starts", "sentences", "documents", "text_bytes"):
        assert np.array_equal(getattr(built, name), getattr(read, name)), name
        assert not getattr(read, name).flags.owndata, name
        assert not getattr(read, name).flags.writeable, name
        assert getattr(read, name).flags.aligned, name
    assert read.framing == built.framing
    assert len(list(tmp_path.iterdir())) == 1


def test_blocks_travel_to_workers_by_path(corpus, bert, tmp_path):
    blocks = pack(corpus, bert, tmp_path, max_length=20)
    sent = pickle.dumps(blocks)
    assert len(sent) < 2000
    assert contents(pickle.loads(sent)) == contents(blocks)


def test_the_file_is_a_safetensors_file(corpus, bert, tmp_path):
    blocks = pack(corpus, bert, tmp_path, max_length=20)
    tensors = load_file(blocks.path)
    assert tensors["ids"][: len(blocks.ids)].tolist() == blocks.ids.tolist()
    assert tensors["documents"].tolist() == blocks.documents.tolist()


def test_two_builds_have_the_same_bytes(corpus, bert, tmp_path):
    first, second = (pack(corpus, bert, tmp_path / name, max_length=20).path for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert first.name == second.name


@pytest.mark.parametrize("changed", ["corpus", "tokenizer", "max_length", "unit", "library", "version"])
def test_a_changed_input_misses(corpus, bert, tmp_path, monkeypatch, changed):
    pack(corpus, bert, tmp_path, max_length=20)
    settings = {"max_length": 20}
    if changed == "corpus":
        corpus = replace(corpus, fingerprint="other")
    elif changed == "tokenizer":
        bert = tokenizers.build("wordpiece", DOCUMENTS[:1], 200)
    elif changed == "max_length":
        settings["max_length"] = 21
    elif changed == "unit":
        settings["unit"] = "sentences"
    elif changed == "library":
        monkeypatch.setattr(packing.tokenizers, "__version__", "0.0.1")
    else:
        monkeypatch.setattr(packing, "PACKING_VERSION", 10**6)
    fresh = pack(corpus, bert, tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 2
    assert contents(fresh) == contents(pack(corpus, bert, **settings))


def test_an_interrupted_build_leaves_nothing(bert, tmp_path):
    def stream():
        yield from DOCUMENTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(Corpus("c", "f", None, stream), bert, tmp_path, max_length=20)
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_writing_was_killed_is_built_again(corpus, bert, tmp_path):
    expected = contents(pack(corpus, bert, max_length=20))

    def store():
        assert contents(pack(corpus, bert, tmp_path, max_length=20)) == expected

    assert check_recovery(killed_at_each_step(store, tmp_path), tmp_path, store) >= 4
    assert check_recovery(killed_at_sizes(store, [0, 1, 4096, 4300]), tmp_path, store) == 4


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other"])
def test_a_damaged_file_is_built_again(corpus, bert, tmp_path, caplog, damage):
    built = pack(corpus, bert, tmp_path, max_length=20)
    expected, path = contents(built), built.path
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[4100] ^= 1
    path.unlink()  # the blocks above still map the old file
    path.write_bytes({"empty": b"", "cut": content[:4200], "flipped": flipped, "other": b"x" * 5000}[damage])
    assert contents(pack(corpus, bert, tmp_path, max_length=20)) == expected
    assert "damaged" in caplog.text
    assert path.read_bytes() == content


def test_without_a_cache_the_file_goes_with_the_blocks(corpus, bert):
    blocks = pack(corpus, bert, max_length=20)
    path = blocks.path
    assert path.exists()
    del blocks
    gc.collect()
    assert not path.parent.exists()


def test_a_folder_that_cannot_be_written_costs_no_run(corpus, bert, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    assert contents(pack(corpus, bert, tmp_path / "file", max_length=20))
    assert "not cached" in caplog.text


def test_packing_takes_the_same_memory_whatever_the_size(bert, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 5000)
    monkeypatch.setattr(packing, "RENEWAL", 4)
    peaks = []
    for count in (100, 100, 400):  # the first builds what later ones share
        documents = (" ".join(f"{n}a{word}" for word in range(50)) for n in range(count))
        corpus = Corpus("c", f"f{count}", None, lambda documents=documents: documents)
        tracemalloc.start()
        blocks = pack(corpus, bert, max_length=32)
        assert blocks.content(len(blocks) - 1)[-1] == bert.sep_token_id
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1]


# Bad input ---------------------------------------------------------------------------------------


def test_a_corpus_without_text_is_refused_and_leaves_nothing(bert, tmp_path):
    for documents, message in (
        ([], "empty: holds no text"),
        (["\u200b"], "no text that the tokenizer knows"),
    ):
        corpus = Corpus("empty", "f", None, lambda documents=documents: iter(documents))
        with pytest.raises(DataError, match=message):
            pack(corpus, bert, tmp_path, max_length=20)
    assert list(tmp_path.iterdir()) == []


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


# Columns -----------------------------------------------------------------------------------------


def test_columns_are_appended_piece_by_piece(tmp_path):
    path = tmp_path / "columns"
    with column_store.writing(path, {"a": "uint16", "b": "int64", "c": "int32"}) as columns:
        for n in range(5):
            columns.append("b", [n, -n])
            columns.append("a", range(n))
        columns.append("c", [2**31 - 1])
    read = column_store.mapped(path)
    assert read["b"].tolist() == [0, 0, 1, -1, 2, -2, 3, -3, 4, -4]
    assert read["a"].tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 0]  # zeros align the next column
    assert read["c"].tolist() == [2**31 - 1, 0]
    assert json.loads(path.read_bytes()[8:4096])["a"]["shape"] == [12]

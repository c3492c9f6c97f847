"""Corpora: documents, fingerprints, held-out documents, and errors of broken sources."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from qa_arch.data import synthetic
from qa_arch.errors import DataError, UnavailableError
from qa_arch.extras.pretraining import corpus as corpora
from qa_arch.extras.pretraining.corpus import Corpus, open_corpus, split

TEXT = "\ufeffFirst line.  \nSecond line.\n\n \t\nCafé – 3½.\r\n\r\n\r\nLast"
DOCUMENTS = ["First line.\nSecond line.", "Café – 3½.", "Last"]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT.encode())
    return path


def documents(source):
    return list(open_corpus(source).documents())


def test_files_folders_and_globs_are_joined_in_order(text_file, tmp_path):
    corpus = open_corpus(text_file)
    assert list(corpus.documents()) == list(corpus.documents()) == DOCUMENTS
    (tmp_path / "b.txt").write_text("Other")
    (tmp_path / "c.md").write_text("not read")
    assert documents(tmp_path) == documents(f"{tmp_path}/*.txt") == [*DOCUMENTS, "Other"]
    joined = documents([tmp_path / "b.txt", text_file, "squad:synthetic:dev"])
    assert joined == ["Other", *DOCUMENTS, *documents("squad:synthetic:dev")]


def test_each_distinct_passage_is_a_document():
    passages = [example.context for example in synthetic.named("dev").examples]
    assert documents("squad:synthetic:dev") == documents("synthetic:dev") == list(dict.fromkeys(passages))
    assert len(passages) > len(set(passages))


@pytest.mark.parametrize("name", ["a.json", "a.ndjson", "a.ndjson.gz", "a.csv", "a.parquet"])
def test_file_of_questions_is_read_as_its_passages(tmp_path, name):
    table = pd.DataFrame([{"id": "a1", "question": "Who?", "context": "Ada hums.", "answers": "['Ada']"}])
    path, lists = tmp_path / name, table.assign(answers=[{"text": ["Ada"], "answer_start": [0]}])
    if "json" in name:
        lists.to_json(path, orient="records", lines="nd" in name)
    elif path.suffix == ".parquet":
        lists.to_parquet(path)
    else:
        table.to_csv(path, index=False)
    assert documents(path) == ["Ada hums."]


def test_fingerprint_depends_on_content_only(text_file, tmp_path):
    same = tmp_path / "renamed.txt"
    same.write_bytes(text_file.read_bytes())
    assert open_corpus(same).fingerprint == open_corpus(text_file).fingerprint
    other = tmp_path / "other.txt"
    other.write_bytes(text_file.read_bytes() + b"!")
    fingerprints = {open_corpus(source).fingerprint for source in (
        same, other, [same, other], [other, same], "squad:synthetic:dev", "squad:synthetic:train"
    )}  # fmt: skip
    assert len(fingerprints) == 6


# Hub data sets


def test_rows_of_a_hub_data_set_are_documents(tmp_path):
    rows = [{"text": f"Row {n}.", "note": "n", "number": n} for n in range(5)]
    rows[3]["text"] = " "
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"hub:{tmp_path}"
    assert (
        documents(source) == documents(f"{source}:text:default") == ["Row 0.", "Row 1.", "Row 2.", "Row 4."]
    )
    assert documents(f"{source}:note") == ["n"] * 5
    first, named, other = (open_corpus(f"{source}{column}").fingerprint for column in ("", ":text", ":note"))
    assert first == named != other
    stream = open_corpus(f"{source}:number").documents()
    with pytest.raises(DataError, match=r"row 0 has no text in column 'number'.*columns: text, note, number"):
        next(stream)
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0] | {"text": "more"}) + "\n")
    assert open_corpus(source).fingerprint != first


def test_cached_configurations_of_a_hub_data_set_differ(monkeypatch):
    """Offline, ``datasets`` lists no files, and the hash is that of the commit."""

    def load(name, config, **_):
        return SimpleNamespace(config=SimpleNamespace(name=config, data_files=None), hash="commit")

    monkeypatch.setattr("datasets.load_dataset_builder", load)
    first, second = (open_corpus(f"hub:wiki:text:{config}") for config in ("en", "de"))
    assert first.fingerprint != second.fingerprint


def test_closed_data_set_says_how_to_read_it(online):
    online.add("datasets", "closed/set", {"README.md": ""})
    online.closed = {"closed/set": "gated"}
    with pytest.raises(
        UnavailableError, match=r"^hub:closed/set:text: access to closed/set is restricted; ask "
    ):
        open_corpus("hub:closed/set:text")


# Holding out


def numbered(count):
    return Corpus("numbers", "numbers", "f", lambda: (f"Document {n}." for n in range(count)))


def test_split_depends_on_share_seed_and_text_only():
    rest, held_out = (list(part.documents()) for part in split(numbered(2000), 0.1, seed=1))
    assert sorted(rest + held_out) == sorted(numbered(2000).documents())
    assert 150 < len(held_out) < 250
    assert list(split(numbered(2000), 0.1, seed=2)[1].documents()) != held_out
    doubled = Corpus("twice", "twice", "f", lambda: 2 * list(numbered(2000).documents())[::-1])
    doubled_parts = [set(part.documents()) for part in split(doubled, 0.1, seed=1)]
    assert doubled_parts == [set(rest), set(held_out)], "equal documents stay together"
    parts = [numbered(9), *(part for seed in (0, 1) for part in split(numbered(9), 0.5, seed))]
    assert len({corpus.fingerprint for corpus in parts}) == 5
    with pytest.raises(DataError, match=r"numbers \(held out of seed 0, share 1e-09\): holds no text"):
        list(split(numbered(3), 1e-9, 0)[1].documents())


# Bad input


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("bad.txt", b"", "bad.txt: holds no text"),
        (
            "bad.txt",
            b"a\n" * 40_000 + b"caf\xe9 au lait",
            r"bad.txt: is not UTF-8 text \(contains byte 0xe9\)",
        ),
        ("bad.txt", "wide".encode("utf-16"), "bad.txt: is not UTF-8 text"),
        ([], b"", "no corpus was named"),
        ("missing.jsonl", b"", "missing.jsonl: no such file"),
        ("empty", b"", r"the folder holds no file \*.txt"),
        ("bad*", b"{}", "bad.ndjson: holds records, not text; name question sets as squad:FILE"),
    ],
)
def test_sources_without_text_are_refused_by_name(tmp_path, monkeypatch, source, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("bad.txt", "bad.ndjson"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        documents(source)


def test_long_documents_are_split_at_line_breaks(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "LONGEST", 1000)
    lines = [f"寿司の列{n}。" for n in range(500)]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    parts = documents(path)
    assert [line for part in parts for line in part.split("\n")] == lines
    assert max(map(len, parts)) < 1100

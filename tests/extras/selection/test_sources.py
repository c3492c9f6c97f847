"""The formats of candidates and classes among the sources: identity, what cannot be joined, other kinds."""

from __future__ import annotations

import gzip
import json

import pytest

from qa_arch.data.sources import (
    available,
    counts,
    identity,
    local,
    open_passages,
    open_source,
    portable,
    require,
)
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError

VERSION_1 = {
    "vocabulary": "idx_1\twhat\nidx_2\tis\n",
    "answers.label.token_idx": "7\tidx_1\n8\tidx_2\n",
    "question.train.token_idx.label": "idx_1 idx_2\t7 8\n",
    "question.dev.label.token_idx.pool": "8\tidx_1\t8 7\n",
}
STEM = "InsuranceQA.question.anslabel.token"
VERSION_2 = {
    "vocabulary": VERSION_1["vocabulary"],
    "InsuranceQA.label2answer.token.encoded.gz": VERSION_1["answers.label.token_idx"],
    f"{STEM}.500.pool.solr.train.encoded.gz": "life\tidx_1\t7\t7 8\n",
    f"{STEM}.100.pool.solr.train.encoded.gz": "life\tidx_1\t8\t7 8\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Sets of both versions of InsuranceQA, classes and passages, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(write(generate(1, 1))))
    for version, files in (("v1", VERSION_1), ("v2", VERSION_2)):
        (tmp_path / version).mkdir()
        for name, text in files.items():
            data = text.encode()
            (tmp_path / version / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (tmp_path / "t.label").write_text("NUM:date When ?\n")
    return tmp_path


READ = {
    "types:t.label": ["t.label"],
    "insuranceqa:v1:dev": [
        "v1/vocabulary",
        "v1/answers.label.token_idx",
        "v1/question.dev.label.token_idx.pool",
    ],
    "insuranceqa:v2:train": [f"v2/{name}" for name in VERSION_2 if ".100." not in name],
}
DIFFERENT = [
    *READ,
    "types:synthetic:train",
    "types:synthetic:dev",
    "insuranceqa:v1:train",
    "insuranceqa:v2:train@100",
]


def test_sources_that_differ_have_identities_that_do(folder):
    identities = [identity(source) for source in DIFFERENT]
    assert len(set(identities)) == len(DIFFERENT)
    assert identities == [identity(source) for source in DIFFERENT]
    assert str(folder) not in str(identities)
    assert all(available(source) for source in DIFFERENT)


@pytest.mark.parametrize("source", READ)
def test_the_content_of_every_file_that_is_read_counts_and_its_place_does_not(folder, source, monkeypatch):
    before = identity(source)
    moved = folder.rename(folder.parent / f"{folder.name}-moved")
    monkeypatch.chdir(moved)
    assert identity(source) == before
    for name in READ[source]:
        content = (moved / name).read_bytes()
        (moved / name).write_bytes(content + b"\n")
        assert identity(source) != before, name
        (moved / name).write_bytes(content)
    assert identity(source) == before


@pytest.mark.parametrize("source", ["types:none", "insuranceqa:none:dev", "insuranceqa:v1:test1"])
def test_a_file_that_is_missing_has_no_identity(folder, source):
    with pytest.raises(DataError, match=r"no such f(ile|older)|No such file|cannot be read"):
        identity(source)
    assert not available(source)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (["types:t.label", "types:t.label"], "types:t.label: a file of"),
        (["insuranceqa:v1:dev", "insuranceqa:v1:train"], "insuranceqa:v1:dev: a split of InsuranceQA"),
    ],
)
def test_what_makes_no_set_together(folder, source, named):
    for function in (open_source, identity):
        with pytest.raises(DataError, match=f"^{named}.* cannot be joined with others"):
            function(source)


@pytest.mark.parametrize(
    ("source", "want", "message"),
    [
        ("insuranceqa:x:dev", "passages", "no passages; use model=qa_lstm/c"),
        ("types:x", "passages", "no passages; use model=question_types"),
        ("types:x", "candidates", "no candidates; use model=question_types"),
        ("a.json", "classes", "no classes; use model=bert with it, or data=question_types"),
        (["insuranceqa:x:dev"], "classes", "no classes; use model=qa_lstm/c"),
    ],
)
def test_a_wrong_kind_is_refused_before_it_is_opened(folder, source, want, message):
    with pytest.raises(DataError, match=rf"^data\.train: .*{message}"):
        require(source, want, "data.train")
    if want == "passages":
        with pytest.raises(DataError, match=message):
            open_passages(source)


def test_counts_of_sets_without_passages(folder):
    assert counts("insuranceqa:v1:train") == {"questions": 1, "answers": 2, "question_words": 2}
    assert counts("types:t.label") == {"questions": 1, "answers": 1, "question_words": 2}
    (folder / "v1/answers.label.token_idx").unlink()
    assert counts("insuranceqa:v1:train")["answers"] == 2, "the texts of the answers are not needed"


@pytest.mark.parametrize("prefix", ["types:", "insuranceqa:"])
def test_no_machine_path_is_published(monkeypatch, tmp_path, prefix):
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "data"))
    there = f"{prefix}{tmp_path}/data/x:train"
    assert portable(there) == f"{prefix}$QA_ARCH_DATA/x:train"
    assert local(portable(there)) == there
    assert portable("types:synthetic:dev") == "types:synthetic:dev"


@pytest.mark.parametrize("source", ["types:synthetic:dev", "insuranceqa:folder:dev"])
def test_what_holds_no_passages_is_refused(qa_arch, run_folder, tmp_path, source):
    for command in (
        ["predict", run_folder, "--out", tmp_path / "out"],
        ["data", "split", "--out", tmp_path / "out"],
        ["evaluate", "--predictions", "p.json"],
        ["evaluate", "--run", run_folder],
    ):
        code, _, err = qa_arch(*command, "--data", source)
        assert (code, ", no passages; use" in err) == (4, True)


def test_questions_with_classes_are_counted(qa_arch):
    code, out, err = qa_arch("stats", "--data", "types:synthetic:dev", "--json")
    assert code == 0, err
    counts = json.loads(out)
    assert counts["questions"] == counts["answers"] > 0
    code, out, _ = qa_arch("stats", "--data", "types:synthetic:dev", "types:synthetic:train")
    assert (code, "question words" in out) == (0, True)

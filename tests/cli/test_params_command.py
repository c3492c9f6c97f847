"""``qa-arch params``: exact counts of the published encoders, without weights, hub or word vectors."""

import json

import numpy as np
import pytest

from qa_arch.features.vectors import WordVectors

# Published counts without the pooler (590,592), which span models lack.
ENCODERS = {
    "bert": 109_482_240 - 590_592,
    "roberta": 124_645_632 - 590_592,
    "albert": 11_683_584 - 590_592,
    "distilbert": 66_362_880,
}
HEAD = 2 * 768 + 2


@pytest.fixture
def params(qa_arch):
    def call(*overrides):
        code, out, err = qa_arch("params", *overrides, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


def test_counts_of_baselines(params, qa_arch):
    for model, encoder in ENCODERS.items():
        counts = params(f"model={model}")
        assert counts["blocks"] == {"encoder": encoder, "span": HEAD}
        assert counts["total"] == counts["trainable"] == encoder + HEAD
        assert counts["word_vectors"] == 0
    for encoder, total in (("minilm", 22_713_216 - 147_840), ("mpnet", 109_486_464 - 590_592)):
        assert params("model=bert", f"encoder={encoder}")["blocks"]["encoder"] == total
    assert "108,891,648" in qa_arch("params", "model=bert")[1]
    random = qa_arch("params", "model=bert", "debug=fast")[1]
    assert "initialised: 1 layer" in random
    assert "bert-base" not in random


def test_proposed_model_is_counted_without_vectors(params, monkeypatch):
    monkeypatch.delenv("QA_ARCH_GLOVE", raising=False)
    counts, without = params("model=proposed"), params("model=proposed", "glove=none")
    assert counts["blocks"]["encoder"] == ENCODERS["bert"]
    assert counts["total"] == sum(counts["blocks"].values()) > without["total"]
    assert params("model=proposed", "model.hidden=300")["total"] > counts["total"]


@pytest.mark.parametrize(
    ("overrides", "total"),
    [
        (["boundary"], 882_452),
        (["boundary_b"], 1_085_852),
        (["bi_ans_ptr"], 1_425_003),
        (["boundary", "model.lstm=standard"], 949_202),
    ],
)
def test_match_lstm_has_the_published_counts(params, overrides, total, monkeypatch):
    """Wang & Jiang 2016, Table 2: 882K, 3.2M, 1.1M (+ b), 1.4M (Bi-Ans-Ptr); frozen 300-d vectors."""
    monkeypatch.delenv("QA_ARCH_GLOVE", raising=False)
    model, *rest = overrides
    counts = params(f"model=match_lstm/{model}", "glove.dim=300", *rest)
    assert counts["total"] == counts["trainable"] == sum(counts["blocks"].values()) == total


def test_word_vectors_set_the_width(params, qa_arch, tmp_path, monkeypatch):
    """A missing file is an error; a folder of vectors saved with a run is read too."""
    monkeypatch.delenv("QA_ARCH_GLOVE", raising=False)
    code, _, err = qa_arch("params", "model=proposed", f"glove.path={tmp_path / 'absent.txt'}")
    assert (code, "no such file of word vectors" in err) == (4, True)
    vectors = WordVectors(("the", "mill"), np.eye(3, 5, -1, dtype=np.float32))
    vectors.save(tmp_path)
    narrow = params("model=proposed", f"glove.path={tmp_path}")
    assert narrow["word_vectors"] is None
    note = "word vectors are not counted: a run keeps those of its data and the first 7 (glove.keep)"
    kept = ("model=proposed", f"glove.path={tmp_path}", "glove.keep=7")
    assert params(*kept)["notes"] == [note]
    assert note in " ".join(qa_arch("params", *kept)[1].split())
    assert params("model=proposed", "glove=none")["notes"] == []
    assert narrow["total"] < params("model=proposed", "glove.path=null", "glove.dim=6")["total"]
    assert narrow["total"] == params("model=proposed", "glove.path=null", "glove.dim=5")["total"]

"""``qa-arch data split``: parts share no article, and no file is overwritten."""

import json
from itertools import combinations

import pytest

from qa_arch.data.splits import by_article
from qa_arch.data.squad import read, write
from qa_arch.data.synthetic import generate

QUESTIONS = generate(10, seed=3)


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "all.json"
    path.write_text(json.dumps(write(QUESTIONS)), encoding="utf-8")
    return path


def test_three_parts_by_default(qa_arch, data_file, tmp_path):
    code, out, _ = qa_arch("data", "split", "--data", data_file, "--out", tmp_path / "parts")
    assert code == 0
    parts = {name: read(tmp_path / "parts" / f"{name}.json") for name in ("train", "calibration", "dev")}
    assert sorted(e.id for p in parts.values() for e in p.examples) == sorted(
        e.id for e in QUESTIONS.examples
    )
    assert all(not first.titles & second.titles for first, second in combinations(parts.values(), 2))
    assert [len(part.titles) for part in parts.values()] == [6, 2, 2]
    expected = by_article(QUESTIONS, {"train": 0.64, "calibration": 0.16, "dev": 0.2}, 13)
    assert [p.fingerprint for p in parts.values()] == [p.fingerprint for p in expected.values()]
    negatives = sum(not example.answerable for example in parts["dev"].examples)
    assert f"dev.json: {len(parts['dev'])} questions in 2 articles, {negatives} of them" in out


def test_existing_part_with_other_content_prevents_any_write(qa_arch, data_file, tmp_path):
    target = tmp_path / "parts"
    assert qa_arch("data", "split", "--data", data_file, "--out", target, "--seed", 1)[0] == 0
    (target / "train.json").unlink()
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    code, _, err = qa_arch("data", "split", "--data", data_file, "--out", target, "--seed", 2)
    assert (code, "calibration.json: already exists and was not changed" in err) == (2, True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert qa_arch("data", "split", "--data", data_file, "--out", target, "--seed", 1)[0] == 0
    assert {path.name for path in target.iterdir()} == {*before, "train.json"}

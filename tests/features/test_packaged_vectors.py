"""Word vectors of an installed package: the same as from a text file, mapped, and refused where damaged."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qa_arch.cli.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.input_files import PACKAGES, packaged_files
from qa_arch.errors import DataError, UnavailableError
from qa_arch.features.vectors import assumed_shape, packaged_vectors, passage_vectors, read_vectors
from qa_arch.sweep.points import sources

WORDS = ("the", "Mill", "mill", "1804", "naïve", "rare")
NAME, PACKAGE = next(iter(PACKAGES.items()))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The files of an installed package with six words; and the text file of the same vectors."""
    matrix = np.asfortranarray(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
    folder = tmp_path / "site" / PACKAGE.module
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('the package is not to be run')")
    np.save(folder / PACKAGE.matrix, matrix)
    pq.write_table(pa.table({"index": list(WORDS)}), folder / PACKAGE.words)
    monkeypatch.syspath_prepend(str(folder.parent))
    sys.modules.pop(PACKAGE.module, None)
    lines = (f"{word} {' '.join(map(repr, row.tolist()))}\n" for word, row in zip(WORDS, matrix, strict=True))
    text = tmp_path / "vectors.txt"
    text.write_text("".join(lines))
    return packaged_files(NAME), text


def test_a_run_gets_the_vectors_of_the_text_file(package):
    files, text = package
    vectors = packaged_vectors(files)
    for words in (WORDS, ["MILL", "absent"], [], ["rare", "the"]):
        packaged, read = vectors.only(words), read_vectors(text).only(words)
        assert packaged.words == read.words
        assert np.array_equal(packaged.matrix, read.matrix)
    assert vectors.only(WORDS).fingerprint == read_vectors(text).fingerprint


def test_a_config_names_it_and_says_how_many_words_are_unknown(package, caplog):
    config = validate(compose(["model=proposed", "glove=6b_50d", "experiment=demo", "glove=6b_50d"]))
    assert (config.glove.use, config.glove.path) == (True, NAME)
    assert assumed_shape(config.glove) == (7, 4)
    table = type("Table", (), {"vocabulary": ("Mill", "unknown")})()
    caplog.set_level("INFO")
    few = replace(config, glove=replace(config.glove, keep=1))
    assert passage_vectors(few, {"train": table}).words == ("the", "Mill", "mill")
    assert "50.0% of the distinct words have no vector" in caplog.text
    with pytest.raises(DataError, match=r"vectors of 4 numbers, glove\.dim says 50"):
        assumed_shape(replace(config.glove, dim=50))


def test_a_point_of_a_sweep_is_known_by_what_the_package_holds(package, monkeypatch):
    config = validate(compose(["model=proposed", "experiment=demo", "glove=6b_50d"]))
    before = sources(config)["glove"]
    pq.write_table(pa.table({"index": [*WORDS[:-1], "other"]}), package[0].words)
    assert sources(config)["glove"] != before


def test_a_package_that_is_not_there_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="make glove"):
        packaged_files(NAME)
    assert packaged_files("glove.txt") is None


def test_damaged_packages_are_refused(package):
    files, _ = package
    np.save(files.matrix, np.zeros((5, 4), np.float32))
    with pytest.raises(DataError, match=r"shape \(5, 4\) for 6 words; install the package again"):
        packaged_vectors(files)
    np.save(files.matrix, np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(DataError, match="not readable"):
        packaged_vectors(files)
    files.words.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="install the package again"):
        packaged_vectors(files)


@pytest.mark.data
def test_the_first_words_are_those_of_the_text_file(real_data):
    pytest.importorskip(PACKAGE.module)
    text = read_vectors(real_data / "glove" / "glove.6B.50d.10k.txt")
    vectors = packaged_vectors(packaged_files(NAME))
    assert len(vectors.words) == 400_000
    assert vectors.only(vectors.words[:10_000]).fingerprint == text.fingerprint

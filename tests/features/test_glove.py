"""Word vectors from text files, installed packages, and by name from a server on this machine."""

import ssl
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Fault, Hub
from safetensors.numpy import save

from qa_arch.config.compose import compose
from qa_arch.config.schema import PublishedVectors, require_vectors, validate
from qa_arch.data.files import MODULE, PACKAGED, packaged_files
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.features import cache, glove
from qa_arch.features import vectors as vectors_module
from qa_arch.features.vectors import (
    WordVectors,
    file_vectors,
    packaged_vectors,
    passage_vectors,
    read_vectors,
    vector_width,
)
from qa_arch.sweep import point_key, sources

PLAIN = "the 0.1 -0.2 0.3\nLock 1 2 3\nlock 4 5 6\nnaïve 7e-3 8 9\n"


def write(folder, content, name="vectors.txt"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def vector(vectors, word):
    return vectors.matrix[vectors.rows([word])[0]].tolist()


def test_words_and_numbers_are_read(tmp_path):
    vectors = read_vectors(write(tmp_path, PLAIN), 3)
    assert vectors.words == ("the", "Lock", "lock", "naïve")
    assert vectors.matrix.dtype == np.float32
    expected = [[0, 0, 0], [0.1, -0.2, 0.3], [1, 2, 3], [4, 5, 6], [7e-3, 8, 9]]
    assert np.array_equal(vectors.matrix, np.float32(expected))


AB = "a 1 2\nb 3 4\n"


@pytest.mark.parametrize(
    ("text", "words", "rows"),
    [
        # Words with spaces, numbers, spaces of other kinds.
        ("the 1 2\n. . . 4 5\nat a@b.com 7 8\n", ("the", ". . .", "at a@b.com"), [[1, 2], [4, 5], [7, 8]]),
        ("1804 1 1\n\u00a0 2 2\n", ("1804", "\u00a0"), [[1, 1], [2, 2]]),
        ("a 1 2\nb 3 4\na 5 6\n", ("a", "b"), [[1, 2], [3, 4]]),  # the first of duplicates wins
        *((text, ("a", "b"), [[1, 2], [3, 4]]) for text in (f"2 2\n{AB}", AB.replace("\n", " \n"))),
        *((text, ("a", "b"), [[1, 2], [3, 4]]) for text in (AB.replace("\n", "\r\n"), "a 1 2\n\nb 3 4")),
    ],
)
def test_odd_lines_are_read(tmp_path, text, words, rows):
    vectors = read_vectors(write(tmp_path, text))
    assert (vectors.words, vectors.matrix[1:].tolist()) == (words, rows)


def test_lookup_falls_back_to_lower_case_then_zeros(tmp_path):
    vectors = read_vectors(write(tmp_path, PLAIN))
    assert vectors.rows(["Lock", "LOCK", "The", "unheard", "the"]).tolist() == [2, 3, 1, 0, 1]
    subset = vectors.only({"LOCK", "naïve", "absent"})
    assert subset.words == ("lock", "naïve")
    assert vector(subset, "LOCK") == [4, 5, 6]
    assert WordVectors(("a", "a"), np.float32([[0], [1], [2]])).rows(["a"]).tolist() == [1]


@pytest.mark.parametrize("words", [{"LOCK", "naïve", "absent"}, {"mill"}])
@pytest.mark.parametrize("keep", [0, 2, 9])
def test_only_needed_and_frequent_words_are_parsed(tmp_path, words, keep):
    text = PLAIN + "Mill 3 3 3\nthe 9 9 9\nMill 4 4 4\nmill 5 5 5\n"
    path = write(tmp_path, text)
    whole = read_vectors(path)
    expected = whole.only({*whole.words[:keep], *words})
    part = read_vectors(path, words=words, keep=keep)
    assert part.words == expected.words
    assert np.array_equal(part.matrix, expected.matrix)
    broken = write(tmp_path, text + "unused x y z\n", "broken.txt")
    if keep < 9:
        assert read_vectors(broken, words=words, keep=keep).words == expected.words
        write(tmp_path, text + "unused 1\n", "broken.txt")
    with pytest.raises(DataError, match="line 9: "):
        read_vectors(broken, words=words, keep=keep)


def file_config(tmp_path, *overrides):
    path = write(tmp_path, PLAIN)
    config = validate(compose(["experiment=demo", "glove=file", f"glove.path={path}", *overrides]))
    return replace(config, features=replace(config.features, cache_dir=str(tmp_path / "cache")))


def test_parsed_vectors_are_cached_until_file_words_or_settings_change(tmp_path, monkeypatch):
    parsed, parse = [], vectors_module._from_text
    monkeypatch.setattr(vectors_module, "_from_text", lambda *a: parsed.append(a) or parse(*a))
    config = file_config(tmp_path, "glove.keep=1")
    first, again = (file_vectors(config, {"naïve"}) for _ in range(2))
    assert first.words == again.words == ("the", "naïve")
    assert np.array_equal(first.matrix, again.matrix)
    assert len(parsed) == 1
    assert file_vectors(config, set()).words == ("the",)
    more = replace(config, glove=replace(config.glove, keep=2))
    assert file_vectors(more, set()).words == ("the", "Lock", "lock")
    write(tmp_path, PLAIN.replace("the 0.1", "the 0.7"))
    assert vector(file_vectors(config, {"naïve"}), "the")[0] == pytest.approx(0.7)
    assert len(parsed) == 4
    monkeypatch.setattr(cache, "FEATURES_VERSION", 10**6)
    file_vectors(config, {"naïve"})
    assert len(parsed) == 5


def test_damaged_cache_of_vectors_is_read_from_their_file_again(tmp_path, caplog):
    config = file_config(tmp_path)
    first = file_vectors(config, {"naïve"})
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()
    for at in range(0, len(content), 29):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        caplog.clear()
        assert file_vectors(config, {"naïve"}).fingerprint == first.fingerprint
        assert "is damaged" in caplog.text
        assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("text", "dim", "message"),
    [
        (b"", None, "no word vectors"),
        (b"PK\3\4 1 2\nb 3 4\n", 2, "is compressed: unzip it first"),
        (b"\x1f\x8b 1 2\nb 3 4\n", 2, "is compressed: unzip it first"),
        (b"a 1 2\nb 3 4\nc 5\n", None, "line 3: 1 numbers, expected 2"),
        (b"a 1 2\nb 3 x\n", 2, "line 2: '3 x' is not 2 finite numbers"),
        (b"a 1 2\nb nan 1\n", 2, "line 2: 'nan 1' is not"),
        (b"a 1  2\nb 3  4\n", 2, "line 1"),
        (b"a 1 2\n\xff\xfe 3 4\n", 2, "line 2: the word is not UTF-8"),
    ],
)
def test_broken_files_are_refused_with_the_line(tmp_path, text, dim, message):
    path = write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_vectors(path, dim)
    assert str(path) in str(caught.value)


def test_saved_vectors_load_unchanged(tmp_path):
    vectors, run = read_vectors(write(tmp_path, PLAIN + "\u2028odd\x85 1 2 3\n")), tmp_path / "run"
    vectors.save(run)
    assert sorted(path.name for path in run.iterdir()) == ["vectors.safetensors", "words.txt"]
    for loaded in (WordVectors.load(run), read_vectors(run, 3)):
        assert loaded.words == vectors.words
        assert np.array_equal(loaded.matrix, vectors.matrix)
    for path, message in ((run, r"3 numbers, but glove\.dim is 50"), (run / "absent.txt", r"glove\.path")):
        with pytest.raises(DataError, match=message):
            read_vectors(path, 50)
    (run / "words.txt").write_text("one\ntwo\n")
    for damaged in (vectors.matrix, np.zeros(3, np.float32), np.full((3, 2), np.nan, np.float32)):
        (run / "vectors.safetensors").write_bytes(save({"vectors": damaged}))
        with pytest.raises(DataError, match="2 words, but vectors of shape"):
            WordVectors.load(run)
    (run / "vectors.safetensors").write_bytes(b"junk")
    with pytest.raises(DataError, match="no saved word vectors"):
        WordVectors.load(run)


def test_torchtext_gives_the_same_vectors(tmp_path):
    path = write(tmp_path, TEXTS["glove.6B.50d.txt"])
    https_context = ssl._create_default_https_context
    other, ours = read_vectors(path, backend="torchtext"), read_vectors(path)
    assert other.words == ours.words
    assert np.array_equal(other.matrix, ours.matrix)
    assert ssl._create_default_https_context is https_context
    assert [p.name for p in tmp_path.iterdir()] == ["vectors.txt"]
    write(tmp_path, "a 1 2 3\nb c 3 4 5\n")
    with pytest.raises(DataError, match=r"glove\.backend=own"):
        read_vectors(path, backend="torchtext")


WORDS = ("the", "Mill", "mill", "1804", "naïve", "rare")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Files of an installed package with six words, and a text file of the same vectors."""
    matrix = np.asfortranarray(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
    folder = tmp_path / "site" / MODULE
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('the package must not be imported')")
    monkeypatch.syspath_prepend(str(folder.parent))
    sys.modules.pop(MODULE, None)
    files = packaged_files(PACKAGED)
    np.save(files.matrix, matrix)
    pq.write_table(pa.table({"index": list(WORDS)}), files.words)
    lines = (f"{word} {' '.join(map(repr, row.tolist()))}\n" for word, row in zip(WORDS, matrix, strict=True))
    return files, write(tmp_path, "".join(lines))


def test_package_gives_the_vectors_of_the_text_file(package):
    files, text = package
    vectors = packaged_vectors(files)
    for words in (WORDS, ["MILL", "absent"], [], ["rare", "the"]):
        packaged, read = vectors.only(words), read_vectors(text).only(words)
        assert packaged.words == read.words
        assert np.array_equal(packaged.matrix, read.matrix)
    assert vectors.only(WORDS).fingerprint == read_vectors(text).fingerprint


def test_config_selects_the_package_and_logs_unknown_words(package, caplog):
    config = validate(compose(["model=proposed", "glove=6b_50d", "experiment=demo", "glove=6b_50d"]))
    assert (config.glove.use, config.glove.path) == (True, PACKAGED)
    assert vector_width(config.glove) == 4
    table = type("Table", (), {"vocabulary": ("Mill", "unknown")})()
    caplog.set_level("INFO", logger="qa_arch")
    few = replace(config, glove=replace(config.glove, keep=1))
    assert passage_vectors(few, {"train": table}).words == ("the", "Mill", "mill")
    assert "50.0% of the distinct words have no vector" in caplog.text
    assert vector_width(replace(config.glove, path=str(package[1]))) == 4
    with pytest.raises(DataError, match=r"vectors have 4 numbers, but glove\.dim is 50"):
        vector_width(replace(config.glove, dim=50))
    before = sources(config)["glove"]  # of the identity of a sweep's point
    pq.write_table(pa.table({"index": [*WORDS[:-1], "other"]}), package[0].words)
    assert sources(config)["glove"] != before


def test_missing_and_damaged_packages_are_refused(package, monkeypatch):
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
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="make glove"):
        packaged_files(PACKAGED)
    assert packaged_files("glove.txt") is None


@pytest.mark.data
def test_package_begins_with_the_words_of_the_text_file(real_data):
    pytest.importorskip(MODULE)
    text = read_vectors(real_data / "glove" / "glove.6B.50d.10k.txt")
    vectors = packaged_vectors(packaged_files(PACKAGED))
    assert len(vectors.words) == 400_000
    assert vectors.only(vectors.words[:10_000]).fingerprint == text.fingerprint


ARCHIVE = "glove.6B.zip"
NUMBERS = {width: np.random.default_rng(width).normal(size=(60, width)).round(4) for width in (50, 100)}
TEXTS = {
    f"glove.6B.{width}d.txt": "".join(f"w{i} {' '.join(map(str, row))}\n" for i, row in enumerate(rows))
    for width, rows in NUMBERS.items()
}


def zipped(texts: dict[str, str]) -> bytes:
    with zipfile.ZipFile(file := BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return file.getvalue()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves the archive of 6B; ``$QA_ARCH_DATA`` is empty."""
    hub = Hub(tmp_path / "served")
    (hub.root / "files").mkdir(parents=True)
    content = zipped(TEXTS)
    (hub.root / "files" / ARCHIVE).write_bytes(content)
    monkeypatch.setattr(glove, "FOLDER", f"{hub.url}/files/")
    monkeypatch.setitem(glove.ARCHIVES, "6B", (ARCHIVE, len(content)))
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "data"))
    yield hub
    hub.close()


def configured(*overrides: str, name: str = "6B.50d"):
    fixed = ["model=proposed", "experiment=demo", "glove=file", "features.cache_dir=null"]
    return validate(compose([*fixed, f"glove.name={name}", *overrides]))


@pytest.fixture
def settings(server):
    return configured().glove


@pytest.fixture
def place(tmp_path):
    return tmp_path / "data" / "glove"


def test_names_and_addresses_are_those_of_torchtext():
    GloVe = pytest.importorskip("torchtext.vocab").GloVe
    ours = {release: glove.FOLDER + name for release, (name, _) in glove.ARCHIVES.items()}
    assert ours == {release: url.replace("http:", "https:") for release, url in GloVe.url.items()}
    releases = {name.rpartition(".")[0] for name in get_args(PublishedVectors)}
    assert releases == glove.ARCHIVES.keys()


def test_vectors_are_downloaded_once_and_read(server, place):
    config = configured("glove.keep=60")
    vectors = file_vectors(config, ["w3", "absent"])
    assert vectors.words == tuple(f"w{i}" for i in range(60))
    assert np.array_equal(vectors.matrix[1:], NUMBERS[50].astype(np.float32))
    assert file_vectors(config, []).dim == 50
    glove.fetch(replace(config.glove, name="6B.100d"))  # in the same archive
    assert server.ranges == [None]
    assert {path.name for path in place.iterdir()} == {ARCHIVE, *TEXTS}
    assert (place / "glove.6B.100d.txt").read_text() == TEXTS["glove.6B.100d.txt"]


@pytest.mark.parametrize("resumes", [True, False])
def test_an_interrupted_download_goes_on(server, settings, place, resumes):
    """Also that of a process that was killed; a server that cannot go on sends everything."""
    whole, server.resumes = (server.root / "files" / ARCHIVE).read_bytes(), resumes
    place.mkdir(parents=True)
    (place / f"{ARCHIVE}.part").write_bytes(whole[:7000] if resumes else b"x" * 7000)
    server.faults = [Fault("files", times=2, cut=9000)] if resumes else []
    glove.fetch(settings)
    assert server.ranges == ["bytes=7000-", "bytes=16000-", "bytes=25000-"][: 3 if resumes else 1]
    assert (place / ARCHIVE).read_bytes() == whole
    assert read_vectors(settings.source).dim == 50


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("files", status=503), r"HTTP Error 503.*\); repeat the command, or put the archive into "),
        (Fault("files", times=1, cut=9000), r"HTTP Error 404.*\); 0 of 0 MB are kept: repeat the command"),
        (None, r"Connection refused.*\); repeat the command"),
    ],
    ids=["busy", "broken", "no network"],
)
def test_what_cannot_be_downloaded_is_one_line_and_keeps_what_came(server, settings, place, fault, reason):
    server.faults = [fault or Fault(""), Fault("files", status=404)]
    if fault is None:
        server.close()
    message = rf"^glove.name=6B.50d: http.*{ARCHIVE} .*{reason}.*$"
    with pytest.raises(UnavailableError, match=message) as caught:
        glove.fetch(settings)
    assert "\n" not in str(caught.value)
    assert [path.stat().st_size for path in place.glob("*")] == [9000] * bool(fault and fault.cut)


def test_what_is_not_the_published_file_is_refused(server, settings, place):
    file = server.root / "files" / ARCHIVE
    content = file.read_bytes()
    damaged = content[:500] + bytes([content[500] ^ 1]) + content[501:]
    sizes = f"has %s bytes, not the {len(content):,} that were published"
    removed = rf"{ARCHIVE}: was damaged \(.*\) and is removed; repeat"
    for wrong, message in (
        *((wrong, sizes % f"{len(wrong):,}") for wrong in (content[:-1], b"<html>log in</html>")),
        *((wrong, removed) for wrong in (damaged, b"x" * len(content))),
    ):
        file.write_bytes(wrong)
        with pytest.raises(DataError, match=message):
            glove.fetch(settings)
        assert not list(place.glob("*")), "neither archive nor text"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"no item named 'glove.6B.200d.txt'"):
        glove.fetch(replace(settings, name="6B.200d"))


def test_processes_wait_for_one_download(server, settings):
    server.faults = [Fault("files", delay=0.3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(glove.fetch, [settings] * 3))
    assert server.ranges == [None]


def test_nothing_is_asked_unless_training_needs_it(server, qa_arch, tmp_path, place, few_questions):
    config = configured()
    key = point_key(config)
    assert vector_width(config.glove) == 50
    model = ("model=proposed", "model.hidden=4", "glove=file", "glove.name=6B.50d")
    common = ("debug=fast", *model, *few_questions, "features.cache_dir=null")
    assert qa_arch("params", *common)[0] == 0
    assert qa_arch("train", *common, "--dry-run")[0] == 0
    assert server.ranges == []
    run = tmp_path / "run"
    assert qa_arch("train", *common, "trainer.max_steps=1", "--folder", run)[0] == 0
    assert server.ranges == [None]
    assert point_key(config) == key
    for path in place.iterdir():
        path.unlink()
    assert qa_arch("train", "--config-from", run, "--folder", run, "--resume")[0] == 0
    assert server.ranges == [None], "the finished run has its vectors"


def test_name_and_path_exclude_each_other(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"^glove.name: 6B.50d and glove.path=a.txt exclude each other; set"
    ):
        configured("glove.path=a.txt")
    with pytest.raises(ConfigError, match=r"glove.name: .*840B.300d"):
        configured(name="840B")
    with pytest.raises(ConfigError, match=r"glove.path: missing; .* \(glove.name=840B.300d\)"):
        require_vectors(configured(name="null"))
    monkeypatch.setenv("QA_ARCH_GLOVE", "mine.txt")
    with pytest.raises(ConfigError, match=r"glove.path=null"):
        configured()
    assert str(configured("glove.path=null").glove.source).endswith("glove.6B.50d.txt")

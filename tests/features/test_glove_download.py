"""GloVe by name, from a server on this machine: what arrives, goes on, is refused and is never requested."""

import logging
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO, StringIO
from typing import get_args

import numpy as np
import pytest
from hub_server import Fault, Hub
from rich.console import Console

from qa_arch import terminal
from qa_arch.config.compose import compose
from qa_arch.config.schema import PublishedVectors, require_vectors, validate
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.features import glove
from qa_arch.features.vectors import file_vectors, read_vectors, vector_width
from qa_arch.sweep import point_key

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


@pytest.mark.parametrize("backend", ["own", "torchtext"])
def test_vectors_are_downloaded_once_and_read(server, place, backend):
    config = configured("glove.keep=60", f"glove.backend={backend}")
    vectors = file_vectors(config, ["w3", "absent"])
    assert vectors.words == tuple(f"w{i}" for i in range(60))
    assert np.array_equal(vectors.matrix[1:], NUMBERS[50].astype(np.float32))
    assert file_vectors(config, []).dim == 50
    glove.fetch(replace(config.glove, name="6B.100d"))  # in the same archive
    assert server.ranges == [None]
    assert {path.name for path in place.iterdir()} == {ARCHIVE, *TEXTS}
    assert (place / "glove.6B.100d.txt").read_text() == TEXTS["glove.6B.100d.txt"]


def test_an_interrupted_download_goes_on(server, settings, place, caplog):
    whole = (server.root / "files" / ARCHIVE).read_bytes()
    server.faults = [Fault("files", times=2, cut=9000)]
    glove.fetch(settings)
    assert server.ranges == [None, "bytes=9000-", "bytes=18000-"]
    assert (place / ARCHIVE).read_bytes() == whole
    for path in place.iterdir():
        path.unlink()
    (place / f"{ARCHIVE}.part").write_bytes(whole[:7000])  # of a process that was killed
    server.ranges.clear()
    glove.fetch(settings)
    assert server.ranges == ["bytes=7000-"]
    assert read_vectors(settings.source).dim == 50


def test_a_server_that_cannot_go_on_sends_everything(server, settings, place):
    server.resumes = False
    place.mkdir(parents=True)
    (place / f"{ARCHIVE}.part").write_bytes(b"x" * 7000)
    glove.fetch(settings)
    assert server.ranges == ["bytes=7000-"]
    assert read_vectors(settings.source).dim == 50


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("files", status=503), r"HTTP Error 503.*\); repeat the command, or put the archive into "),
        (Fault("files", times=1, cut=9000), r"HTTP Error 404.*\); 0 of 0 MB are kept: repeat the command"),
        (None, r"Connection refused.*\); repeat the command"),
    ],
    ids=["busy", "broken", "no network"],
)  # fmt: skip
def test_what_cannot_be_downloaded_is_one_line_and_keeps_what_came(server, settings, place, fault, reason):
    if fault is None:
        server.close()
    elif fault.cut:
        server.faults = [fault, Fault("files", status=404)]
    else:
        server.faults = [fault]
    with pytest.raises(
        UnavailableError, match=rf"^glove.name=6B.50d: http.*{ARCHIVE} .*{reason}.*$"
    ) as caught:
        glove.fetch(settings)
    assert "\n" not in str(caught.value)
    assert [path.stat().st_size for path in place.glob("*")] == [9000] * bool(fault and fault.cut)


def test_what_is_not_the_published_file_is_refused(server, settings, place):
    file = server.root / "files" / ARCHIVE
    content = file.read_bytes()
    for wrong in (content[:-1], b"<html>log in</html>"):
        file.write_bytes(wrong)
        with pytest.raises(
            DataError, match=f"has {len(wrong):,} bytes, not the {len(content):,} that were published"
        ):
            glove.fetch(settings)
        assert not list(place.glob("*"))
    damaged = bytearray(content)
    damaged[500] ^= 1
    for wrong in (bytes(damaged), b"x" * len(content)):
        file.write_bytes(wrong)
        with pytest.raises(DataError, match=rf"{ARCHIVE}: was damaged \(.*\) and is removed; repeat"):
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


def test_progress_is_a_bar_or_lines(server, settings, monkeypatch, caplog, place):
    monkeypatch.setattr(glove, "BLOCK", 1000)
    monkeypatch.setattr(terminal, "EVERY_SECONDS", 0)
    caplog.set_level(logging.INFO, "qa_arch")
    glove.fetch(settings)
    assert re.search(rf"{ARCHIVE}: 0 of 0 MB, [\d.]+/s, 0:00 left", caplog.text)
    for path in place.iterdir():
        path.unlink()
    file = StringIO()
    monkeypatch.setattr(terminal, "console", lambda **_: Console(file=file, force_terminal=True, width=90))
    glove.fetch(settings)
    assert "0 of 0 MB" in file.getvalue()


def test_nothing_is_asked_unless_training_needs_it(server, qa_arch, tmp_path, place):
    config = configured()
    key = point_key(config)
    assert vector_width(config.glove) == 50
    common = ("debug=fast", "glove.name=6B.50d", f"runs_dir={tmp_path}", "model=proposed", "model.hidden=4")
    assert qa_arch("params", *common, "glove=file")[0] == 0
    assert qa_arch("train", *common, "glove=file", "--dry-run")[0] == 0
    assert qa_arch("train", *common, "trainer.max_steps=1")[0] == 0, "debug=fast has glove=none"
    assert server.ranges == []
    assert (
        qa_arch("train", *common, "glove=file", "trainer.max_steps=2", "--folder", tmp_path / "run")[0] == 0
    )
    assert server.ranges == [None]
    assert point_key(config) == key
    for path in place.iterdir():
        path.unlink()
    again = ("train", "--config-from", tmp_path / "run", "--folder", tmp_path / "run", "--resume")
    assert qa_arch(*again)[0] == 0
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

"""Published GloVe vectors (Pennington et al. 2014), downloaded where a config names them.

Names and addresses are those of torchtext 0.6, over https. Archive and text stay in ``$QA_ARCH_DATA/glove``.
"""

from __future__ import annotations

import logging
import shutil
import zlib
from http.client import HTTPException
from math import inf
from pathlib import Path
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile

from qa_arch.config.schema import Glove
from qa_arch.errors import DataError, UnavailableError, first_line
from qa_arch.files import hold, replacing
from qa_arch.terminal import watching

log = logging.getLogger(__name__)
FOLDER = "https://nlp.stanford.edu/data/"
ARCHIVES = {
    "840B": ("glove.840B.300d.zip", 2_176_768_927),
    "42B": ("glove.42B.300d.zip", 1_877_800_501),
    "6B": ("glove.6B.zip", 862_182_613),
    "twitter.27B": ("glove.twitter.27B.zip", 1_520_408_563),
}
"""Release -> its archive, and the size of that in bytes."""
BLOCK = 2**20
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""
MB = 1e6


def fetch(settings: Glove) -> None:
    """Download the vectors of ``glove.name``, unless there is no name, or they are here.

    What an interrupted download has brought is kept, and the next goes on from there. Other processes wait.
    Raises UnavailableError if they cannot be downloaded, DataError if they are not what was published.
    """
    text = Path(str(settings.source))
    if not settings.name or text.is_file():
        return
    name, size = ARCHIVES[settings.name.rpartition(".")[0]]
    archive = text.with_name(name)
    with hold(text.parent, "download", file=name, patience=inf):
        if not text.is_file():  # else the process that held it was faster
            if not archive.is_file():
                _download(archive, size, settings.name)
            _unpack(archive, text)


def _download(archive: Path, size: int, name: str) -> None:
    """Go on as long as every connection brings something."""
    part, url = archive.with_name(f"{archive.name}.part"), FOLDER + archive.name
    log.info("glove.name=%s: downloading %s (%.0f MB) to %s", name, url, size / MB, archive.parent)
    done = part.stat().st_size if part.exists() else 0
    while done < size:
        before, reason = done, "the connection broke off"
        try:
            _receive(url, part, done, size)
        except (OSError, HTTPException) as error:
            reason = first_line(error).removeprefix("<urlopen error ").removesuffix(">")
        done = part.stat().st_size if part.exists() else 0
        # A connection that brought nothing is the end; one that broke off later is tried again from there.
        if done <= before:
            rest = f"{done / MB:,.0f} of {size / MB:,.0f} MB are kept: " if done else ""
            raise UnavailableError(
                f"glove.name={name}: {url} cannot be downloaded ({reason}); {rest}repeat the command, or put"
                f" the archive into {archive.parent}, or give vectors by path (glove.path=FILE)"
            )
    # Under its name an archive is always whole.
    part.replace(archive)


def _receive(url: str, part: Path, done: int, size: int) -> None:
    """Append to the ``done`` bytes of ``part`` what the connection brings; DataError for a file of another
    size than ``size``."""
    request = Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    with urlopen(request, timeout=TIMEOUT) as response:
        done = done if response.status == 206 else 0  # else it sends everything
        length = response.headers.get("Content-Length")
        if length and done + int(length) != size:
            raise DataError(
                f"{url}: has {done + int(length):,} bytes, not the {size:,} that were published; give the"
                " vectors by path (glove.path=FILE)"
            )
        with part.open("ab" if done else "wb") as file, watching(part.stem, "MB") as watch:
            watch(done / MB, size / MB)
            while block := response.read(min(BLOCK, size - done)):  # never more than was published
                file.write(block)
                done += len(block)
                watch(done / MB, size / MB)


def _unpack(archive: Path, text: Path) -> None:
    log.info("%s: unpacking %s; the archive may be deleted then", archive, text.name)
    try:
        with (
            ZipFile(archive) as files,
            files.open(text.name) as member,
            replacing(text) as temporary,
            temporary.open("wb") as file,
        ):
            shutil.copyfileobj(member, file, BLOCK)  # verifies the checksum
    except (BadZipFile, KeyError, EOFError, zlib.error) as error:
        archive.unlink()
        raise DataError(
            f"{archive}: was damaged ({first_line(error)}) and is removed; repeat the command to download it"
            " again"
        ) from None

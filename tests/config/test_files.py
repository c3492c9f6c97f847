"""Written files follow the umask; malformed or oversized JSON is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from qa_arch.config.files import json_items, read_json, replacing, replacing_folder, write_atomic
from qa_arch.errors import QaArchError, RunError


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775)])
def test_written_files_follow_the_umask(tmp_path, mask, file_mode, folder_mode):
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "written", "text")
        with json_items(tmp_path / "items") as add:
            add("key", 1)
        with replacing_folder(tmp_path / "made") as made:
            (made / "part").touch()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"written": file_mode, "items": file_mode, "made": folder_mode, "part": file_mode}


@pytest.mark.parametrize(
    "text", ["{", "[" * 65 + "]" * 65, '{"a": ' * 70 + "1" + "}" * 70, "[" * 100_000, '"\\ud800"', "9" * 5000]
)
def test_malformed_json_is_refused(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"file\.json: cannot be read \(.*\); fetch it again") as refusal:
        read_json(path, "fetch it again")
    assert "\n" not in str(refusal.value)


def test_file_above_the_size_limit_is_not_opened(tmp_path):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(RunError, match="256 MiB, more than 256"):
        read_json(tmp_path / "large.json", "fetch it again")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "save", [Tokenizer(BPE()).save, lambda path: os.write(os.open(path, os.O_WRONLY), b"x")]
)
def test_full_disk_is_a_one_line_error(tmp_path, save):
    with (
        pytest.raises(
            QaArchError, match=r"out: cannot be written \(No space left on device.*nothing was changed"
        ),
        replacing_folder(tmp_path / "out"),
    ):
        save("/dev/full")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left"), ValueError("x"), KeyboardInterrupt()])
def test_failed_write_changes_nothing(tmp_path, error):
    path = write_atomic(tmp_path / "file.txt", "old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("ne")
            raise error

    def add_half() -> None:
        with json_items(path) as add:
            add("a", 1)
            raise error

    for write in (write_half, add_half):
        with pytest.raises(QaArchError if isinstance(error, OSError) else type(error)) as caught:
            write()
        assert not isinstance(error, OSError) or str(path) in str(caught.value)
    with pytest.raises(QaArchError, match="cannot be written"):
        write_atomic(path / "inside.txt", "x")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]

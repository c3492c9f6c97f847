"""Written files follow the umask and survive kills; malformed or oversized JSON is refused."""

import io
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from kills import check_recovery, contents, killed_at_each_step, killed_at_sizes
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from qa_arch import files
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.files import (
    is_unfinished,
    json_items,
    read_json,
    read_yaml,
    replacing,
    replacing_folder,
    write_atomic,
    write_json,
)
from qa_arch.models import store


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775)])
def test_written_files_follow_the_umask(tmp_path, mask, file_mode, folder_mode):
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "written", "text")
        with json_items(tmp_path / "items") as add:
            add("key", 1)
        with replacing(tmp_path / "weights") as path:  # safetensors ignores the umask
            save_file({"x": torch.zeros(1)}, path)
        with replacing_folder(tmp_path / "made") as made:
            (made / "part").touch()
            save_file({"x": torch.zeros(1)}, made / "part.safetensors")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes.pop("made") == folder_mode
    assert modes == dict.fromkeys(["written", "items", "weights", "part", "part.safetensors"], file_mode)


@pytest.mark.parametrize(
    "text", ["{", '{"a": ' * 70 + "1" + "}" * 70, "[" * 100_000, '"\\ud800"', "9" * 5000]
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


class Disk(io.BytesIO):
    """Has room for small writes only, as a buffered file on a disk that is nearly full."""

    def write(self, data: Any) -> int:
        if len(data) > 9999:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(RunError, match=r"run\.json: cannot be read \(not a regular file\); fetch it again"):
        read_json(tmp_path / "run.json", "fetch it again")
    os.mkfifo(tmp_path / store.WEIGHTS)
    with pytest.raises(RunError, match=r"model\.safetensors: is missing; the run has no saved model"):
        store.load_weights(tmp_path, torch.nn.Linear(1, 1))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "save",
    [
        Tokenizer(BPE()).save,
        lambda path: os.write(os.open(path, os.O_WRONLY), b"x"),
        lambda _: torch.save(torch.zeros(9999), Disk()),
    ],
)
def test_full_disk_is_a_one_line_error(tmp_path, save):
    with (
        pytest.raises(QaArchError, match=r"out: cannot be written \(No space left.* was not changed; free"),
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


@pytest.mark.parametrize("old", ["old", None], ids=["a file", "nothing yet"])
def test_link_is_followed(tmp_path, old):
    target, link = tmp_path / "deep" / "file.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    if old is not None:
        target.write_text(old)
    link.symlink_to("deep/file.txt")
    write_atomic(link, "new")
    assert (link.readlink(), target.read_text()) == (Path("deep/file.txt"), "new")


def test_pipe_is_written_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "text")
    assert (pipe.is_fifo(), os.read(reader, 9)) == (True, b"text")
    with pytest.raises(QaArchError, match=r"pipe: cannot be written \(No space"), replacing(pipe) as path:
        raise OSError(28, "No space left")
    assert path.is_fifo()


VALUE = {f"é{i}": "x" * 50 for i in range(400)}
"""Larger than Python's write buffer."""


def write_items(path) -> None:
    with json_items(path) as add:
        for key, value in VALUE.items():
            add(key, value)


@pytest.mark.parametrize("old", [{}, {"deep/x.json": b"old"}], ids=["no file", "an old file"])
@pytest.mark.parametrize("write", [lambda path: write_json(path, VALUE), write_items], ids=["whole", "items"])
def test_killed_write_leaves_the_old_or_the_new_file(tmp_path, write, old):
    def work():
        write(tmp_path / "deep" / "x.json")

    # At least: create folder, temporary file, open it, fsync, chmod, rename.
    assert check_recovery(killed_at_each_step(work, tmp_path), tmp_path, work, old) >= 5
    assert check_recovery(killed_at_sizes(work, [0, 1, 5000, 9000, 20000]), tmp_path, work, old) == 5


@pytest.mark.parametrize("old", [{}, {"deep/x/a.json": b"old"}], ids=["no folder", "an old folder"])
def test_killed_write_leaves_the_old_or_the_new_folder(tmp_path, old):
    """After a kill between the two renames, the next write into the same parent restores the old folder."""

    def work():
        with replacing_folder(tmp_path / "deep" / "x") as folder:
            (folder / "a.json").write_bytes(b"new")

    def read(folder):
        (folder / "deep").mkdir(exist_ok=True)
        write_atomic(folder / "deep" / "beside", "")
        return {name: data for name, data in contents(folder).items() if name != "deep/beside"}

    # At least: create folder, temporary folder, file, chmod, rename.
    assert check_recovery(killed_at_each_step(work, tmp_path), tmp_path, work, old, read) >= 5


def test_folder_is_unchanged_if_renaming_fails(tmp_path, monkeypatch):
    rename = Path.rename

    def refuse(self, target):
        if self.name.endswith(files.REPLACED) or target.name != "x":
            return rename(self, target)
        raise PermissionError(13, "Permission denied")

    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").write_bytes(b"old")
    monkeypatch.setattr(Path, "rename", refuse)
    with (
        pytest.raises(QaArchError, match=r"x: cannot be written \(Permission denied\) and was not changed"),
        replacing_folder(tmp_path / "x") as folder,
    ):
        (folder / "new").write_bytes(b"new")
    assert contents(tmp_path) == {"x/old": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_next_write_removes_leftovers_of_killed_writes(tmp_path):
    """Otherwise a cache whose settings change after a kill would keep leftovers forever."""
    (tmp_path / ".hidden").write_text("the user's own")
    for _ in killed_at_sizes(lambda: write_json(tmp_path / "a.json", VALUE), [100, 200, 300]):
        assert sum(map(is_unfinished, tmp_path.iterdir())) == 1
    write_atomic(tmp_path / "b.txt", "b")
    assert contents(tmp_path) == {".hidden": b"the user's own", "b.txt": b"b"}


def test_files_being_written_are_not_removed(tmp_path):
    with replacing(tmp_path / "a.txt") as temporary, replacing_folder(tmp_path / "c") as folder:
        assert is_unfinished(temporary)
        assert is_unfinished(folder)
        temporary.write_text("a")
        (folder / "d").write_text("d")
        write_atomic(tmp_path / "b.txt", "b")
        write_atomic(tmp_path / "a.txt", "of another writer")
    assert contents(tmp_path) == {"a.txt": b"a", "b.txt": b"b", "c/d": b"d"}


def test_folder_being_removed_is_not_restored(tmp_path, monkeypatch):
    """Otherwise a concurrent write would move it back to where the new folder goes."""
    rename = Path.rename

    def rename_then_write(self, target):
        rename(self, target)
        if target.name.endswith(files.REPLACED):
            write_atomic(tmp_path / "b.txt", "b")
            assert not (tmp_path / "x").exists()

    (tmp_path / "x").mkdir()
    monkeypatch.setattr(Path, "rename", rename_then_write)
    with replacing_folder(tmp_path / "x") as folder:
        (folder / "new").write_bytes(b"new")
    assert contents(tmp_path) == {"b.txt": b"b", "x/new": b"new"}


def _aliases(depth: int) -> str:
    lines = (
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefgh"[:depth])
    )
    return "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]", *lines])


def _merges(depth: int) -> str:
    lines = (f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, depth))
    return "\n".join(["a0: &a0 {k: 1}", *lines])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a: {'[' * 600}{']' * 600}", "maximum recursion depth exceeded"),
        (f"a: {'[' * 80}{']' * 80}", "nested more than 64 deep"),
        ("a: &a [*a]", "nested more than 64 deep"),
        ("a: &a [*a, *a]", "its aliases repeat too many values"),
        (_aliases(5), "its aliases repeat too many values"),
        (_aliases(8), "its aliases repeat too many values"),
        (_merges(40), "its aliases repeat too many values"),
        (f"a: {'9' * 6000}", "a number with more than 4300 digits"),
        ("a: [1, 2\nb: {", "line 2, column 2: "),
        ("a:\n\t- b", "line 2, column 1: "),
        ("a: !!python/object/apply:os.system [ls]", "line 1, column 4: could not determine a constructor"),
        ("b: {a: 1, c: 2, a: 3}", "line 1, column 17: 'a' is given twice"),
        ("? [1]\n: 2", "line 1, column 3: found unhashable key"),
        ('a: "\\ud800"', "'utf-8' codec can't encode character"),
        ("#" * 2**20 + "#", "1 MiB, more than 1"),
    ],
)
def test_unusable_yaml_is_one_line(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}: is not valid YAML: {message}")
    assert str(caught.value).count("\n") == 0


def test_aliases_and_merge_keys_are_read(tmp_path):
    """A merged mapping may repeat keys, also where it is merged again."""
    over = "o: &o {<<: *a0, k: 2}\np: {<<: *o, <<: *a0, k: 3}"
    (tmp_path / "a.yaml").write_text(f"{_aliases(2)}\n{_merges(9)}\n{over}")
    content = read_yaml(tmp_path / "a.yaml")
    assert (content["o"], content["p"]) == ({"k": 2}, {"k": 3})
    assert (content["b"], content["a8"]) == ([["x"] * 9] * 9, {"k": 1})

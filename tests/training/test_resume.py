"""Resumed runs equal uninterrupted ones: every bit of state, the order of windows, the history."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.plugins.precision import MixedPrecision
from stops import stopped_after

from qa_arch import provenance, records
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.files import write_json
from qa_arch.qa import task
from qa_arch.records import read_record
from qa_arch.training import checkpoint, run
from qa_arch.training import fit as fitting
from qa_arch.training.checkpoint import LAST, PREVIOUS, newest, random_state, restore_random_state
from qa_arch.training.module import TrainingModule

TWO_EPOCHS = (
    "trainer.epochs=2",
    "trainer.accumulate=2",
    "trainer.checkpoint_minutes=1e-9",
    "encoder.hidden_dropout=0.1",  # makes the random states matter
    "model.dropout=0.1",
)
"""21 questions in batches of 4, two per step: checkpoints after steps 1 and 2 and at the end of the epoch."""


@pytest.fixture
def uninterrupted(train_once):
    return train_once(*TWO_EPOCHS)


@pytest.fixture
def order(before_step):
    """(epoch, batch) -> window numbers, in the order of training."""
    order: dict[tuple[int, int], list[int]] = {}

    def note(module, batch, batch_idx):
        order[module.current_epoch, batch_idx] = batch.index.tolist()

    before_step(note)
    return order


@pytest.fixture
def stop_after(run_training):
    """``stop_after(n, *overrides)``: train until the n-th checkpoint, in the folder ``stopped``."""

    def run(checkpoints: int, *overrides: str, resume: bool = False) -> None:
        with stopped_after(checkpoints):
            run_training(*overrides, name="stopped", resume=resume)

    return run


@pytest.mark.slow
def test_run_resumed_twice_equals_uninterrupted_one(run_training, stop_after, same, order):
    """Stopped after epoch 2, again inside epoch 4, then finished."""
    four = (*TWO_EPOCHS, "trainer.epochs=4")
    uninterrupted = run_training(*four, name="uninterrupted")
    expected = dict(order)
    epochs = [[ids for (epoch, _), ids in expected.items() if epoch == number] for number in range(4)]
    assert all(first != second for first, second in combinations(epochs, 2))
    order.clear()
    stop_after(6, *four)
    assert list(order) == list(expected)[:12]
    stop_after(4, *four, resume=True)
    assert list(order) == list(expected)[:20]
    resumed = run_training(*four, name="stopped", resume=True)
    assert list(order.items()) == list(expected.items())
    assert resumed.weights == uninterrupted.weights
    assert resumed.results == uninterrupted.results
    same(resumed.state, uninterrupted.state)


def test_changed_inputs_are_refused_and_moved_ones_are_not(qa_arch, tiny_run, few_questions, tmp_path):
    """While the run is unfinished and when it has ended; refusing keeps what it needs to go on."""
    sources = dict(option.split("=") for option in few_questions)
    files = {setting: tmp_path / "data" / Path(path).name for setting, path in sources.items()}
    (tmp_path / "data").mkdir()
    for setting, path in sources.items():
        shutil.copy(path, files[setting])
    files["glove.path"] = tmp_path / "data" / "vectors.txt"
    unread = "\n".join([*(f"unused{number} 0 0" for number in range(100)), "unused 0 x"])
    files["glove.path"].write_text(f"the 1 2\nwas 3 4\n{unread}")
    model = (*TWO_EPOCHS, "model=proposed", "model.hidden=6", "glove=file", "glove.keep=1")

    def settings() -> list[str]:
        return [*model, *(f"{setting}={path}" for setting, path in files.items())]

    def resume(*more: str) -> tuple[int, str]:
        words = tiny_run(*settings(), *more)
        code, _, err = qa_arch("train", *words, "--folder", tmp_path / "stopped", "--resume")
        return code, err

    def changed_inputs_are_refused(*changed: str) -> None:
        for setting in changed:
            path = files[setting]
            content = path.read_text()
            path.write_text(content.replace("was", "wos"))
            code, err = resume()
            path.write_text(content)
            assert f"{setting}: {path} is not what the run has read" in err
            assert code == 5

    with stopped_after(1):
        resume("--debug")
    changed_inputs_are_refused(*files)
    moved = (tmp_path / "data").rename(tmp_path / "moved")
    files = {setting: moved / path.name for setting, path in files.items()}
    assert resume("optim.lr=0.5")[0] == 5
    assert resume()[0] == 0
    assert read_record(tmp_path / "stopped").status == "ok"
    changed_inputs_are_refused("data.dev", "glove.path")
    assert resume()[0] == 0
    shutil.rmtree(moved)
    assert resume()[0] == 0, "what is not here cannot be compared"


def test_run_resumed_with_other_code_is_of_no_code(run_training, stop_after, monkeypatch, caplog, tmp_path):
    """A registration pins the code, and refuses it. Without a checkpoint, all of it is by the code of now."""
    stop_after(1)
    monkeypatch.setattr(provenance, "code_hash", lambda _: "pinned")
    record = run_training(name="stopped", resume=True).record
    assert (record.code, "stopped: was begun by other code" in caplog.text) == (None, True)
    runs = {"arm": {"13": record.settings_hash}}
    sets = {split: {"fingerprint": facts.fingerprint} for split, facts in record.data.items()}
    pinned = provenance.Registration(date="", commit="c", sets=sets, runs=runs, code="pinned")
    write_json(tmp_path / provenance.REGISTERED, asdict(pinned))
    with pytest.raises(ConfigError, match="the run was trained by other code than"):
        provenance.require_registered(tmp_path, record, record.fingerprint("dev"))
    checkpoint.discard(tmp_path / "stopped")
    assert run_training(name="stopped", resume=True).record.code == "pinned"


def test_patience_continues_after_resuming(run_training, stop_after, monkeypatch):
    """The best epoch is the second; stopped in the third, training ends early after the fourth."""
    scores = iter([20.0, 30.0, 10.0, 10.0, 99.0])
    monkeypatch.setattr(task, "validation_scores", lambda *_: {"calibration_f1": next(scores)})
    settings = (*TWO_EPOCHS, "trainer.epochs=6", "trainer.patience=2")
    stop_after(7, *settings)
    record = run_training(*settings, name="stopped", resume=True).record
    assert [epoch.value("calibration_f1") for epoch in record.epochs] == [20.0, 30.0, 10.0, 10.0]
    assert record.best_epoch == 1
    again = run_training(*settings, name="stopped", resume=True).record
    assert (len(again.epochs), next(scores)) == (4, 99.0)


def test_damaged_checkpoint_falls_back_to_the_previous_one(
    run_training, uninterrupted, stop_after, same, caplog, tmp_path
):
    stop_after(5, *TWO_EPOCHS)
    folder = tmp_path / "stopped"
    shutil.copytree(folder, tmp_path / "copy")
    _damage(folder / LAST, "one bit")
    with caplog.at_level(logging.WARNING, "qa_arch"):
        resumed = run_training(*TWO_EPOCHS, name="stopped", resume=True)
    assert "last.ckpt: damaged" in caplog.text
    assert resumed.weights == uninterrupted.weights
    same(resumed.state, uninterrupted.state)
    for damage in ("truncated", "empty", "one bit"):
        for name in (LAST, PREVIOUS):
            shutil.copy(tmp_path / "copy" / name, folder)
        _damage(folder / LAST, damage)
        assert newest(folder)[0].name == PREVIOUS
        _damage(folder / PREVIOUS, damage)
        with pytest.raises(RunError, match=r"last\.ckpt and previous\.ckpt cannot be read"):
            newest(folder)


def test_any_flipped_bit_of_a_header_falls_back_to_the_previous_checkpoint(tmp_path, same):
    """Or does no harm: zipfile and torch check some of a header, and raise errors of many classes."""
    state = {"weights": torch.arange(6.0), "epoch": 3, "loops": {"step": torch.tensor(4)}}
    for name in (LAST, PREVIOUS):
        torch.save({**state, "name": name}, tmp_path / name)
    content = (tmp_path / LAST).read_bytes()
    with zipfile.ZipFile(tmp_path / LAST) as archive:
        entries, directory = archive.infolist(), archive.start_dir
    local = [entry.header_offset + byte for entry in entries[:2] for byte in range(30)]
    used = set()
    for position in (*local, *range(directory, directory + 46), *range(len(content) - 120, len(content))):
        for bit in (0, 3, 6):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            (tmp_path / LAST).write_bytes(damaged)
            path, loaded = newest(tmp_path)
            same(loaded, {**state, "name": path.name})
            used.add(path.name)
    assert used == {LAST, PREVIOUS}


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("zipfile.ZipFile", PermissionError(13, "Permission denied")),
        ("torch.load", RuntimeError("DefaultCPUAllocator: can't allocate memory")),
    ],
    ids=repr,
)
def test_checkpoint_that_cannot_be_read_now_is_not_called_damaged(tmp_path, monkeypatch, place, error):
    torch.save({}, tmp_path / LAST)
    monkeypatch.setattr(place, Mock(side_effect=error))
    with pytest.raises(type(error)) as caught:
        newest(tmp_path)
    assert caught.value is error


class FailsOnLoad:
    def __reduce__(self):
        return pytest.fail, ("the pickle was executed",)


def test_checkpoint_with_arbitrary_pickles_is_refused(tmp_path):
    """A pickle could run code, so it is never loaded."""
    torch.save({"object": FailsOnLoad()}, tmp_path / LAST)
    with pytest.raises(RunError, match=r"last\.ckpt: holds more than tensors and plain values"):
        newest(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        *([], {"state_dict": {}}, {"random": []}, {"state_dict": {"model.weight": torch.zeros(2)}}),
        *({"model": 0, "random": [3]}, {"model": 0, "random": 3}, {"model": 0, "loops": {}}),
        *(
            {"model": 0, "train_sums": "x"},
            {"model": 0, "optimizer_states": [1]},
            {"model": 0, "callbacks": 3},
        ),
    ],
    ids=str,
)
def test_checkpoint_of_another_program_or_model_is_refused(run_training, stop_after, tmp_path, content):
    stop_after(1, *TWO_EPOCHS)
    path = tmp_path / "stopped" / LAST
    own = torch.load(path, weights_only=True)
    foreign = {**own, **content} if "model" in str(content) else content  # all parts, of other weights
    torch.save(foreign, path)
    with pytest.raises(
        RunError, match=r"last\.ckpt: is not a checkpoint of this run( \(.*\))?; use --if-exists replace"
    ):
        run_training(*TWO_EPOCHS, name="stopped", resume=True)


def test_folder_in_place_of_a_checkpoint_is_skipped(tmp_path):
    (tmp_path / LAST).mkdir()
    with pytest.raises(RunError, match=r"last\.ckpt cannot be read; use --if-exists replace"):
        newest(tmp_path)
    torch.save({"epoch": 3}, tmp_path / PREVIOUS)
    assert newest(tmp_path) == (tmp_path / PREVIOUS, {"epoch": 3})


def _damage(path, how: str) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"truncated": content[:-100], "empty": b"", "one bit": content}[how])


@pytest.mark.parametrize("room", [True, False])
def test_full_disk_hides_neither_the_status_nor_the_error(run_training, monkeypatch, tmp_path, room):
    """There is room for the record but not for the traceback, or none for either."""
    write = records.write_json

    def fill(*_):
        if not room:
            monkeypatch.setattr(records, "write_json", full)
        raise OSError(28, "No space left on device")

    def full(*_):
        raise QaArchError("the disk is full")

    monkeypatch.setattr(run, "write_atomic", full)
    monkeypatch.setattr(fitting.store, "save_weights", fill)
    with pytest.raises(OSError, match="No space left"):
        run_training("trainer.epochs=1")
    assert records.write_json is (write if room else full)
    record = read_record(tmp_path / "run")
    assert (record.status, record.error) == ("failed", "OSError: [Errno 28] No space left on device")


def test_full_disk_skips_checkpoints_and_training_continues(
    run_training, uninterrupted, same, monkeypatch, caplog
):
    """There is room for two checkpoints: the run still finishes, and can be resumed from the second."""
    torch_save, room = torch.save, iter(range(2))

    def save(value, file):
        if next(room, None) is None:
            file.write(b"half a checkpoint")
            raise OSError(28, "No space left on device")
        torch_save(value, file)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "qa_arch"):
        patch.setattr(checkpoint.torch, "save", save)
        finished = run_training(*TWO_EPOCHS)
    assert finished.weights == uninterrupted.weights
    assert sorted(path.name for path in finished.folder.glob("*.ckpt")) == [LAST, PREVIOUS]
    assert finished.state["global_step"] == 2
    assert not list(finished.folder.glob(".last*"))
    assert "last.ckpt: cannot be written (No space left on device)" in caplog.text
    assert "the previous checkpoint is kept, and training continues" in caplog.text
    resumed = run_training(*TWO_EPOCHS, resume=True)
    assert resumed.weights == uninterrupted.weights
    same(resumed.state, uninterrupted.state)


@pytest.mark.parametrize(("saved", "world"), [(1, 2), (2, 1)])
def test_checkpoint_of_another_world_size_is_refused(saved, world):
    """With ``devices=auto`` the config is the same on any number of devices, but the batches are not."""
    module = TrainingModule.__new__(TrainingModule)
    LightningModule.__init__(module)
    module._trainer = SimpleNamespace(world_size=world)
    with pytest.raises(RunError, match=rf"world size {saved} cannot be resumed with world size {world}"):
        module.on_load_checkpoint({"random": [random_state()] * saved})


@pytest.mark.parametrize("device", [0, 3])
def test_random_state_is_of_the_own_gpu_however_many_are_visible(monkeypatch, device):
    states = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor(0))
    monkeypatch.setattr(torch.cuda, "set_rng_state", states.append)
    state = random_state()
    assert len(state["cuda"]) == 1
    restore_random_state(state)
    assert states == state["cuda"]


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_killed_processes_resume(run_training, tiny_run, tmp_path, world):
    """Kill all processes at once, five times, a little later each time; then let the run finish."""
    settings = [*TWO_EPOCHS, "trainer.epochs=4", f"trainer.devices={world}"]
    uninterrupted = run_training(*settings, name="uninterrupted")
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "qa_arch.cli.main", "train", *tiny_run(*settings), "--resume"]
    killed = 0
    for attempt in range(5):
        before = _checkpoint_time(folder)
        process = subprocess.Popen([*command, "--folder", str(folder)], start_new_session=True)
        while process.poll() is None and _checkpoint_time(folder) == before:
            time.sleep(0.005)
        time.sleep(0.05 * attempt)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed >= 2
    assert subprocess.run([*command, "--folder", str(folder)]).returncode == 0
    assert (folder / "model" / "model.safetensors").read_bytes() == uninterrupted.weights
    assert read_record(folder).scores == uninterrupted.record.scores


def _checkpoint_time(folder) -> int:
    path = folder / LAST
    return path.stat().st_mtime_ns if path.is_file() else 0


@pytest.mark.slow
def test_fp16_scaler_state_is_resumed(run_training, stop_after, same, monkeypatch):
    """fp16 on a CPU with a scale that grows during the run: the scale and its growth counter are restored."""

    def half(*, plugins, precision, **settings):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
        return trainer(plugins=[*plugins, MixedPrecision("16-mixed", "cpu", scaler=scaler)], **settings)

    trainer = fitting.pl.Trainer
    monkeypatch.setattr(fitting.pl, "Trainer", half)
    uninterrupted = run_training(*TWO_EPOCHS, name="uninterrupted")
    assert uninterrupted.state["MixedPrecision"]["scale"] == 2.0**7  # six steps
    stop_after(4, *TWO_EPOCHS)
    resumed = run_training(*TWO_EPOCHS, name="stopped", resume=True)
    assert resumed.weights == uninterrupted.weights
    same(resumed.state, uninterrupted.state)

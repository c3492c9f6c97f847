"""Runs that take seconds: a tiny random encoder on a few generated questions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from stops import CLOCKS, results_of

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.records import RunRecord
from qa_arch.training.module import TrainingModule
from qa_arch.training.run import train

SMALL = [
    "model=bert",
    "debug=fast",
    "model.dropout=0.0",
    "encoder.hidden_dropout=0.0",
    "encoder.attention_dropout=0.0",
    "encoder.initializer_range=0.1",
    "features.max_length=96",
    "features.cache_dir=null",
    "data.train_questions=21",
    "trainer.max_steps=-1",
    "trainer.progress=false",
    "optim.lr=1e-3",
]


@pytest.fixture(scope="session")
def tiny_run(few_questions) -> Callable[..., list[str]]:
    """``tiny_run(*overrides)``: all overrides of a tiny run, each setting once, for a command line."""

    def settings(*overrides: str) -> list[str]:
        return list({word.partition("=")[0]: word for word in (*SMALL, *few_questions, *overrides)}.values())

    return settings


@pytest.fixture(scope="session")
def configure_once(few_questions) -> Callable[..., Config]:
    """``configure_once(*overrides)``: config of a tiny run, cached for the session."""

    @cache  # composing a config takes as long as a tiny fit
    def build(*overrides: str) -> Config:
        return validate(compose([*SMALL, *few_questions, *overrides]))

    return build


@pytest.fixture
def configure(configure_once) -> Callable[..., Config]:
    return configure_once


@pytest.fixture(autouse=True, scope="module")  # "package" lasts for the session where no __init__.py is
def finished_runs_keep_checkpoints() -> Iterator[None]:
    """Tests compare the state in which runs ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qa_arch.training.run.discard", lambda folder: None)
        yield


@pytest.fixture
def before_step(monkeypatch) -> Callable[[Callable[..., object]], None]:
    """``before_step(act)``: call ``act(module, batch, batch_idx)`` before every training step."""

    def patch(act: Callable[..., object]) -> None:
        step = TrainingModule.training_step

        def training_step(module, batch, batch_idx):
            act(module, batch, batch_idx)
            return step(module, batch, batch_idx)

        monkeypatch.setattr(TrainingModule, "training_step", training_step)

    return patch


@dataclass(frozen=True)
class Trained:
    record: RunRecord
    folder: Path

    @property
    def results(self) -> tuple:
        return results_of(self.record)

    @property
    def weights(self) -> bytes:
        return (self.folder / "model" / "model.safetensors").read_bytes()

    @property
    def checkpoint(self) -> Path:
        return self.folder / "last.ckpt"

    @property
    def state(self) -> dict[str, Any]:
        """Contents of the last checkpoint."""
        return torch.load(self.checkpoint, weights_only=True)


@pytest.fixture
def run_training(configure, tmp_path) -> Callable[..., Trained]:
    """``run_training(*overrides)``: train in the folder ``name``; ``resume`` continues what is there."""

    def run(*overrides: str, name: str = "run", resume: bool = False) -> Trained:
        folder = tmp_path / name
        return Trained(train(configure(*overrides), folder=folder, resume=resume), folder)

    return run


@pytest.fixture(scope="session")
def train_once(configure_once, tmp_path_factory) -> Callable[..., Trained]:
    """``train_once(*overrides)``: a run shared by all tests that only read it."""

    @cache
    def run(*overrides: str) -> Trained:
        folder = tmp_path_factory.mktemp("once") / "run"
        return Trained(train(configure_once(*overrides), folder=folder), folder)

    return run


@pytest.fixture(scope="session")
def same() -> Callable[..., None]:
    """Assert that two checkpoints are equal, every value exactly, except for clock times."""

    def check(actual, expected, where: str = "checkpoint") -> None:
        assert type(actual) is type(expected), where
        if isinstance(expected, torch.Tensor):
            assert torch.equal(actual, expected), where
        elif isinstance(expected, dict):
            assert actual.keys() == expected.keys(), where
            for key in set(expected) - {"seconds", *CLOCKS}:
                check(actual[key], expected[key], f"{where}.{key}")
        elif isinstance(expected, list | tuple):
            assert len(actual) == len(expected), where
            for number, pair in enumerate(zip(actual, expected, strict=True)):
                check(*pair, f"{where}[{number}]")
        else:
            assert actual == expected, where

    return check


@pytest.fixture
def offline_wandb(monkeypatch, tmp_path):
    """Run wandb offline, without prompts, below ``tmp_path``."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)


STUDENT = ("encoder.layers=2", "encoder.vocabulary=null")
"""Overrides of a student with half the depth of ``teacher`` and its tokenizer."""


@pytest.fixture(scope="session")
def teacher(configure_once, tmp_path_factory) -> Path:
    """Folder of a run with four layers, trained enough to answer something."""
    folder = tmp_path_factory.mktemp("teachers") / "teacher"
    train(configure_once("encoder.layers=4", "trainer.epochs=3", "optim.lr=3e-3", "seed=3"), folder=folder)
    return folder


@pytest.fixture
def student(teacher) -> Callable[..., tuple[str, ...]]:
    """``student(choice)``: overrides that distil ``teacher``; ``choice`` is one of ``conf/distillation``."""

    def overrides(choice: str) -> tuple[str, ...]:
        return (*STUDENT, f"distillation={choice}", f"distillation.teacher={teacher}")

    return overrides

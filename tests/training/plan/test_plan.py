"""``qa-arch plan``: what it reads off a config, what stands in, what it refuses; against real runs (slow)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from qa_arch.cli.main import main
from qa_arch.cli.plan import read_size
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.tasks.span import TASK, SpanTask
from qa_arch.training.plan import passes, untrained
from qa_arch.training.plan.predict import plan

GB = 2**30
PROPOSED = ["model=proposed", "glove=none", "model.hidden=12"]
CARD = ["trainer=8gb", "trainer.accelerator=gpu", "trainer.batch_size=24"]


def planned(config, available=4 * GB, timed=False):
    return plan(config, available=available, timed=timed, trusted=TRUSTED)


@pytest.mark.parametrize("model", [["model=bert"], PROPOSED])
def test_a_plan_adds_up(configure, model):
    config = configure(*model, "trainer.batch_size=4", "trainer.accumulate=3", "trainer.eval_batch_size=1")
    result, counted = planned(config), TASK.count_parameters(config)
    assert (result.parameters, result.trainable) == (counted["total"], counted["trainable"])
    assert sum(result.memory.values()) == pytest.approx(result.total, abs=0.5)
    assert result.memory["gradients"] == pytest.approx(4 * result.trainable / 2**20, abs=0.06)
    assert result.batch == {"micro": 4, "accumulate": 3, "windows": 4}
    assert [(cut["micro"], cut["accumulate"]) for cut in result.cuts] == [
        (12, 1),
        (6, 2),
        (4, 3),
        (3, 4),
        (2, 6),
        (1, 12),
    ]
    assert result.proposal == ["trainer.batch_size=12", "trainer.accumulate=1"]
    assert result.longest <= config.features.max_length


def test_the_preset_of_a_small_card(configure):
    """A card that is not here: no process in the sum, moments as the machine can hold them, no time."""
    result = planned(configure(*CARD), available=None, timed=True)
    if torch.cuda.is_available():
        pytest.skip("the card is here")
    assert result.device == "cuda"
    assert result.memory["process"] == 8  # cuBLAS, on a card that is not here
    assert result.batch["micro"] * result.batch["accumulate"] == 24
    assert result.batch["micro"] == 6
    assert result.proposal is None
    assert result.epoch is None
    assert any("--memory" in note for note in result.notes)


def test_checkpointing_takes_less(configure):
    on, off = (
        planned(
            configure(
                "encoder.layers=4",
                "encoder.width=64",
                "trainer.batch_size=32",
                "trainer.eval_batch_size=1",
                f"trainer.gradient_checkpointing={value}",
            )
        )
        for value in ("true", "false")
    )
    assert on.memory["activations"] < 0.8 * off.memory["activations"]


def test_what_the_hub_does_not_give_is_stood_in_for(configure, monkeypatch):
    """Windows of the full length, and the sizes of the known encoder; nothing is timed on them."""

    def unreachable(*_):
        raise UnavailableError("the hub does not answer")

    config = configure("trainer.batch_size=2")
    monkeypatch.setattr(SpanTask, "load_splits", unreachable)
    result = planned(config, timed=True)
    assert result.longest == config.features.max_length
    assert result.epoch is None
    assert any("the hub does not answer" in note for note in result.notes)


def test_vectors_without_a_file_are_assumed(configure):
    config = configure(*PROPOSED)
    config = replace(config, glove=replace(config.glove, use=True, path=None, dim=20, keep=1000))
    result = planned(config)
    assert result.memory["vectors"] >= 1000 * 20 * 4 / 2**20 - 0.1
    assert any("vectors are assumed" in note for note in result.notes)


def test_time_is_reckoned_from_all_batches(configure, monkeypatch):
    """Every pass is said to take 2 s, every step too: 2 s for each batch and for each optimizer step."""
    monkeypatch.setattr(passes, "_seconds", lambda work, gpu: 2.0)
    config = configure("trainer.batch_size=4", "trainer.accumulate=2")
    result = passes.time_epoch(config, untrained.build_untrained(config, TRUSTED), gpu=False, world=1)
    batches = -(-result.windows // 4)
    assert result.steps == -(-batches // 2)
    assert result.seconds == 2 * batches + 2 * result.steps
    assert 1 <= result.timed <= passes.SAMPLES


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=qa_lstm/c"], "model.task"),
        (["model=question_types"], "model.task"),
        (["trainer=fsdp"], "does not support fsdp"),
    ],
)
def test_what_cannot_be_planned(configure, overrides, message):
    with pytest.raises(ConfigError, match=message):
        planned(configure(*overrides))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * GB),
        ("8", None),
        ("512MiB", 512 * 2**20),
        ("0.5 g", GB // 2),
        ("many", None),
        ("-3GB", None),
    ],
)
def test_sizes(text, size):
    if size is None:
        with pytest.raises(ConfigError, match="--memory"):
            read_size(text)
    else:
        assert read_size(text) == size


def test_on_the_command_line(small, capsys, monkeypatch):
    monkeypatch.setattr(untrained, "resident_bytes", lambda: GB // 2)  # not what other tests left here
    assert main(["plan", *small, "--memory", "2GB", "--no-time", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["device"] == "cpu"
    assert result["room"] == 2048
    assert result["proposal"] == ["trainer.batch_size=4", "trainer.accumulate=1"]
    assert result["epoch"] is None
    assert main(["plan", *small, "--memory", "1MB", "--no-time"]) == 2
    assert "one window at a time needs" in capsys.readouterr().err


LARGER = [
    *("encoder.layers=4", "encoder.width=256", "encoder.heads=4", "trainer.eval_batch_size=4"),
    *("trainer.epochs=1", "trainer.max_steps=6", "trainer.batch_size=16"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", [["model=bert"], ["model=proposed", "glove=none"]])
def test_against_what_a_gpu_allocated(run_training, configure, model, precision):
    """Predicted on the CPU, measured by ``torch.cuda.max_memory_allocated``: within a fifth."""
    overrides = [*model, *LARGER, "trainer.accelerator=gpu", f"trainer.precision={precision}"]
    predicted = planned(configure(*overrides))
    assert predicted.total == pytest.approx(run_training(*overrides).record.peak_memory_mb, rel=0.2)

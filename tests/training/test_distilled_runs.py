"""Runs with a teacher: exact however they are cut, recorded, and free of the teacher afterwards."""

from __future__ import annotations

import shutil

import pytest
import torch
from stops import stopped_after

from qa_arch.cli.compose import compose
from qa_arch.errors import RunError
from qa_arch.records import TeacherFacts, read_record
from qa_arch.results.systems import group_by_system
from qa_arch.sweep.points import make_points, sources
from qa_arch.training.module import TrainingModule

DROPOUT = ("encoder.hidden_dropout=0.1", "model.dropout=0.1")
"""So that the random states matter."""


def test_a_teacher_of_no_weight_changes_no_bit(run_training, taught, same):
    """The same random states, losses and weights as of a run without, whose own tokenizer is alike."""
    weights = ("labels=1", "soft_targets=0", "layers=none")
    nothing = [f"distillation.{setting}" for setting in weights]
    plain = run_training("trainer.epochs=2", *DROPOUT, "encoder.layers=2", name="plain")
    idle = run_training("trainer.epochs=2", *DROPOUT, *taught("soft_targets"), *nothing, name="idle")
    assert idle.weights == plain.weights
    same(idle.state["state_dict"], plain.state["state_dict"])
    assert [e.train_loss for e in idle.record.epochs] == [e.train_loss for e in plain.record.epochs]
    assert idle.record.scores == plain.record.scores


def test_resumed_is_the_same_as_never_stopped(run_training, taught, same):
    settings = (
        *("trainer.epochs=2", "trainer.accumulate=2", "trainer.checkpoint_minutes=1e-9"),
        *(*DROPOUT, *taught("soft_targets"), "trainer.precision=bf16"),
    )
    straight = run_training(*settings, name="straight")
    with stopped_after(4):  # in the second epoch
        run_training(*settings, name="stopped")
    resumed = run_training(*settings, name="stopped", resume=True)
    assert resumed.weights == straight.weights
    assert resumed.results == straight.results
    same(resumed.state, straight.state)


@pytest.fixture
def gradients(monkeypatch):
    """The gradients of every step from now on, in place of steps."""
    seen: list[torch.Tensor] = []

    def keep(self, optimizer):
        seen.append(torch.cat([p.grad.flatten().clone() for p in self.parameters()]))

    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", keep)
    return seen


@pytest.mark.slow
def test_two_devices_and_accumulated_batches_take_the_steps_of_one(run_training, taught, gradients):
    plain = ("optim.clip=0", "optim.lr=1e-9", *taught("soft_targets"))
    alone = run_training(*plain, "trainer.batch_size=8", name="alone").record
    cut = ("trainer.batch_size=2", "trainer.accumulate=2", "trainer.devices=2")
    both = run_training(*plain, *cut, name="both").record
    assert len(gradients) == 6
    for first, second in zip(gradients[:3], gradients[3:], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=2e-6)
    for name in ("train_loss", "train_labels", "train_soft_targets"):
        values = [run.epochs[0].value(name) for run in (alone, both)]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
        assert values[0] > 0


@pytest.mark.gpu
def test_a_teacher_follows_its_student_onto_a_gpu(run_training, taught):
    gpu = ("trainer.accelerator=gpu", "trainer.precision=bf16", "encoder.width=8", "distillation.layers=none")
    there = run_training(*taught("soft_targets"), *gpu, name="gpu").record.epochs[0]
    here = run_training(*taught("soft_targets"), *gpu, "trainer.accelerator=cpu", name="cpu").record.epochs[0]
    assert there.value("train_soft_targets") == pytest.approx(here.value("train_soft_targets"), rel=0.05)


def test_a_point_of_a_sweep_is_known_by_its_teachers_content(small, taught, teacher, tmp_path):
    def point(folder):
        settings = [*small, *taught("soft_targets"), f"distillation.teacher={folder}"]
        return make_points([(("seed=1",), compose(settings))])[0]

    copy = tmp_path / "copy"
    shutil.copytree(teacher, copy)
    assert sources(point(copy).config) == sources(point(teacher).config)
    (copy / "model" / "model.safetensors").write_bytes(b"other weights")
    assert sources(point(copy).config)["teacher"] != sources(point(teacher).config)["teacher"]
    assert point(copy).key != point(teacher).key
    with pytest.raises(RunError, match=r"^seed=1: distillation\.teacher: .*no such run folder"):
        point(tmp_path / "nowhere")


def test_the_record_names_the_teacher_wherever_it_lay_and_another_is_another_system(
    run_training, taught, teacher, tmp_path
):
    copy = shutil.copytree(teacher, tmp_path / "elsewhere" / "teacher")
    other = run_training("encoder.layers=4", "seed=4", "trainer.max_steps=1", name="other").folder
    runs = {
        name: run_training("trainer.max_steps=1", *settings, name=name)
        for name, settings in {
            "none": ("encoder.layers=2",),
            "first": taught("soft_targets"),
            "copy": (*taught("soft_targets"), f"distillation.teacher={copy}"),
            "second": (*taught("soft_targets"), f"distillation.teacher={other}"),
            "seed": (*taught("soft_targets"), "seed=5"),
        }.items()
    }
    record, copied = read_record(runs["first"].folder), runs["copy"].record
    assert isinstance(record.teacher, TeacherFacts)
    assert (record.teacher.name, record.teacher.config_hash) == ("teacher", read_record(teacher).config_hash)
    assert (record.teacher.precision, record.teacher.titles) == ("fp32", ())
    assert (copied.teacher, copied.config_hash) == (record.teacher, record.config_hash)
    assert record.setting("distillation", "temperature") == 2.0
    terms = {name: record.epochs[0].value(f"train_{name}") for name in ("loss", "labels", "soft_targets")}
    assert terms["loss"] == pytest.approx((terms["labels"] + terms["soft_targets"]) / 2)

    systems = group_by_system([(run.folder, run.record) for name, run in runs.items() if name != "copy"])
    assert [len(system.runs) for system in systems] == [1, 2, 1]
    hashes = [read_record(folder).config_hash[:8] for folder in (teacher, other)]
    assert f"teacher=teacher ({hashes[0]})" in systems[1].label
    assert f"teacher=other ({hashes[1]})" in systems[2].label

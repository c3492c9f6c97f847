"""Runs with a teacher: resumed, spread over devices, identified in sweeps and recorded."""

import shutil

import pytest
import torch
from stops import stopped_after

from qa_arch.config.compose import compose
from qa_arch.errors import RunError
from qa_arch.records import TeacherFacts, read_record
from qa_arch.results.systems import group_by_system
from qa_arch.sweep import plan, point_key, sources
from qa_arch.training.module import TrainingModule

DROPOUT = ("encoder.hidden_dropout=0.1", "model.dropout=0.1")
"""Makes the random states matter."""


@pytest.mark.slow
def test_teacher_with_zero_weight_changes_nothing(run_training, student, same):
    """Random states, losses and weights equal those of a run without a teacher, with the same tokenizer."""
    weights = ("labels=1", "soft_targets=0", "layers=none")
    zero_weight = [f"distillation.{setting}" for setting in weights]
    plain = run_training("trainer.epochs=2", *DROPOUT, "encoder.layers=2", name="plain")
    idle = run_training("trainer.epochs=2", *DROPOUT, *student("soft_targets"), *zero_weight, name="idle")
    assert idle.weights == plain.weights
    same(idle.state["state_dict"], plain.state["state_dict"])
    assert [e.train_loss for e in idle.record.epochs] == [e.train_loss for e in plain.record.epochs]
    assert idle.record.scores == plain.record.scores


@pytest.mark.slow
def test_resumed_student_equals_uninterrupted_one(run_training, student, same):
    settings = (
        *("trainer.epochs=2", "trainer.accumulate=2", "trainer.checkpoint_minutes=1e-9"),
        *(*DROPOUT, *student("soft_targets"), "trainer.precision=bf16"),
    )
    uninterrupted = run_training(*settings, name="uninterrupted")
    with stopped_after(4):  # in the second epoch
        run_training(*settings, name="stopped")
    resumed = run_training(*settings, name="stopped", resume=True)
    assert resumed.weights == uninterrupted.weights
    assert resumed.results == uninterrupted.results
    same(resumed.state, uninterrupted.state)


@pytest.fixture
def gradients(monkeypatch):
    """Gradients of every optimizer step, unclipped."""
    gradients: list[torch.Tensor] = []

    def record(self, optimizer):
        gradients.append(torch.cat([p.grad.flatten().clone() for p in self.parameters()]))

    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", record)
    return gradients


@pytest.mark.slow
def test_two_devices_with_accumulation_match_one_device(run_training, student, gradients):
    settings = ("optim.clip=0", "optim.lr=1e-9", *student("soft_targets"))
    single = run_training(*settings, "trainer.batch_size=8", name="single").record
    split = ("trainer.batch_size=2", "trainer.accumulate=2", "trainer.devices=2")
    double = run_training(*settings, *split, name="double").record
    assert len(gradients) == 6
    for first, second in zip(gradients[:3], gradients[3:], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=2e-6)
    for name in ("train_loss", "train_labels", "train_soft_targets"):
        values = [record.epochs[0].value(name) for record in (single, double)]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
        assert values[0] > 0


@pytest.mark.gpu
def test_teacher_moves_to_the_gpu_with_its_student(run_training, student):
    gpu = ("trainer.accelerator=gpu", "trainer.precision=bf16", "encoder.width=8", "distillation.layers=none")
    on_gpu = run_training(*student("soft_targets"), *gpu, name="gpu").record
    on_cpu = run_training(*student("soft_targets"), *gpu, "trainer.accelerator=cpu", name="cpu").record
    losses = [record.epochs[0].value("train_soft_targets") for record in (on_gpu, on_cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_sweep_point_is_identified_by_teacher_content(tiny_run, student, teacher, tmp_path):
    def config(folder):
        settings = tiny_run(*student("soft_targets"), f"distillation.teacher={folder}")
        (job,) = plan([(("seed=1",), compose(settings))]).values()
        return job.config

    copy = tmp_path / "copy"
    shutil.copytree(teacher, copy)
    assert sources(config(copy)) == sources(config(teacher))
    (copy / "model" / "model.safetensors").write_bytes(b"other weights")
    assert sources(config(copy))["teacher"] != sources(config(teacher))["teacher"]
    assert point_key(config(copy)) != point_key(config(teacher))
    with pytest.raises(RunError, match=r"^seed=1: distillation\.teacher: .*no such run folder"):
        config(tmp_path / "nowhere")


@pytest.mark.slow
def test_record_identifies_the_teacher_by_content_and_systems_differ_by_teacher(
    run_training, student, teacher, tmp_path
):
    copy = shutil.copytree(teacher, tmp_path / "elsewhere" / "teacher")
    other = run_training("encoder.layers=4", "seed=4", "trainer.max_steps=1", name="other").folder
    runs = {
        name: run_training("trainer.max_steps=1", *settings, name=name)
        for name, settings in {
            "none": ("encoder.layers=2",),
            "first": student("soft_targets"),
            "copy": (*student("soft_targets"), f"distillation.teacher={copy}"),
            "second": (*student("soft_targets"), f"distillation.teacher={other}"),
            "seed": (*student("soft_targets"), "seed=5"),
        }.items()
    }
    record, copied = read_record(runs["first"].folder), runs["copy"].record
    assert isinstance(record.teacher, TeacherFacts)
    assert (record.teacher.name, record.teacher.run_hash) == ("teacher", read_record(teacher).run_hash)
    assert (record.teacher.precision, record.teacher.titles) == ("fp32", ())
    assert (copied.teacher, copied.run_hash) == (record.teacher, record.run_hash)
    assert record.setting("distillation", "temperature") == 2.0
    terms = {name: record.epochs[0].value(f"train_{name}") for name in ("loss", "labels", "soft_targets")}
    assert terms["loss"] == pytest.approx((terms["labels"] + terms["soft_targets"]) / 2)

    systems = group_by_system([(run.folder, run.record) for name, run in runs.items() if name != "copy"])
    assert [len(system.runs) for system in systems] == [1, 2, 1]
    hashes = [read_record(folder).run_hash[:8] for folder in (teacher, other)]
    assert f"teacher=teacher ({hashes[0]})" in systems[1].label
    assert f"teacher=other ({hashes[1]})" in systems[2].label

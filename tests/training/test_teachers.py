"""Distillation: what teachers compute for their students, runs with a teacher, and teachers refused."""

import json
import shutil

import pytest
import torch
from broken_records import change_record
from checkpoints import make_checkpoint
from safetensors.torch import load_file, save_file
from stops import stopped_after

from qa_arch.config.compose import compose
from qa_arch.config.target import TRUSTED
from qa_arch.contract import write_vectors
from qa_arch.data.question_sets import passage_title
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.export.huggingface import export_hf
from qa_arch.features.batches import Collator
from qa_arch.files import write_json
from qa_arch.models.checkpoint_files import SETTINGS_FILE, require_teacher
from qa_arch.nn.encoder import encoder_of
from qa_arch.nn.reading import run_model
from qa_arch.qa import start
from qa_arch.qa.loading import average, load_predictor
from qa_arch.records import read_record
from qa_arch.results.systems import group_by_system
from qa_arch.sweep import plan, point_key, sources
from qa_arch.tensors import Batch
from qa_arch.training.fit import span_fitting
from qa_arch.training.module import TrainingModule

ROWS = [0, 5, 3, 11]
SHORT = ("features.max_length=40", "features.max_question=24", "features.stride=4")


@pytest.fixture
def assembled(configure, student):
    """``assembled(choice, *overrides)``: the parts of a student of ``teacher``."""

    def assemble(choice: str, *overrides: str):
        config = configure(*student(choice), *overrides)
        torch.manual_seed(config.seed)
        return start.assemble(config)

    return assemble


def batch_of(parts, rows=ROWS) -> Batch:
    table = parts.tables["train"]
    vectors = None if parts.vectors is None else parts.vectors.rows(table.vocabulary)
    return Collator(table, vectors)(rows)


def assert_same_logits(actual, expected, **tolerance) -> None:
    for name in ("start", "end", "null_start", "null_end"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), **tolerance)


def teacher_in(folder) -> start.Teacher:
    return start.Teacher(load_predictor(folder, device="cpu"), str(folder))


def targets_of(parts, folder) -> start.SoftTargets:
    """What the teacher in ``folder`` computes for the training windows of ``parts``."""
    return teacher_in(folder).soft_targets(parts.tables["train"], None, 8, gpu=False)


def test_precomputed_targets_match_a_live_teacher(assembled, teacher):
    """For any rows in any order, padded to the width of the batch."""
    parts = assembled("soft_targets")
    live = load_predictor(teacher, device="cpu").model
    for rows in (ROWS, [20, 1], [7]):
        batch = batch_of(parts, rows)
        with torch.no_grad():
            assert_same_logits(parts.distiller.targets(batch), live(batch), rtol=1e-5, atol=1e-5)


@pytest.fixture
def readings(monkeypatch):
    """One element for each time that a teacher reads all windows."""
    run_model, readings = start.run_model, []
    monkeypatch.setattr(start, "run_model", lambda *a, **k: (readings.append(1), run_model(*a, **k))[1])
    return readings


def test_targets_are_cached_by_windows_and_teacher(assembled, readings, tmp_path, teacher):
    cache = f"features.cache_dir={tmp_path / 'cache'}"
    first = assembled("soft_targets", cache)
    again = assembled("soft_targets", cache, "optim.lr=1", "distillation.temperature=1", "seed=5")
    assert len(readings) == 1
    assert_same_logits(
        again.distiller.targets(batch_of(again)), first.distiller.targets(batch_of(first)), rtol=0, atol=0
    )
    (file,) = (tmp_path / "cache").glob("*.logits")
    assembled("soft_targets", cache, *SHORT)
    assert len(readings) == 2
    other = tmp_path / "other"
    shutil.copytree(teacher, other)
    assembled("soft_targets", cache, f"distillation.teacher={other}")
    assert len(readings) == 2  # the copy has the same content
    weights = other / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assembled("soft_targets", cache, f"distillation.teacher={other}")
    assert len(readings) == 3
    whole = file.read_bytes()
    for number, damaged in enumerate((whole[:-50], whole[:-1] + bytes([whole[-1] ^ 1])), 4):
        file.write_bytes(damaged)
        rebuilt = assembled("soft_targets", cache)
        assert len(readings) == number
        logits = (parts.distiller.targets(batch_of(parts)) for parts in (rebuilt, first))
        assert_same_logits(*logits)


def test_teacher_keeps_its_own_precision(assembled, run_training):
    folder = run_training("encoder.layers=4", "trainer.max_steps=1", "trainer.precision=bf16").folder
    parts = assembled("soft_targets", f"distillation.teacher={folder}")
    assert parts.distiller.facts.precision == "bf16"
    table = parts.tables["train"]
    model, collate = (
        load_predictor(folder, device="cpu", precision="bf16").model,
        Collator(table, labels=False),
    )
    expected = run_model(model, collate, start.SoftTargets(table), batch_size=8, precision="bf16")
    batch = batch_of(parts)
    assert_same_logits(targets_of(parts, folder)(batch), expected(batch), rtol=0, atol=0)


def test_teacher_stays_in_eval_mode_without_gradients(configure, student, teacher):
    """Dropout would make its targets noisy, and gradients would double its memory."""
    config = configure(*student("soft_targets"))
    parts = start.assemble(config)
    model = teacher_in(teacher).model
    assert not any(m.training for m in model.modules())
    assert not any(p.requires_grad for p in model.parameters())
    module = TrainingModule(config, span_fitting(config, parts), total_steps=1).train()
    batch = batch_of(parts)
    losses, terms = module.losses_and_terms(batch)
    (losses * batch.weight).sum().backward()
    assert all(p.grad is not None for p in parts.model.parameters())
    assert [id(p) for p in module.parameters()] == [id(p) for p in parts.model.parameters()]
    assert len(terms) == 2


def test_student_identical_to_its_teacher_has_zero_loss(assembled, teacher):
    """With all of the teacher's layers and its head, the loss and its gradient are 0."""
    parts = assembled("soft_targets", "encoder.layers=4", "distillation.labels=0")
    parts.model.load_state_dict(load_predictor(teacher, device="cpu").model.state_dict())
    parts.model.eval()
    values = parts.distiller(parts.model, batch_of(parts), lambda logits: logits.null)
    values["loss"].sum().backward()
    assert set(values) == {"soft_targets", "loss"}
    for value in values.values():
        torch.testing.assert_close(value, torch.zeros(len(ROWS)), rtol=0, atol=1e-6)
    assert max(float(p.grad.abs().max()) for p in parts.model.parameters() if p.grad is not None) < 1e-4


def test_student_is_initialised_from_layers_of_its_teacher(assembled, teacher):
    parts = assembled("soft_targets", "distillation.layers=every_other")
    source = encoder_of(load_predictor(teacher, device="cpu").model)
    embeddings, expected = (e.backbone.get_input_embeddings().weight for e in (parts.encoder, source))
    assert torch.equal(embeddings, expected)
    for layer, copied in zip(parts.encoder.layers(), [source.layers()[n] for n in (0, 2)], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), copied.parameters(), strict=True))


def test_teacher_with_its_own_word_vectors(assembled, run_training, configure, tmp_path):
    examples = open_passages(configure().data.train).examples
    write_vectors(tmp_path / "vectors.txt", {text for e in examples for text in (e.context, e.question)})
    glove = ("glove=file", f"glove.path={tmp_path}/vectors.txt")
    folder = run_training("model=proposed", "model.hidden=6", *glove, "trainer.max_steps=1").folder
    parts = assembled("soft_targets", f"distillation.teacher={folder}", "distillation.layers=none")
    assert parts.vectors is None
    predictor = load_predictor(folder, device="cpu")
    table = predictor.table(parts.sets["train"], cache=False)
    with torch.no_grad():
        expected = predictor.model(Collator(table, predictor.vectors.rows(table.vocabulary))(ROWS))
    assert_same_logits(parts.distiller.targets(batch_of(parts)), expected, rtol=1e-5, atol=1e-5)


def test_several_teachers_average_their_probabilities(assembled, run_training, teacher):
    other = run_training("encoder.layers=4", "trainer.max_steps=1", name="other").folder
    parts = assembled("soft_targets", f"distillation.teacher=[{teacher},{other}]")
    batch = batch_of(parts)
    expected = average([targets_of(parts, folder)(batch) for folder in (teacher, other)])
    assert_same_logits(parts.distiller.targets(batch), expected, rtol=1e-5, atol=1e-5)
    facts = assembled("soft_targets").distiller.facts, teacher_in(other).facts, parts.distiller.facts
    assert len({item.fingerprint for item in facts}) == 3
    assert facts[2].name == "teacher + other"


def test_checkpoint_as_teacher(assembled, configure, tmp_path, caplog):
    texts = [t for e in open_passages(configure().data.train).examples for t in (e.context, e.question)]
    sizes = {"num_hidden_layers": 4, "intermediate_size": 64, "max_position_embeddings": 96}
    folder = make_checkpoint("bert", tmp_path / "checkpoint", texts, **sizes)
    parts = assembled("soft_targets", f"distillation.teacher={folder}")
    assert parts.distiller.facts.name == "checkpoint"
    assert parts.distiller.facts.fingerprint.startswith("sha256:")
    assert parts.distiller(parts.model, batch_of(parts), lambda logits: logits.null)["soft_targets"].sum() > 0
    assert "training articles are unknown and may include those of calibration and dev" in caplog.text


def test_each_of_several_checkpoints_is_identified_and_checked(assembled, configure, run_training, tmp_path):
    """Of the second, too, files and training articles count."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    export_hf(load_predictor(run_training("encoder.layers=4", "trainer.max_steps=1").folder), first)
    for folder in (second, third):
        shutil.copytree(first, folder)
        weights = load_file(folder / "model.safetensors")
        weights["qa_outputs.bias"] += len(folder.name)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    def assemble(*teachers):
        names = ",".join(map(str, teachers))
        return assembled("soft_targets", f"distillation.teacher=[{names}]", "distillation.layers=none")

    facts = [assemble(first, folder).distiller.facts for folder in (second, third)]
    assert len({item.fingerprint for item in facts}) == len({item.run_hash for item in facts}) == 2
    settings = json.loads((third / SETTINGS_FILE).read_text())
    settings["data"]["train"]["titles"] += map(passage_title, open_passages(configure().data.dev).titles)
    write_json(third / SETTINGS_FILE, settings)
    with pytest.raises(DataError, match="first \\+ third and dev share"):
        assemble(first, third)


WORDS = ("encoder.family=words", "encoder.vocabulary=300")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["encoder.vocabulary=200"],
            r"distillation\.teacher: the teacher teacher and the student .* vocabular",
        ),
        (["encoder.width=8"], r"distillation\.layers: the teacher's hidden_size is 16, the student's 8"),
        (["encoder.layers=5"], "the teacher has 4 layers and the student 5"),
        (["encoder.family=distilbert", "encoder.name=null"], "model_type is bert, the student's distilbert"),
        ([*WORDS, "model=match_lstm/boundary", "model.hidden=6"], "do not produce the same tokens"),
    ],
)
def test_incompatible_student_is_refused_before_training(assembled, overrides, message):
    with pytest.raises(ConfigError, match=message):
        assembled("soft_targets", *overrides)


def test_teacher_trained_on_dev_articles_is_refused(assembled, run_training, few_questions, tmp_path):
    dev = few_questions[2].partition("=")[2]
    write_json(tmp_path / "other.json", write(generate(1, 4, 1, "dev")))
    data = (f"data.train={dev}", f"data.dev={tmp_path}/other.json")
    folder = run_training(*data, "trainer.max_steps=1").folder
    with pytest.raises(DataError, match="the training data of teacher run and dev share 1 article"):
        assembled("soft_targets", f"distillation.teacher={folder}", "distillation.layers=none")


def test_articles_of_the_teacher_count_as_training_data(run_training, tmp_path):
    """Neither a student nor a student of the student counts them as unseen."""
    write_json(tmp_path / "more.json", write(generate(1, 4, 1, "train")))
    short = ("encoder.layers=2", "trainer.max_steps=1")
    more = run_training(*short, f"data.train={tmp_path}/more.json", name="more")
    # The student uses the teacher's tokenizer, which was trained on other texts.
    settings = (*short, "encoder.vocabulary=null", "distillation=layers")
    first = run_training(*settings, f"distillation.teacher={more.folder}", name="first")
    (title,) = more.record.data["train"].titles
    assert first.record.teacher.titles == (title,)
    assert title in first.record.trained_titles
    second = run_training(*settings, f"distillation.teacher={first.folder}", name="second")
    assert second.record.teacher.titles == (title,)


def test_invalid_teacher_folder_is_named_before_anything_is_loaded(configure, student, teacher, tmp_path):
    def refused(message, folder, **fields) -> None:
        if fields:
            change_record(shutil.copytree(teacher, folder), **fields)
        with pytest.raises((RunError, ConfigError), match=rf"distillation\.teacher: .*{message}"):
            require_teacher(configure(*student("soft_targets"), f"distillation.teacher={folder}"), TRUSTED)

    require_teacher(configure(*student("soft_targets")), TRUSTED)
    with pytest.raises(ConfigError, match=r"^distillation\.teacher: layers are those of first alone"):
        require_teacher(configure(*student("layers"), "distillation.teacher=[first,second]"), TRUSTED)
    refused("nowhere.*no such run folder", tmp_path / "nowhere")
    refused("status is 'failed'", tmp_path / "failed", status="failed")
    refused("near.* add --trust near", tmp_path / "own", config__model___target_="near.model.Near")
    other = {"config__model__task": "sequence"}
    refused("is of task sequence, the student of task span", tmp_path / "other", **other)
    shutil.rmtree(shutil.copytree(teacher, tmp_path / "without") / "model")
    refused("has no folder model", tmp_path / "without")


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
def test_two_devices_with_accumulation_match_one_device(run_training, student):
    settings = ("optim.clip=0", "optim.lr=1e-9", *student("soft_targets"))
    single = run_training(*settings, "trainer.batch_size=8", name="single").record
    split = ("trainer.batch_size=2", "trainer.accumulate=2", "trainer.devices=2")
    double = run_training(*settings, *split, name="double").record
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
    changes = [*(f"distillation.teacher={folder}" for folder in (teacher, copy, other)), "seed=5"]
    first, copied, second, seed = (
        run_training("trainer.max_steps=1", *student("soft_targets"), change, name=f"run{number}")
        for number, change in enumerate(changes)
    )
    facts = read_record(first.folder).teacher
    assert (facts.name, facts.run_hash) == ("teacher", read_record(teacher).run_hash)
    assert (facts.precision, facts.titles) == ("fp32", ())
    assert (copied.record.teacher, copied.record.run_hash) == (facts, first.record.run_hash)
    epoch = first.record.epochs[0]
    terms = epoch.value("train_labels") + epoch.value("train_soft_targets")
    assert epoch.value("train_loss") == pytest.approx(terms / 2)
    systems = group_by_system([(run.folder, run.record) for run in (first, second, seed)])
    assert [len(system.runs) for system in systems] == [2, 1]
    for system, folder in zip(systems, (teacher, other), strict=True):
        assert f"teacher={folder.name} ({read_record(folder).run_hash[:8]})" in system.label


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

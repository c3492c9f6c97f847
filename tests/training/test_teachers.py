"""What a teacher reads for its student, and what cannot teach."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint

from qa_arch.config.files import write_json
from qa_arch.contract import write_vectors
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.features.batches import Collator
from qa_arch.models.teacher_files import require_teacher
from qa_arch.nn.encoder import encoder_of
from qa_arch.spans.loading import average, load_predictor
from qa_arch.spans.task import TASK
from qa_arch.tasks import teacher as teachers
from qa_arch.training.module import TrainingModule
from qa_arch.types.tensors import Batch

ROWS = [0, 5, 3, 11]
SHORT = ("features.max_length=40", "features.max_question=24", "features.stride=4")


@pytest.fixture
def assembled(configure, taught):
    """``assembled(choice, ...)``: the parts of a student of ``teacher``."""

    def assemble(choice: str, *overrides: str):
        config = configure(*taught(choice), *overrides)
        torch.manual_seed(config.seed)
        return TASK.assemble(config)

    return assemble


def batch_of(parts, rows=ROWS) -> Batch:
    table = parts.tables["train"]
    vectors = None if parts.vectors is None else parts.vectors.rows(table.vocabulary)
    return Collator(table, vectors)(rows)


def same_logits(actual, expected, **tolerance) -> None:
    for name in ("start", "end", "null_start", "null_end"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), **tolerance)


def teacher_for(parts, folder) -> teachers.Teacher:
    """The teacher in ``folder``, ready for the training windows of ``parts``."""
    teacher = teachers.Teacher(load_predictor(folder, device="cpu"), str(folder))
    teacher.prepare(parts.tables["train"])
    return teacher


def test_targets_read_once_are_those_of_reading_along(assembled, teacher):
    """For any rows in any order, padded to the batch's own width."""
    parts = assembled("soft_targets")
    live = teacher_for(parts, teacher)
    for rows in (ROWS, [20, 1], [7]):
        batch = batch_of(parts, rows)
        same_logits(parts.distiller.targets(batch), live.read(batch), rtol=1e-5, atol=1e-5)


@pytest.fixture
def readings(monkeypatch):
    """The number of times that a teacher read all windows."""
    read, count = teachers.read_table, []
    monkeypatch.setattr(teachers, "read_table", lambda *a, **k: (count.append(1), read(*a, **k))[1])
    return count


def test_targets_are_cached_for_these_windows_and_this_teacher(
    assembled, readings, tmp_path, teacher, taught
):
    cache = f"features.cache_dir={tmp_path / 'cache'}"
    first = assembled("soft_targets", cache)
    again = assembled("soft_targets", cache, "optim.lr=1", "distillation.temperature=1", "seed=5")
    assert len(readings) == 1
    same_logits(
        again.distiller.targets(batch_of(again)), first.distiller.targets(batch_of(first)), rtol=0, atol=0
    )
    (file,) = (tmp_path / "cache").glob("*.safetensors")
    assembled("soft_targets", cache, *SHORT)
    assert len(readings) == 2
    other = tmp_path / "other"
    shutil.copytree(teacher, other)
    assembled("soft_targets", cache, f"distillation.teacher={other}")
    assert len(readings) == 2  # a copy, under another name
    weights = other / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assembled("soft_targets", cache, f"distillation.teacher={other}")
    assert len(readings) == 3
    file.write_bytes(file.read_bytes()[:-50])
    mended = assembled("soft_targets", cache)
    assert len(readings) == 4
    same_logits(mended.distiller.targets(batch_of(mended)), first.distiller.targets(batch_of(first)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_teacher_reads_in_its_own_precision_whatever_the_students_is(
    assembled, run_training, configure, taught, precision
):
    folder = run_training("encoder.layers=4", "trainer.max_steps=1", f"trainer.precision={precision}").folder
    parts = assembled("soft_targets", f"distillation.teacher={folder}")
    batch, own = batch_of(parts), teacher_for(parts, folder)
    assert own.facts.precision == parts.distiller.facts.precision == precision
    plain = own.read(batch)
    with torch.autocast("cpu", torch.bfloat16):
        same_logits(own.read(batch), plain, rtol=0, atol=0)
    scored = load_predictor(folder, device="cpu", precision=precision)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        same_logits(plain, scored.model(batch), rtol=0, atol=0)


def test_a_teacher_is_never_in_training_and_has_no_gradients(assembled, configure, taught, teacher):
    """Dropout would make its answers noise, and half of its memory would be gradients."""
    config = configure(*taught("soft_targets"))
    parts = TASK.assemble(config)
    model = teacher_for(parts, teacher).model
    assert not any(m.training for m in model.modules())
    assert not any(p.requires_grad for p in model.parameters())
    module = TrainingModule(config, parts, total_steps=1).train()
    losses, weight, terms = module.losses_and_weight(batch_of(parts))
    (losses * weight).sum().backward()
    assert all(p.grad is not None for p in parts.model.parameters())
    assert [id(p) for p in module.parameters()] == [id(p) for p in parts.model.parameters()]
    assert len(terms) == 2


def test_a_student_that_is_its_teacher_has_nothing_to_learn(assembled, teacher):
    """All of the teacher's layers and its head: the loss is 0, and so is its gradient."""
    parts = assembled("soft_targets", "encoder.layers=4", "distillation.labels=0")
    parts.model.load_state_dict(load_predictor(teacher, device="cpu").model.state_dict())
    parts.model.eval()
    values = parts.distiller(parts.model, batch_of(parts), lambda logits: logits.null)
    values["loss"].sum().backward()
    assert set(values) == {"soft_targets", "loss"}
    for value in values.values():
        torch.testing.assert_close(value, torch.zeros(len(ROWS)), rtol=0, atol=1e-6)
    assert max(float(p.grad.abs().max()) for p in parts.model.parameters() if p.grad is not None) < 1e-4


def test_a_student_begins_with_layers_of_its_teacher(assembled, teacher):
    parts = assembled("soft_targets", "distillation.layers=every_other")
    theirs = encoder_of(load_predictor(teacher, device="cpu").model)
    assert torch.equal(
        parts.encoder.backbone.get_input_embeddings().weight, theirs.backbone.get_input_embeddings().weight
    )
    for own, source in zip(parts.encoder.layers(), [theirs.layers()[n] for n in (0, 2)], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own.parameters(), source.parameters(), strict=True))


def test_a_teacher_with_word_vectors_of_its_own(assembled, run_training, configure, tmp_path):
    examples = TASK.open(configure().data.train).examples
    write_vectors(tmp_path / "vectors.txt", {text for e in examples for text in (e.context, e.question)})
    folder = run_training(
        "model=proposed",
        "model.hidden=6",
        "glove=file",
        f"glove.path={tmp_path}/vectors.txt",
        "trainer.max_steps=1",
    ).folder
    parts = assembled("soft_targets", f"distillation.teacher={folder}", "distillation.layers=none")
    assert parts.vectors is None
    own = load_predictor(folder, device="cpu")
    table = own.table(parts.sets["train"], cache=False)
    with torch.no_grad():
        expected = own.model(Collator(table, own.vectors.rows(table.vocabulary))(ROWS))
    same_logits(parts.distiller.targets(batch_of(parts)), expected, rtol=1e-5, atol=1e-5)


def test_several_teachers_teach_their_mean_probabilities(assembled, run_training, taught, teacher):
    other = run_training("encoder.layers=4", "trainer.max_steps=1", name="other").folder
    runs = f"distillation.teacher=[{teacher},{other}]"
    done = run_training(*taught("soft_targets"), runs, "trainer.max_steps=1")
    assert done.record.teacher.name == "teacher + other"
    parts = assembled("soft_targets", runs)
    batch = batch_of(parts)
    expected = average([teacher_for(parts, folder).read(batch) for folder in (teacher, other)])
    same_logits(parts.distiller.targets(batch), expected, rtol=1e-5, atol=1e-5)
    alone = assembled("soft_targets").distiller.facts
    assert (
        len({alone.fingerprint, teacher_for(parts, other).facts.fingerprint, done.record.teacher.fingerprint})
        == 3
    )


@pytest.fixture
def checkpoint(configure, tmp_path) -> Path:
    """A question-answering checkpoint of another library's making."""
    texts = [t for e in TASK.open(configure().data.train).examples for t in (e.context, e.question)]
    sizes = {"num_hidden_layers": 4, "intermediate_size": 64, "max_position_embeddings": 96}
    return make_checkpoint("bert", tmp_path / "checkpoint", texts, **sizes)


def test_a_checkpoint_teaches(run_training, taught, checkpoint, caplog):
    done = run_training(*taught("soft_targets"), f"distillation.teacher={checkpoint}", "trainer.max_steps=2")
    assert done.record.teacher.name == "checkpoint"
    assert done.record.teacher.fingerprint.startswith("sha256:")
    assert done.record.epochs[0].value("train_soft_targets") > 0
    assert "is not known to have been trained without the articles of calibration and dev" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["encoder.vocabulary=200"],
            r"distillation\.teacher: the teacher teacher and the student .* vocabular",
        ),
        (["encoder.width=8"], r"distillation\.layers: the teacher's hidden_size is 16, the student's 8"),
        (["encoder.layers=5"], "the teacher has 4 layers and the student 5"),
        (
            ["encoder.family=distilbert", "encoder.name=null"],
            "the teacher's model_type is bert, the student's distilbert",
        ),
        (
            ["model=proposed", "glove=none", "model.no_answer=verifier", "model.hidden=6"],
            "only the student .* verifier",
        ),
        (
            ["encoder.family=words", "encoder.vocabulary=300", "model=match_lstm/boundary", "model.hidden=6"],
            "do not produce the same tokens",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_training(assembled, overrides, message):
    with pytest.raises(ConfigError, match=message):
        assembled("soft_targets", *overrides)


def test_a_teacher_that_knows_the_articles_of_dev_is_refused(
    assembled, run_training, few_questions, tmp_path
):
    dev = json.loads(Path(few_questions[2].partition("=")[2]).read_text())
    write_json(tmp_path / "dev_trained.json", dev)
    write_json(tmp_path / "other.json", write(generate(1, 4, 1, "dev")))
    folder = run_training(
        f"data.train={tmp_path}/dev_trained.json", f"data.dev={tmp_path}/other.json", "trainer.max_steps=1"
    ).folder
    with pytest.raises(DataError, match="what the teacher run was trained on and dev share 1 article"):
        assembled("soft_targets", f"distillation.teacher={folder}", "distillation.layers=none")


def test_articles_that_only_the_teacher_was_trained_on_count_as_known(run_training, taught, tmp_path):
    """Neither the student nor a student of the student is scored on them as if they were new."""
    write_json(tmp_path / "more.json", write(generate(1, 4, 1, "train")))
    more = run_training(
        "encoder.layers=2", f"data.train={tmp_path}/more.json", "trainer.max_steps=1", name="more"
    )
    # Its tokenizer is of other texts, so the student takes it.
    settings = ("encoder.vocabulary=null", "encoder.layers=2", "distillation=layers", "trainer.max_steps=1")
    student = run_training(*settings, f"distillation.teacher={more.folder}", name="student")
    (title,) = more.record.data["train"].titles
    assert student.record.teacher.titles == (title,)
    assert title in student.record.trained_titles
    second = run_training(*settings, f"distillation.teacher={student.folder}", name="second")
    assert second.record.teacher.titles == (title,)


def test_folders_that_cannot_teach_are_named_before_anything_is_loaded(configure, taught, teacher, tmp_path):
    def check(folder, *overrides):
        require_teacher(configure(*taught("soft_targets"), f"distillation.teacher={folder}", *overrides))

    def copied(name, change):
        shutil.copytree(teacher, tmp_path / name)
        record = json.loads((tmp_path / name / "run.json").read_text())
        change(record)
        write_json(tmp_path / name / "run.json", record)
        return tmp_path / name

    check(teacher)
    with pytest.raises(RunError, match=r"distillation\.teacher: .*nowhere.*no such run folder"):
        check(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"distillation\.teacher: .*status is 'failed'"):
        check(copied("unfinished", lambda record: record.update(status="failed")))
    bare = copied("bare", lambda record: None)
    shutil.rmtree(bare / "model")
    with pytest.raises(RunError, match=r"distillation\.teacher: .*has no folder model"):
        check(bare)
    other = copied("other", lambda record: record["config"]["model"].update(task="sequence"))
    with pytest.raises(
        ConfigError, match=r"distillation\.teacher: .* is of task sequence, the student of task span"
    ):
        check(other)

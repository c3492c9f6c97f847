"""Pre-training runs: stopped and resumed, on two devices, their splits, and the runs that start from them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from qa_arch.cli.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.errors import ConfigError, DataError
from qa_arch.results.comparison import comparison
from qa_arch.results.pretrained_runs import pretrained_run
from qa_arch.results.record import read_record, write_record
from qa_arch.results.systems import group_by_system
from qa_arch.sweep.points import make_points, sources
from qa_arch.tasks import task_of
from qa_arch.training.checkpoint import KeepLast
from qa_arch.training.module import TrainingModule
from qa_arch.training.run import train

SMALL = [
    "debug=fast",
    "data=corpus",
    "encoder.initializer_range=0.15",
    "features.max_length=32",
    "features.max_question=16",
    "features.stride=8",
    "features.cache_dir=null",
    "trainer.max_steps=-1",
    "trainer.epochs=2",
    "trainer.progress=false",
    "optim.lr=3e-3",
]
NAMES = ("Tarn", "Mira", "Bell", "Ada", "Otto", "Quill", "Sten", "Yara")
STORIES = [
    f"{name} keeps {n} bees. On day {n} it rains in Lomm. {name} sells honey to {NAMES[n - 1]} every year."
    for n, name in enumerate(NAMES)
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "train.txt").write_text("\n\n".join(STORIES))
    (folder / "held.txt").write_text("\n\n".join(STORIES[::3]))
    return [f"data.train={folder}/train.txt", f"data.calibration={folder}/held.txt"]


@pytest.fixture(scope="session")
def setting_up(corpus):
    def build(*overrides: str, model: str = "pretrain/mlm") -> Config:
        return validate(compose([f"model={model}", *SMALL, *corpus, *overrides]))

    return build


@pytest.fixture
def run(setting_up, tmp_path):
    """Train in a folder of its own; the record and the bytes of the weights."""

    def start(name: str, *overrides: str, resume: bool = False, model: str = "pretrain/mlm"):
        folder = tmp_path / name
        record = train(setting_up(*overrides, model=model), folder=folder, resume=resume)
        return record, (folder / "model" / "model.safetensors").read_bytes()

    return start


@pytest.fixture(scope="session")
def pretrained(setting_up, tmp_path_factory) -> Path:
    """A finished run of masked language modelling."""
    folder = tmp_path_factory.mktemp("pretrained") / "mlm"
    train(setting_up(), folder=folder)
    return folder


class StoppedError(Exception):
    pass


CLOCKS = ("train_seconds", "validation_seconds", "windows_per_second")


def results_of(record) -> tuple:
    """What a record says, less the clock."""
    epochs = [replace(epoch, **dict.fromkeys(CLOCKS)) for epoch in record.epochs]
    return epochs, record.best_epoch, record.scores, record.config_hash


@pytest.mark.parametrize(("model", "stop"), [("mlm", 2), ("mlm", 6), ("mlm_nsp", 6), ("denoising", 6)])
def test_resumed_is_the_same_as_never_stopped(run, monkeypatch, model, stop):
    settings = ["trainer.checkpoint_minutes=1e-9", "trainer.batch_size=2", "encoder.hidden_dropout=0.1"]
    name = f"pretrain/{model}"
    straight, weights = run("straight", *settings, model=name)
    save, count = KeepLast._save, iter(range(1, 1000))

    def stopping(self, trainer):
        save(self, trainer)
        if next(count) == stop:
            raise StoppedError

    monkeypatch.setattr(KeepLast, "_save", stopping)
    with pytest.raises(StoppedError):
        run("stopped", *settings, model=name)
    resumed, resumed_weights = run("stopped", *settings, resume=True, model=name)
    assert results_of(resumed) == results_of(straight)
    assert resumed_weights == weights


@pytest.mark.slow
def test_two_devices_take_the_steps_of_one(run, monkeypatch):
    """The same masks in the same steps, so the same gradients; and the same perplexity, each block once."""
    gradients: list[torch.Tensor] = []

    def keep(self, optimizer):
        gradients.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]))

    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", keep)
    plain = ("encoder.hidden_dropout=0", "encoder.attention_dropout=0", "optim.clip=0", "optim.lr=1e-9")
    alone, _ = run("alone", *plain, "trainer.batch_size=4")
    both, _ = run("both", *plain, "trainer.batch_size=2", "trainer.devices=2")
    assert (alone.status, both.status, both.batch.devices) == ("ok", "ok", 2)
    assert gradients
    half = len(gradients) // 2
    for first, second in zip(gradients[:half], gradients[half:], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    for first, second in zip(alone.epochs, both.epochs, strict=True):
        for metric in ("perplexity", "token_accuracy", "bits_per_byte"):
            key = f"calibration_{metric}"
            assert first.value(key) == pytest.approx(second.value(key), rel=1e-6)


def test_the_epoch_of_lowest_loss_is_selected(run, monkeypatch):
    losses = iter([3.0, 1.0, 2.0])
    kind = type(task_of({"task": "masked_lm"}))
    monkeypatch.setattr(kind, "validation_scores", lambda *_: {"calibration_loss": next(losses)})
    record, _ = run("selected", "trainer.epochs=3")
    assert record.best_epoch == 1


def test_documents_are_held_out_and_train_is_cut(setting_up):
    whole = setting_up("data.calibration=null", "data.hold_out_share=0.4").data
    task = task_of({"task": "masked_lm"})
    splits = {name: list(split.corpus.documents()) for name, split in task.load_splits(whole).items()}
    assert sorted(splits["train"] + splits["calibration"]) == sorted(STORIES)
    cut = task.load_splits(replace(whole, train_questions=2))
    assert list(cut["train"].corpus.documents()) == splits["train"][:2]
    assert list(cut["calibration"].corpus.documents()) == splits["calibration"]
    assert len({split.fingerprint for split in (*cut.values(), *task.load_splits(whole).values())}) == 3


@pytest.mark.parametrize("source", ["synthetic:calibration", "squad:synthetic:dev", "QUESTIONS"])
def test_a_question_set_is_read_as_its_passages(setting_up, few_questions, source):
    given = few_questions[0].partition("=")[2] if source == "QUESTIONS" else source
    data = setting_up(f"data.train={given}").data
    split = task_of({"task": "masked_lm"}).load_splits(data)["train"]
    assert len(set(split.corpus.documents())) > 1
    assert "/" not in split.name


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["data.hold_out_articles=3", "data.calibration=null"], ConfigError, "data.hold_out_share"),
        (["data.made_up_share=0.5"], ConfigError, "data.made_up_share: a corpus has no questions"),
        (["data.train=EMPTY"], DataError, "holds no text"),
        (["data.train=MISSING"], DataError, "no such file"),
        (["data.train=BINARY"], DataError, "binary"),
        (["data.train=SINGLE", "model.sentence_task=nsp"], DataError, "single document"),
        (["references=spans"], ConfigError, "references=none"),
        (["model.sentence_task=order"], ConfigError, "model.sentence_task"),
        (["pretraining.masked=0.9", "pretraining.replaced=0.2"], ConfigError, "exceed 1"),
        (["pretraining.mask_share=0"], ConfigError, "pretraining.mask_share"),
        (["encoder=words", "encoder.layers=null"], ConfigError, "words"),
        (["encoder.init=random", "encoder.name=RUN"], ConfigError, "would not be loaded"),
    ],
    ids=lambda value: value[0].replace("/", "-") if isinstance(value, list) else "",
)
def test_what_cannot_be_trained_is_refused_first(setting_up, tmp_path, pretrained, overrides, error, message):
    (tmp_path / "empty.txt").write_text("\n\n  \n")
    (tmp_path / "single.txt").write_text(STORIES[0])
    (tmp_path / "binary.txt").write_bytes(b"\0\1" * 500)
    named = {"EMPTY": "empty.txt", "MISSING": "nowhere.txt", "BINARY": "binary.txt", "SINGLE": "single.txt"}
    places = {name: str(tmp_path / file) for name, file in named.items()} | {"RUN": str(pretrained)}
    for name, place in places.items():
        overrides = [override.replace(f"={name}", f"={place}") for override in overrides]
    with pytest.raises(error, match=message):
        train(setting_up(*overrides), folder=tmp_path / "run")
    assert not (tmp_path / "run" / "model" / "model.safetensors").exists()


def fine_tuning(pretrained: Path | str, few_questions: list[str], *overrides: str) -> Config:
    settings = ["debug=fast", "encoder.init=pretrained", f"encoder.name={pretrained}", "trainer.max_steps=2"]
    sizes = [f"encoder.{key}=null" for key in ("layers", "width", "heads", "vocabulary")]
    windows = ["features.max_length=32", "features.max_question=8", "features.stride=4"]
    return validate(compose(["model=bert", *settings, *sizes, *windows, *few_questions, *overrides]))


def test_a_run_of_spans_starts_from_the_encoder_and_its_tokenizer(pretrained, few_questions, tmp_path):
    config = fine_tuning(pretrained, few_questions)
    parts = task_of(config.model).assemble(config)
    trained = load_file(pretrained / "model" / "model.safetensors")
    for name, value in parts.encoder.state_dict().items():
        assert torch.equal(value, trained[f"encoder.{name}"]), name
    folder = pretrained / "model" / "encoder"
    assert parts.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()
    assert AutoModel.from_pretrained(folder).config.hidden_size == parts.encoder.out_dim
    record = train(config, folder=tmp_path / "spans")
    origin = read_record(pretrained)
    assert record.status == "ok"
    assert record.config["encoder"]["name"] == str(pretrained)
    assert read_record(tmp_path / "spans").encoder == record.encoder
    assert (record.encoder.model, record.encoder.seed) == ("mlm", origin.seed)
    assert record.encoder.config_hash == origin.config_hash
    table = comparison([(tmp_path / "spans", record)], columns=["model", "encoder", "f1"])
    assert table.rows[-1]["encoder"] == "mlm, seed 13"


def test_seeds_may_start_from_seeds_and_the_place_of_a_run_does_not_count(
    setting_up, pretrained, few_questions, tmp_path
):
    train(setting_up("seed=14", "trainer.epochs=1"), folder=tmp_path / "other")
    train(setting_up("seed=14"), folder=tmp_path / "second")
    shutil.copytree(pretrained, tmp_path / "moved")
    records = []
    for number, name in enumerate(("moved", "second", "other")):
        config = fine_tuning(tmp_path / name, few_questions, f"seed={number}")
        records.append((Path(name), train(config, folder=tmp_path / f"spans-{name}")))
    systems = group_by_system(records)
    assert [len(system.runs) for system in systems] == [2, 1]
    assert all("name=mlm (" in system.label for system in systems)
    here, moved = (
        make_points([((), compose_of(fine_tuning(place, few_questions)))])[0]
        for place in (pretrained, tmp_path / "moved")
    )
    assert here.key == moved.key
    assert sources(here.config)["encoder"] == read_record(pretrained).config_hash


def compose_of(config: Config) -> dict:
    from dataclasses import asdict

    return asdict(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "killed"}, r"not finished \(status 'killed'\).*--if-exists resume"),
        ({"config": "span"}, r"a run of task span, not a pre-training run"),
        ("no weights", r"has no weights.*train it again"),
        ("two", r"matches 2 runs"),
        ("none", r"matches 0 runs"),
    ],
    ids=["unfinished", "answers", "published", "two", "none"],
)
def test_a_run_that_gives_no_encoder_says_what_to_do(pretrained, tmp_path, change, message):
    folder = shutil.copytree(pretrained, tmp_path / "mlm-1")
    record, name = read_record(folder), str(folder)
    if change == "no weights":
        shutil.rmtree(folder / "model")
    elif change == "two":
        shutil.copytree(pretrained, tmp_path / "mlm-2")
        name = str(tmp_path / "mlm-*")
    elif change == "none":
        name = str(tmp_path / "nothing-*")
    elif "config" in change:
        write_record(folder, replace(record, config={**record.config, "model": {"task": "span"}}))
    else:
        write_record(folder, replace(record, **change))
    with pytest.raises(ConfigError, match=message):
        pretrained_run(name)


def test_a_glob_of_a_single_run_and_what_is_no_run(pretrained):
    folder, record = pretrained_run(str(pretrained.parent / "ml*"))
    assert (folder, record.model) == (pretrained, "mlm")
    assert pretrained_run("bert-base-uncased") is None
    assert pretrained_run(str(pretrained / "model" / "encoder")) is None


def test_the_mask_of_validation_is_no_business_of_the_seed(setting_up):
    """So that the perplexities of seeds are of the same tokens; those of training are drawn anew."""
    batches = []
    for seed in (1, 2):
        config = setting_up(f"seed={seed}")
        task = task_of(config.model)
        made = task.batches(config, task.assemble(config))
        batches.append((made.calibration([0, 1]).ids, made.train((0, [0, 1])).ids))
    (first, drawn), (second, drawn_anew) = batches
    assert torch.equal(first, second)
    assert not torch.equal(drawn, drawn_anew)

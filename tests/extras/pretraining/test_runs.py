"""Pre-training runs: scores, resuming, two devices, and span runs that start from them."""

import hashlib
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from extras.pretraining.conftest import OBJECTIVES
from safetensors.torch import load_file
from stops import stopped_after
from training.conftest import Trained
from transformers import AutoModel, AutoTokenizer

import qa_arch
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.pretraining import recipe
from qa_arch.extras.pretraining.corpus import Corpus, load_splits, open_corpus
from qa_arch.extras.pretraining.denoising import Written
from qa_arch.extras.pretraining.recipe import BlockScores, language_scores
from qa_arch.features import tokenizers
from qa_arch.features.cache import tokenizer_hash
from qa_arch.provenance import encoder_run, pretrained_run
from qa_arch.qa import task
from qa_arch.records import is_squad, read_questions, read_record, write_record
from qa_arch.results.columns import runs_table
from qa_arch.results.systems import group_by_system
from qa_arch.sweep import point_key, sources
from qa_arch.training.module import TrainingModule
from qa_arch.training.run import train


@pytest.fixture
def run(configure, tmp_path):
    """``run(name, *overrides)``: train in folder ``name``."""

    def start(name: str, *overrides: str, resume: bool = False, model: str = "mlm"):
        folder = tmp_path / name
        return Trained(train(configure(*overrides, model=model), folder=folder, resume=resume), folder)

    return start


@pytest.fixture(scope="session")
def pretrained(run_of) -> Path:
    return run_of("mlm")


# Scores

BLOCKS = [
    BlockScores(loss=6.0, tokens=2, right=1, odds=2.0, follows=True),
    BlockScores(loss=1.0, tokens=8, right=7, odds=-1.0, follows=True),
    BlockScores(loss=3.0, tokens=10, right=2, odds=0.5, follows=False),
]


def test_language_scores_average_over_tokens():
    scores = language_scores(BLOCKS, 100, 400)
    assert scores["loss"] == pytest.approx(10 / 20)
    assert scores["perplexity"] == pytest.approx(math.exp(0.5))
    assert scores["token_accuracy"] == pytest.approx(50.0)
    assert (scores["targets"], scores["blocks"]) == (20, 3)
    assert scores["bits_per_byte"] == pytest.approx(0.5 / math.log(2) * 100 / 400)
    exact = language_scores(BLOCKS, None, 400)["bits_per_byte"]
    assert exact == pytest.approx(10 / math.log(2) / 400)  # all bits over all bytes
    assert scores["sentence_accuracy"] == pytest.approx(100 / 3)
    assert scores["sentence_f1"] == pytest.approx(50.0)  # P = R = 1/2
    assert not {"sentence_accuracy", "sentence_f1"} & set(language_scores([BlockScores(1.0, 1, 0)], 100, 400))
    noisy = [BlockScores(1.0, 9, 5, noised=3, restored=1), BlockScores(1.0, 9, 9, noised=5, restored=5)]
    assert language_scores(noisy, None, 400)["restored_tokens"] == pytest.approx(100 * 6 / 8)
    never = [BlockScores(1.0, 1, 0, 0.0, True), BlockScores(1.0, 1, 0, -3.0, False)]
    scores = language_scores(never, 100, 400)
    assert (scores["sentence_accuracy"], scores["sentence_f1"]) == (50.0, 0.0)
    assert language_scores([BlockScores(1e6, 1, 0)], None, 400)["perplexity"] == math.inf


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loaded_run_reproduces_its_scores(run_of, name):
    folder = run_of(name)
    record = read_record(folder)
    assert (record.status, record.threshold, record.confidence) == ("ok", None, None)
    point = record.scores["calibration"]["tokens"]
    assert not is_squad(point.protocol)
    assert not record.finds_spans
    assert point.protocol == record.data["train"].protocol == record.data["calibration"].protocol
    epoch = record.epochs[record.best_epoch]
    for metric in ("loss", "perplexity", "token_accuracy", "bits_per_byte"):
        assert epoch.value(f"calibration_{metric}") == pytest.approx(point.metric(metric), rel=1e-6)
    predictor = qa_arch.load_predictor(folder, device="cpu")
    _, blocks = predictor.rank(recipe.load_splits(predictor.config)["calibration"])
    rows = read_questions(folder / "sets" / "calibration")
    assert [block.loss for block in blocks] == pytest.approx(rows["loss"], rel=1e-5)
    assert [block.right for block in blocks] == rows["right"]


def test_written_texts_are_scored(run_of, monkeypatch):
    """Texts without noise are written rightly but for one, those with noise as they were."""
    predictor = qa_arch.load_predictor(run_of("denoising"), device="cpu")
    predictor.config = replace(predictor.config, trainer=replace(predictor.config.trainer, eval_batch_size=2))
    table = predictor.table(recipe.load_splits(predictor.config)["calibration"])
    end, mask = predictor.template.after[0].id, predictor.tokenizer.mask_token_id

    def write(batch):
        rows = [table.content(row).tolist() for row in batch.index.tolist()]
        if 0 in batch.index and mask not in batch.ids:
            rows[0] = rows[0][1:]
        return [[Written(-0.5 if len(row) % 2 else -1.0, [*row, end])] for row in rows]

    monkeypatch.setattr(predictor, "write", write)
    scores = recipe.writing_scores(predictor, table)
    lengths = table.lengths - 2  # with the end, without the three special tokens of a pair
    loss = sum(length * (1.0 if length % 2 else 0.5) for length in lengths) / sum(lengths)
    assert scores["written_perplexity"] == pytest.approx(math.exp(loss))
    assert scores["exact_copies"] == pytest.approx(100 * (1 - 1 / len(table)))
    assert (scores["bleu"], scores["rouge_l"]) == pytest.approx((100, 100))
    assert 0 < scores["bleu_noisy"] < 90
    monkeypatch.setattr(recipe, "from_extras", lambda _: {})
    assert {*recipe.writing_scores(predictor, table)} == {"exact_copies", "written_perplexity"}


def test_protocol_covers_the_masking_settings(configure, tiny_encoder):
    tokenizer = tokenizers.build("wordpiece", ["Tarn keeps bees."], 50)

    def protocol(model: str, *settings: str) -> str:
        config = configure(*settings, model=model)
        corpus = Corpus("c", "c", "f", lambda: iter(["Tarn keeps bees."]))
        return recipe.table_of(config, corpus, tokenizer, tiny_encoder(), cache=False).protocol

    noise = {"mask_share": 0.15, "masked": 0.8, "replaced": 0.1, "whole_words": False}
    settings = [tokenizer_hash(tokenizer), 32, {"sentence_task": "none", **noise}]
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    assert protocol("mlm") == f"masked_lm:{digest}", "as in committed records"
    assert protocol("mlm", "pretraining.whole_words=true") != protocol("mlm")
    assert protocol("causal").startswith("causal_lm:")
    noises = [[], ["denoising.noise=deletion"], ["denoising.share=0.2"], ["denoising.span_length=2"]]
    assert len({protocol("denoising", *noise) for noise in noises}) == 4


# Training


@pytest.mark.parametrize("model", ["mlm_nsp", "denoising"])
def test_resumed_run_equals_an_uninterrupted_one(run, model):
    settings = ["trainer.checkpoint_minutes=1e-9", "trainer.batch_size=2", "encoder.hidden_dropout=0.1"]
    uninterrupted = run("uninterrupted", *settings, model=model)
    with stopped_after(6):  # in the second epoch
        run("stopped", *settings, model=model)
    resumed = run("stopped", *settings, resume=True, model=model)
    assert resumed.results == uninterrupted.results
    assert resumed.weights == uninterrupted.weights


@pytest.mark.slow
def test_two_devices_take_the_same_steps_as_one(run, monkeypatch):
    """Equal masks per step give equal gradients; each block counts once, so perplexity is equal too."""
    gradients: list[torch.Tensor] = []

    def record_gradients(self, optimizer):
        gradients.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]))

    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", record_gradients)
    plain = ("encoder.hidden_dropout=0", "encoder.attention_dropout=0", "optim.clip=0", "optim.lr=1e-9")
    single = run("single", *plain, "trainer.batch_size=4").record
    double = run("double", *plain, "trainer.batch_size=2", "trainer.devices=2").record
    assert (single.status, double.status, double.batch.devices) == ("ok", "ok", 2)
    assert gradients
    half = len(gradients) // 2
    for first, second in zip(gradients[:half], gradients[half:], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    for first, second in zip(single.epochs, double.epochs, strict=True):
        for metric in ("perplexity", "token_accuracy", "bits_per_byte"):
            key = f"calibration_{metric}"
            assert first.value(key) == pytest.approx(second.value(key), rel=1e-6)


def test_epoch_of_lowest_loss_is_selected(run, monkeypatch):
    losses = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(recipe, "validation_scores", lambda *_: {"calibration_loss": next(losses)})
    assert run("selected", "trainer.epochs=3").record.best_epoch == 1


def test_documents_are_held_out_and_train_is_truncated(configure):
    config = configure("data.calibration=null", "data.hold_out_share=0.4")
    splits = {name: list(split.documents()) for name, split in load_splits(config).items()}
    assert sorted(splits["train"] + splits["calibration"]) == sorted(
        open_corpus(config.data.train).documents()
    )
    truncated = load_splits(replace(config, data=replace(config.data, train_questions=2)))
    assert list(truncated["train"].documents()) == splits["train"][:2]
    assert list(truncated["calibration"].documents()) == splits["calibration"]
    all_splits = (*truncated.values(), *load_splits(config).values())
    assert len({split.fingerprint for split in all_splits}) == 3


@pytest.mark.parametrize("source", ["synthetic:calibration", "squad:synthetic:dev", "QUESTIONS"])
def test_question_set_is_read_as_its_passages(few_questions, source):
    path = few_questions[0].partition("=")[2] if source == "QUESTIONS" else source
    split = open_corpus(path)
    assert len(set(split.documents())) > 1
    assert "/" not in split.name


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["data.hold_out_articles=3", "data.calibration=null"], ConfigError, "data.hold_out_share"),
        (["data.train=EMPTY"], DataError, "holds no text"),
        (["data.train=SINGLE", "model.sentence_task=nsp"], DataError, "single document"),
        (["data.train=[SINGLE,synthetic:train]", "data.calibration=SINGLE"], DataError, "trained on"),
        (["model.sentence_task=order"], ConfigError, "model.sentence_task"),
        (["pretraining.masked=0.9", "pretraining.replaced=0.2"], ConfigError, "sum to more than 1"),
        (["encoder=words", "encoder.layers=null"], ConfigError, "words"),
        (["encoder.init=random", "encoder.name=RUN"], ConfigError, "would not be loaded"),
    ],
    ids=lambda value: value[0].replace("/", "-") if isinstance(value, list) else "",
)
def test_invalid_settings_are_refused_before_training(
    configure, tmp_path, pretrained, overrides, error, message
):
    (tmp_path / "empty.txt").write_text("\n\n  \n")
    (tmp_path / "single.txt").write_text("Tarn keeps bees. It rains in Lomm.")
    named = {"EMPTY": tmp_path / "empty.txt", "SINGLE": tmp_path / "single.txt", "RUN": pretrained}
    for name, path in named.items():
        overrides = [override.replace(name, str(path)) for override in overrides]
    with pytest.raises(error, match=message):
        train(configure(*overrides), folder=tmp_path / "run")
    assert not (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_next_sentences_are_not_evaluated_on_a_single_document(run_of):
    """The search for another document would never end."""
    predictor = qa_arch.load_predictor(run_of("mlm_nsp"), device="cpu")
    with pytest.raises(DataError, match=r"one\.txt: is a single document"):
        predictor.table(Corpus("one.txt", "one.txt", "f", lambda: iter(["Tarn keeps bees. " * 30])))


def test_validation_masks_do_not_depend_on_the_seed(configure):
    """So perplexities of all seeds are over the same tokens. Training masks differ."""
    batches = []
    for seed in (1, 2):
        config = configure(f"seed={seed}")
        made = recipe.fitting(config, recipe.assemble(config)).batches
        batches.append((made.calibration([0, 1]).ids, made.train((0, [0, 1])).ids))
    (first, train_ids), (second, other_train_ids) = batches
    assert torch.equal(first, second)
    assert not torch.equal(train_ids, other_train_ids)


# Starting from a pre-training run


def test_span_run_starts_from_the_pretrained_encoder_and_tokenizer(run_of, pretrained, fine_tuning, spans):
    for run in (run_of("denoising"), pretrained):
        parts = task.assemble(fine_tuning(run))
        trained = load_file(run / "model" / "model.safetensors")
        for name, value in parts.encoder.state_dict().items():
            assert torch.equal(value, trained[f"encoder.{name}"]), name
    folder = pretrained / "model" / "encoder"
    assert parts.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()
    assert AutoModel.from_pretrained(folder).config.hidden_size == parts.encoder.out_dim
    record, origin = read_record(spans), read_record(pretrained)
    assert record.status == "ok"
    assert record.config["encoder"]["name"] == str(pretrained)
    assert (record.encoder.model, record.encoder.seed) == ("mlm", origin.seed)
    assert record.encoder.run_hash == origin.run_hash
    table = runs_table([(spans, record)], columns=["model", "encoder", "f1"])
    assert table.rows[-1]["encoder"] == "mlm, seed 13"


def test_systems_and_points_ignore_seed_and_path_of_the_pretrained_run(
    pretrained, fine_tuning, spans, tmp_path
):
    origin, started = read_record(pretrained), read_record(spans)
    records = [(spans, started)]
    for seed, trainer in ((14, {}), (15, {"epochs": 1})):
        folder = shutil.copytree(pretrained, tmp_path / str(seed))
        changed = {"seed": seed, "trainer": {**origin.config["trainer"], **trainer}}
        write_record(folder, replace(origin, seed=seed, config={**origin.config, **changed}))
        changed = {"seed": seed, "encoder": {**started.config["encoder"], "name": str(folder)}}
        fields = {"config": {**started.config, **changed}, "encoder": encoder_run(str(folder))}
        records.append((folder, replace(started, seed=seed, **fields)))
    systems = group_by_system(records)
    assert [len(system.runs) for system in systems] == [2, 1]
    assert all("name=mlm (" in system.label for system in systems)
    shutil.copytree(pretrained, tmp_path / "moved")
    original, moved = (fine_tuning(run) for run in (pretrained, tmp_path / "moved"))
    assert point_key(original) == point_key(moved)
    assert sources(original)["encoder"] == read_record(pretrained).run_hash


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
def test_unusable_pretrained_run_is_refused_with_a_remedy(pretrained, tmp_path, change, message):
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


def test_pretrained_run_accepts_a_glob_and_ignores_other_names(pretrained):
    folder, record = pretrained_run(str(pretrained.parent / "ml?"))
    assert (folder, record.model) == (pretrained, "mlm")
    assert pretrained_run("bert-base-uncased") is None
    assert pretrained_run(str(pretrained / "model" / "encoder")) is None

"""What every pre-training model must keep to: each ``conf/model/**/*.yaml`` of a task that reads a corpus.

The companion of ``test_contract.py``: a handful of stories in blocks of 32 tokens, on encoders of several
families.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch
from contract import Fleet, check_gradients, learned_by_heart, outputs, reads
from omegaconf import OmegaConf

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import CORPUS_TASKS, Config, validate
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.results.record import read_questions
from qa_arch.tasks import task_of
from qa_arch.tasks.language import LanguageParts
from qa_arch.training.run import train
from qa_arch.types.records import TOKENS, is_language
from qa_arch.types.tensors import LanguageBatch

FOLDER = conf_folder() / "model"
MODELS = [
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in sorted(FOLDER.rglob("*.yaml"))
    if OmegaConf.load(path).get("task") in CORPUS_TASKS
]
FAMILIES = ("roberta", "albert", "distilbert", "qa_transformer", "qa_transformer")
CASES = {name: (name, "bert") for name in MODELS}
CASES |= {
    f"{name}-{family}": (f"pretrain/{name}", family)
    for name, family in zip(("mlm_sop", "denoising", "causal", "causal", "mlm"), FAMILIES, strict=True)
}
WITHOUT_EFFECT = ("key.bias", "k_lin.bias")
"""Gradients that are zero in exact arithmetic: a shift of all scores of one softmax."""
SIZES = ["encoder.layers=1", "encoder.width=32", "encoder.heads=2", "encoder.initializer_range=0.15"]
STORIES = [
    f"{name} keeps {n} bees near {town}. On day {n} it rains. {name} sells {n + 3} goats to {town}."
    + " Nobody minds." * n
    for n, (name, town) in enumerate(
        [("Tarn", "Lomm"), ("Mira", "Osk"), ("Bell", "Ryde"), ("Ada", "Wick")], 2
    )
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "train.txt").write_text("\n\n".join(STORIES))
    (folder / "held.txt").write_text("\n\n".join(STORIES[:2]))
    return [
        "debug=fast",
        "data=corpus",
        *SIZES,
        "encoder.hidden_dropout=0.0",
        "encoder.attention_dropout=0.0",
        "features.max_length=32",
        "features.max_question=16",
        "features.stride=8",
        "features.cache_dir=null",
        f"data.train={folder}/train.txt",
        f"data.calibration={folder}/held.txt",
    ]


def configure(case: str, settings: list[str]) -> Config:
    name, family = CASES[case]
    small = {"layers": 1, "dropout": 0.0}
    section = OmegaConf.load(FOLDER / f"{name}.yaml")
    own = [f"model.{key}={value}" for key, value in small.items() if key in section]
    return validate(compose([f"model={name}", f"encoder={family}", *settings, *own]))


@dataclass(frozen=True)
class Contender:
    config: Config
    parts: LanguageParts

    def batch(self, split: str = "train", rows: list[int] | None = None) -> LanguageBatch:
        """Blocks as validation reads them."""
        table = self.parts.tables[split]
        return task_of(self.config.model).collator(self.config, table)(rows or list(range(len(table))))


@pytest.fixture(scope="module")
def fleet(settings) -> dict[str, Contender]:
    def build(case: str) -> Contender:
        config = configure(case, settings)
        return Contender(config, task_of(config.model).assemble(config))

    return Fleet(build)


@pytest.fixture(params=CASES)
def contender(request, fleet) -> Contender:
    return fleet[request.param]


def test_every_objective_is_a_case():
    assert {task_of(OmegaConf.load(FOLDER / f"{name}.yaml")).name for name in MODELS} == set(CORPUS_TASKS)


def test_every_target_has_scores_of_the_vocabulary(contender):
    batch = contender.batch()
    logits = reads(contender.parts.model, batch)
    assert logits.tokens.shape == (*batch.targets.shape, contender.parts.encoder.vocab_size)
    assert logits.tokens.isfinite().all()
    assert (logits.follows is None) == (batch.follows is None)
    assert logits.follows is None or logits.follows.shape == (len(batch),)


def test_the_same_scores_batched_alone(contender):
    batch = contender.batch()
    assert len(set(batch.mask.sum(1).tolist())) > 1  # else nothing is padded
    together = reads(contender.parts.model, batch)
    for row in range(len(batch)):
        own = contender.batch(rows=[row])
        alone = reads(contender.parts.model, own)
        count = int(own.counted.sum())
        torch.testing.assert_close(alone.tokens[0, :count], together.tokens[row, :count], rtol=0, atol=1e-5)
        if alone.follows is not None:
            torch.testing.assert_close(alone.follows[0], together.follows[row], rtol=0, atol=1e-5)


def test_nothing_comes_from_padding(contender):
    batch = contender.batch()
    if contender.parts.encoder.config.model_type == "roberta":
        pytest.skip("RoBERTa takes its positions from the ids of padding")
    other = replace(batch, ids=batch.ids.where(batch.mask, 7))
    expected, actual = (reads(contender.parts.model, given).tokens for given in (batch, other))
    torch.testing.assert_close(actual[batch.counted], expected[batch.counted], rtol=0, atol=1e-6)


def test_a_gradient_reaches_every_trainable_parameter(contender):
    batch, model = contender.batch(), contender.parts.model.train()
    check_gradients(model, contender.parts.loss(model(batch), batch).mean(), WITHOUT_EFFECT)


def test_saved_weights_load_to_equal_scores(contender, tmp_path):
    parts = contender.parts
    task_of(contender.config.model).save(tmp_path, parts)
    store.save_weights(tmp_path, parts.model)
    torch.manual_seed(99)
    copy = build_model(contender.config.model, store.load_encoder(tmp_path), None)
    before = reads(copy, contender.batch()).tokens
    store.load_weights(tmp_path, copy)
    actual, expected = (reads(model, contender.batch()) for model in (copy, parts.model))
    assert not torch.equal(before, expected.tokens)
    assert torch.equal(actual.tokens, expected.tokens)
    assert expected.follows is None or torch.equal(actual.follows, expected.follows)


def test_it_learns_two_stories_by_heart(contender):
    parts, batch = contender.parts, contender.batch("calibration")

    def loss() -> torch.Tensor:
        return parts.loss(parts.model(batch), batch).mean()

    with learned_by_heart(parts.model, loss, steps=120, lr=1e-2):
        actual = outputs(contender, "calibration")
    scores = task_of(contender.config.model).points(None, actual, 0.0)[TOKENS]
    # From [CLS] alone a causal model cannot tell which of the two begins.
    unknowable = contender.config.model["task"] == "causal_lm"
    assert scores.metric("token_accuracy") == pytest.approx(100 - 100 * unknowable / scores.metric("targets"))
    assert scores.metric("perplexity") < 1.2
    assert scores.metric("sentence_accuracy") in (None, 100.0)


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_run_loads_and_scores_as_it_did(name, settings, tmp_path):
    record = train(configure(name, [*settings, "trainer.max_steps=-1"]), folder=tmp_path)
    assert (record.status, record.threshold, record.confidence) == ("ok", None, None)
    point = record.scores["calibration"][TOKENS]
    assert is_language(point.protocol)
    assert point.protocol == record.data["train"].protocol == record.data["calibration"].protocol
    [epoch] = record.epochs
    for metric in ("loss", "perplexity", "token_accuracy", "bits_per_byte"):
        assert epoch.value(f"calibration_{metric}") == pytest.approx(point.metric(metric), rel=1e-6)
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    split = task_of(predictor.config.model).load_splits(predictor.config.data)["calibration"]
    again = predictor.read(split)
    rows = read_questions(tmp_path / "sets" / "calibration")
    assert [block.loss for block in again.blocks] == pytest.approx(rows["loss"], rel=1e-5)
    assert [block.right for block in again.blocks] == rows["right"]
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "ok"


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = []
    for case in CASES:
        rows = range(len(fleet[case].parts.tables["train"]))
        batches = [fleet[case].batch(rows=list(rows[rank::2])) for rank in range(2)]
        everyone.append((case, fleet[case].parts.model, batches))
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

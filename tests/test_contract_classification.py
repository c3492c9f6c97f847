"""What every classifier of questions must keep to: each ``conf/model/**/*.yaml`` of ``task: classification``.

The companion of ``test_contract.py``: four questions against all classes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from contract import Fleet, check_gradients, learned_by_heart, outputs, reads, write_vectors
from omegaconf import OmegaConf

import qa_arch
from qa_arch.cli.compose import compose
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import Config, validate
from qa_arch.data.question_types import CLASSES
from qa_arch.features.selection_features import CandidateCollator
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.nn.losses import ChoiceLoss
from qa_arch.tasks import task_of
from qa_arch.tasks.candidate_scores import ranks
from qa_arch.tasks.selection import SelectionParts
from qa_arch.tasks.selection_predictor import classify
from qa_arch.training.run import train
from qa_arch.types.records import RANKED
from qa_arch.types.tensors import SelectionBatch

FOLDER = conf_folder() / "model"
MODELS = [
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in sorted(FOLDER.rglob("*.yaml"))
    if OmegaConf.load(path).get("task") == "classification"
]
VARIANTS = {
    "one_direction": ("question_types", ["model.bidirectional=false", "model.pooling=mean"]),
    "trained_vectors": ("question_types", ["model.train_vectors=true"]),
}
CASES = {name: (name, []) for name in MODELS} | VARIANTS
QUESTIONS = {
    "When did the ferry of Lomm first carry goats ?": "NUM:date",
    "Who paints boats ?": "HUM:ind",
    "Where is Lomm ?": "LOC:other",
    "What does a bee eat in the winter ?": "ENTY:food",
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("classes")
    (folder / "four.label").write_text("".join(f"{label} {text}\n" for text, label in QUESTIONS.items()))
    write_vectors(folder / "vectors.txt", QUESTIONS)
    return [
        "debug=fast",
        "data=question_types",
        "data.train_questions=0",
        *(f"data.{split}=types:{folder}/four.label" for split in ("train", "calibration", "dev")),
        "glove=file",
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
        "model.hidden=6",
        "model.dropout=0.0",
    ]


def configure(case: str, settings: list[str]) -> Config:
    name, overrides = CASES[case]
    return validate(compose([f"model={name}", *settings, *overrides]))


@dataclass(frozen=True)
class Contender:
    config: Config
    parts: SelectionParts

    def batch(self, rows: list[int] | None = None, multiple: int = 1) -> SelectionBatch:
        table = self.parts.tables["train"]
        return CandidateCollator(table, multiple)(rows or list(range(len(table))))


@pytest.fixture(scope="module")
def fleet(settings) -> dict[str, Contender]:
    """Every case, assembled on first use."""

    def build(case: str) -> Contender:
        config = configure(case, settings)
        return Contender(config, task_of(config.model).assemble(config))

    return Fleet(build)


@pytest.fixture(params=CASES)
def contender(request, fleet) -> Contender:
    return fleet[request.param]


def test_every_class_has_a_score_and_padding_has_none(contender):
    batch = contender.batch(multiple=7)
    scores = reads(contender.parts.model, batch)
    assert scores.shape == (4, 56)
    assert scores[:, :50].isfinite().all()
    assert (scores[:, 50:] == -math.inf).all()


def test_a_score_belongs_to_its_class_whatever_the_order(contender):
    batch = contender.batch()
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    turned = replace(batch, candidate=batch.candidate[:, order], right=batch.right[:, order])
    first, second = (reads(contender.parts.model, given) for given in (batch, turned))
    torch.testing.assert_close(first[:, order], second, rtol=0, atol=0)


def test_the_same_scores_batched_alone_and_padded_further(contender):
    together = reads(contender.parts.model, contender.batch())
    for row in range(4):
        for multiple in (1, 25):
            alone = reads(contender.parts.model, contender.batch([row], multiple))
            torch.testing.assert_close(alone[0, :50], together[row], rtol=0, atol=1e-5)


def test_a_gradient_reaches_every_trainable_parameter(contender):
    batch, model = contender.batch(), contender.parts.model.train()
    check_gradients(model, ChoiceLoss()(model(batch), batch).mean())


def test_saved_weights_load_to_equal_scores(contender, tmp_path):
    parts = contender.parts
    store.save_vectors(tmp_path, parts.vectors)
    store.save_weights(tmp_path, parts.model)
    torch.manual_seed(99)
    copy = build_model(contender.config.model, None, store.load_vectors(tmp_path))
    before = reads(copy, contender.batch())
    store.load_weights(tmp_path, copy)
    actual, expected = (reads(model, contender.batch()) for model in (copy, parts.model))
    assert not torch.equal(before, expected)
    assert torch.equal(actual, expected)


def test_it_learns_four_questions_by_heart(contender):
    parts, batch = contender.parts, contender.batch()

    def loss() -> torch.Tensor:
        return ChoiceLoss()(parts.model(batch), batch).mean()

    with learned_by_heart(parts.model, loss, steps=80, lr=2e-2):
        actual = ranks(parts.sets["train"], outputs(contender, "train"))
    assert actual == [1, 1, 1, 1]


def test_a_trained_run_loads_scores_and_classifies_as_it_did(settings, tmp_path):
    # The sets share their questions: 40 epochs learn them by heart.
    longer = ["trainer.max_steps=-1", "trainer.epochs=40", "optim.lr=2e-2", "optim.schedule=constant"]
    record = train(configure("question_types", [*settings, *longer]), folder=tmp_path)
    assert record.status == "ok"
    point = record.scores["dev"][RANKED]
    assert point.metric("accuracy") == point.metric("main_accuracy") == 100
    assert record.references["dev"]["rules"].metric("main_accuracy") == 100
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    questions = [*QUESTIONS, "Who paints boats ?"]
    typed = classify(predictor, questions)
    assert [item.label for item in typed] == [*QUESTIONS.values(), "HUM:ind"]
    selections = json.loads((tmp_path / "selections.json").read_text())
    for item, scores in zip(typed, selections.values(), strict=False):
        powers = [math.exp(score) for score in scores]
        assert item.probability == pytest.approx(max(powers) / sum(powers), rel=1e-4)
        assert CLASSES[scores.index(max(scores))] == item.label
    assert classify(predictor, []) == []


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = [
        (case, fleet[case].parts.model, [fleet[case].batch([rank, rank + 2]) for rank in range(2)])
        for case in CASES
    ]
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

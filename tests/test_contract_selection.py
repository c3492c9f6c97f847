"""What every answer-selection model must keep to: each ``conf/model/**/*.yaml`` of ``task: selection``.

The companion of ``test_contract.py``, with the harness of this task: a handful of questions against
the sentences of their paragraphs. A new model is tested by its YAML alone.
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
from qa_arch.features.selection_features import CandidateCollator, PairCollator
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.nn.losses import HingeLoss
from qa_arch.tasks import task_of
from qa_arch.tasks.candidate_scores import ranks
from qa_arch.tasks.selection import SelectionParts
from qa_arch.training.run import train
from qa_arch.types.records import RANKED
from qa_arch.types.tensors import SelectionBatch

FOLDER = conf_folder() / "model"
MODELS = {
    path.relative_to(FOLDER).with_suffix("").as_posix(): path
    for path in sorted(FOLDER.rglob("*.yaml"))
    if OmegaConf.load(path).get("task") == "selection"
}
VARIANTS = {
    "suffixes": ("qa_lstm/a", ["model.encoder=subilstm", "model.window=3"]),
    "three_largest": ("qa_lstm/c", ["model.k=3"]),
    "wide_filters": ("qa_lstm/d", ["model.filter_width=4"]),
    "fixed_vectors": ("qa_lstm/g", ["glove=file", "model.train_vectors=false"]),
}
CASES = {name: (name, []) for name in MODELS} | VARIANTS
SMALL = {"hidden": 6, "dropout": 0.0}
PASSAGES = {
    "Mira paints red boats. Tarn keeps nine bees. It rains in Lomm.": ["red boats", "nine", "Lomm"],
    "The ferry of Lomm carried twenty goats to the isle on the third day of May. It sank. Why?": ["goats"],
    "Bees sing. Boats sink.": ["Boats"],
}


def squad(title: str, passages: dict[str, list[str]]) -> str:
    paragraphs = []
    for context, answers in passages.items():
        qas = [
            {
                "id": f"{title}-{answer}",
                "question": f"Which one is it that {answer} belongs to?"
                if len(answer) > 5
                else f"{answer} what?",
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
            for answer in answers
        ]
        paragraphs.append({"context": context, "qas": qas})
    return json.dumps({"version": "1.1", "data": [{"title": title, "paragraphs": paragraphs}]})


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    """Overrides that give every model the same few questions."""
    folder = tmp_path_factory.mktemp("selection")
    first = dict(list(PASSAGES.items())[:2])  # four questions
    for split, passages in (("train", PASSAGES), ("calibration", first), ("dev", PASSAGES)):
        (folder / f"{split}.json").write_text(squad(split, passages))
    write_vectors(folder / "vectors.txt", PASSAGES)
    return [
        "debug=fast",
        "data.train_questions=0",
        "selection.negatives=2",
        "selection.unknown_buckets=3",
        *(f"data.{split}={folder}/{split}.json" for split in ("train", "calibration", "dev")),
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
    ]


def configure(case: str, settings: list[str]) -> Config:
    name, overrides = CASES[case]
    section = OmegaConf.load(MODELS[name])
    small = {**SMALL, "filters": min(section.get("filters", 0), 9)}
    return validate(
        compose(
            [
                f"model={name}",
                *settings,
                *(f"model.{k}={v}" for k, v in small.items() if k in section),
                *overrides,
            ]
        )
    )


@dataclass(frozen=True)
class Contender:
    config: Config
    parts: SelectionParts

    def batch(self, split: str = "train", rows: list[int] | None = None, multiple: int = 1) -> SelectionBatch:
        """Questions with all of their candidates."""
        table = self.parts.tables[split]
        return CandidateCollator(table, multiple)(rows or list(range(len(table))))

    def pairs(self, rows: list[int]) -> SelectionBatch:
        """Pairs as training draws them in its first epoch."""
        return PairCollator(self.parts.tables["train"], 2, self.config.seed)((0, rows))


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


def test_every_model_of_the_task_is_a_case():
    assert {f"qa_lstm/{letter}" for letter in "abcdefghi"} <= set(MODELS)


def test_every_candidate_has_a_cosine_and_padding_has_none(contender):
    batch = contender.batch(multiple=7)
    scores = reads(contender.parts.model, batch)
    assert scores.shape == batch.offered.shape
    assert not batch.offered.all()
    assert (scores[~batch.offered] == -math.inf).all()
    assert (scores[batch.offered].abs() <= 1 + 1e-6).all()
    assert len(scores[batch.offered].unique()) > 3


def test_nothing_comes_from_padding(contender):
    batch = contender.batch(multiple=7)
    other = replace(
        batch,
        question=batch.question.masked_fill(~batch.question_mask, 2),
        answer=batch.answer.masked_fill(~batch.answer_mask, 3),
        candidate=batch.candidate.masked_fill(~batch.offered, 1),
    )
    first, second = (reads(contender.parts.model, given) for given in (batch, other))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_the_same_scores_batched_alone_and_padded_further(contender):
    together = reads(contender.parts.model, contender.batch())
    for row in range(len(together)):
        for multiple in (1, 40):
            batch = contender.batch(rows=[row], multiple=multiple)
            alone = reads(contender.parts.model, batch)[0]
            count = int(batch.offered.sum())
            torch.testing.assert_close(alone[:count], together[row, :count], rtol=0, atol=1e-5)
            assert (alone[count:] == -math.inf).all()


def test_a_gradient_reaches_every_trainable_parameter(contender):
    batch, model = contender.batch(), contender.parts.model.train()
    check_gradients(model, HingeLoss(0.9)(model(batch), batch).mean())


def test_saved_weights_load_to_equal_scores(contender, tmp_path):
    parts = contender.parts
    store.save_vectors(tmp_path, parts.vectors)
    store.save_weights(tmp_path, parts.model)
    torch.manual_seed(99)
    vectors = store.load_vectors(tmp_path)
    copy = build_model(contender.config.model, None, vectors)
    before = reads(copy, contender.batch())
    store.load_weights(tmp_path, copy)
    actual, expected = (reads(model, contender.batch()) for model in (copy, parts.model))
    assert not torch.equal(before, expected)
    assert torch.equal(actual, expected)


def test_it_learns_four_questions_by_heart(contender):
    parts = contender.parts
    batch = contender.batch("calibration")
    assert len(batch) == 4

    def loss() -> torch.Tensor:
        return HingeLoss(0.2)(parts.model(batch), batch).mean()

    with learned_by_heart(parts.model, loss, steps=80, lr=2e-2):
        actual = ranks(parts.sets["calibration"], outputs(contender, "calibration"))
    assert actual == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["qa_lstm/a", "qa_lstm/i", "fixed_vectors"])
def test_a_trained_run_loads_and_scores_as_it_did(name, settings, tmp_path):
    record = train(configure(name, settings), folder=tmp_path)
    assert record.status == "ok"
    assert record.scores["dev"][RANKED].metric("questions") == 5
    predictor = qa_arch.load_predictor(tmp_path, device="cpu")
    torch.manual_seed(5)
    task = task_of(predictor.config.model).load_splits(predictor.config.data)["dev"]
    output = json.loads((tmp_path / "selections.json").read_text())
    scored = predictor.read(task)
    assert {question.id: scored[row] for row, question in enumerate(task.questions)} == output


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = [
        (case, fleet[case].parts.model, [fleet[case].pairs([rank, rank + 2]) for rank in range(2)])
        for case in CASES
    ]
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

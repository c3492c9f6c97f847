"""What every model must keep to: each ``conf/model/**/*.yaml``, and the proposed model in its variants.

Here are the models that find spans; those of ``task: selection`` are in ``test_contract_selection.py``,
those of ``task: classification`` in ``test_contract_classification.py``, those that are pre-trained on a
corpus in ``test_contract_language.py``.

Each is composed as a user would, with a tiny random encoder of its own family and a tokenizer trained
on the spot. A new architecture is tested by its YAML alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields

import pytest
import torch
from contract import Fleet, check_gradients, learned_by_heart, reads, write_vectors
from omegaconf import OmegaConf

from qa_arch.cli.compose import compose
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import TASKS, Config, validate
from qa_arch.features.collate import Collator
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.tasks.loading import load_predictor
from qa_arch.tasks.span import TASK, SpanParts
from qa_arch.training.run import train
from qa_arch.types.tensors import Batch, SpanLogits, StepLogits, span_scores

FOLDER = conf_folder() / "model"
ALL = {p.relative_to(FOLDER).with_suffix("").as_posix(): p for p in sorted(FOLDER.rglob("*.yaml"))}
MODELS = {
    name: path for name, path in ALL.items() if OmegaConf.load(path).get("task") in ("span", "sequence")
}
VARIANTS = {
    "both": ["model.no_answer=both"],
    "bi_boundary": ["head=bi_boundary"],
    "biaffine": ["head=biaffine"],
    "biaffine_verifier": ["head=biaffine", "model.no_answer=verifier", "model.matching=words"],
    "glove": ["glove=file"],
    "joint": ["loss=joint", "decode=any"],
}
CASES = {name: (name, []) for name in MODELS} | {
    f"proposed-{name}": ("proposed", overrides) for name, overrides in VARIANTS.items()
}
CASES["bert-biaffine"] = ("bert", ["head=biaffine", "model.head.hidden=12"])
CASES["bert-boundary"] = ("bert", ["head=boundary", "model.head.hidden=12"])
FIXED = ["glove=file", "encoder.width=null", "encoder.vocabulary=null"]
CASES["match_lstm-fixed"] = ("match_lstm/boundary", [*FIXED, "model.lstm=standard"])

WITHOUT_EFFECT = ("score.bias", "span.bias", "key.bias", "cell.weight_hh")
"""Gradients that are zero in exact arithmetic: a shift of all scores of one softmax, what multiplies
h_0 = 0."""

SHORT = [
    ("Mira paints red boats.", "What does Mira paint?", "red boats"),
    ("Mira paints red boats.", "Who drives the tram?", None),
    ("Old Tarn keeps nine bees.", "How many bees does Tarn keep?", "nine"),
    ("Old Tarn keeps nine bees.", "Where does Mira sleep?", None),
]
LONG = " ".join(f"On day {n} the ferry of Lomm carried {n + 20} goats to the isle." for n in range(12))


def squad(title: str, rows: list[tuple[str, str, str | None]]) -> str:
    paragraphs = []
    for number, (context, question, text) in enumerate(rows):
        golds = [] if text is None else [{"text": text, "answer_start": context.index(text)}]
        qa = {"id": f"{title}-{number}", "question": question, "answers": golds, "is_impossible": not golds}
        paragraphs.append({"context": context, "qas": [qa]})
    return json.dumps({"version": "v2.0", "data": [{"title": title, "paragraphs": paragraphs}]})


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> list[str]:
    """Overrides that give every model the same small questions: four short ones, and some in many windows."""
    folder = tmp_path_factory.mktemp("contract")
    wide = [(LONG, "How many goats crossed on day 9?", "29"), (LONG, "Who built the isle?", None)]
    (folder / "train.json").write_text(squad("ferry", [*SHORT, *wide]))
    (folder / "four.json").write_text(squad("four", SHORT))
    (folder / "dev.json").write_text(
        squad("dev", [*SHORT[:2], (LONG, "What was carried on day 3?", "23 goats")])
    )
    write_vectors(folder / "vectors.txt", (LONG, *(row[0] for row in SHORT)))
    return [
        "debug=fast",
        "encoder.initializer_range=0.15",
        "features.max_length=64",
        "features.max_question=16",
        "features.stride=8",
        "features.cache_dir=null",
        f"data.train={folder}/train.json",
        f"data.calibration={folder}/four.json",
        f"data.dev={folder}/dev.json",
        f"glove.path={folder}/vectors.txt",
    ]


def configure(name: str, overrides: list[str], settings: list[str]) -> Config:
    section = compose([f"model={name}"])["model"]
    small = [f"model.{key}={value}" for key, value in (("hidden", 12), ("dropout", 0.0)) if key in section]
    return validate(compose([f"model={name}", *settings, *small, *overrides]))


@dataclass(frozen=True)
class Contender:
    config: Config
    parts: SpanParts

    def collator(self, split: str, multiple: int = 1) -> Collator:
        table, vectors = self.parts.tables[split], self.parts.vectors
        known = None if vectors is None else vectors.rows(table.vocabulary)
        return Collator(table, known, multiple=multiple)

    def batch(self, split: str = "train", rows: list[int] | None = None, multiple: int = 1) -> Batch:
        return self.collator(split, multiple)(rows or list(range(len(self.parts.tables[split]))))


@pytest.fixture(scope="module")
def fleet(settings) -> dict[str, Contender]:
    """Every case, assembled on first use."""

    def build(case: str) -> Contender:
        name, overrides = CASES[case]
        config = configure(name, overrides, settings)
        return Contender(config, TASK.assemble(config))

    return Fleet(build)


@pytest.fixture(params=CASES)
def contender(request, fleet) -> Contender:
    return fleet[request.param]


def token_scores(logits: SpanLogits | StepLogits) -> tuple[torch.Tensor, ...]:
    """All scores on the token axis, (B, T) each: of start and end, or of each step."""
    return logits.token.unbind(1) if isinstance(logits, StepLogits) else (logits.start, logits.end)


def scores_of_spans(logits: SpanLogits | StepLogits, row: int, width: int) -> torch.Tensor:
    """Of start and end together, where a model scores them so."""
    if isinstance(logits, StepLogits) or logits.pair is None:
        return torch.zeros(0)
    return span_scores(logits)[row, :width, :width]


@pytest.mark.parametrize("name", ALL)
def test_the_task_is_known(name):
    assert OmegaConf.load(ALL[name]).get("task") in TASKS


def test_scores_lie_on_the_context_and_are_numbers(contender):
    batch = contender.batch()
    logits = reads(contender.parts.model, batch)
    words = contender.config.model.get("matching") == "words"
    for scores in token_scores(logits):
        assert scores.shape == batch.ids.shape
        assert (scores[~batch.context] == -math.inf).all()
        assert not scores.isnan().any()
        assert not (scores == math.inf).any()
        finite = scores.isfinite()
        assert finite.any(1).all() if words else torch.equal(finite, batch.context)
    assert logits.null.shape == (len(batch),)
    assert torch.isfinite(logits.null).all()


def test_the_same_answer_batched_alone_and_padded_further(contender):
    table = contender.parts.tables["train"]
    assert len(set(table.lengths.tolist())) > 2  # else nothing is padded
    together = reads(contender.parts.model, contender.batch())
    for row in range(len(table)):
        for multiple in (1, 64):
            alone = reads(contender.parts.model, contender.batch(rows=[row], multiple=multiple))
            width = table.lengths[row]
            for actual, expected in zip(token_scores(alone), token_scores(together), strict=True):
                torch.testing.assert_close(actual[0, :width], expected[row, :width], rtol=0, atol=1e-5)
            torch.testing.assert_close(alone.null[0], together.null[row], rtol=0, atol=1e-5)
            pairs = scores_of_spans(alone, 0, width), scores_of_spans(together, row, width)
            torch.testing.assert_close(*pairs, rtol=0, atol=1e-5)


def test_a_gradient_reaches_every_trainable_parameter(contender):
    batch, model = contender.batch(), contender.parts.model.train()
    assert batch.labels.answerable.any()
    assert not batch.labels.answerable.all()
    check_gradients(model, contender.parts.loss(model(batch), batch.labels).mean(), WITHOUT_EFFECT)


def test_saved_weights_load_to_equal_logits(contender, tmp_path):
    parts = contender.parts
    TASK.save(tmp_path, parts)
    store.save_weights(tmp_path, parts.model)
    torch.manual_seed(99)
    vectors = store.load_vectors(tmp_path)
    copy = build_model(contender.config.model, store.load_encoder(tmp_path), vectors)
    before = token_scores(reads(copy, contender.batch()))[0]
    store.load_weights(tmp_path, copy)
    actual, expected = (reads(model, contender.batch()) for model in (copy, parts.model))
    assert not torch.equal(before, token_scores(expected)[0])
    for name in ("null", *(f.name for f in fields(expected))):
        item, other = getattr(actual, name), getattr(expected, name)
        assert torch.equal(item, other) if isinstance(item, torch.Tensor) else item == other, name


def test_it_learns_four_questions_by_heart(contender):
    """Two of them without an answer; what it says is read out as in every scoring."""
    config, parts = contender.config, contender.parts
    batch, questions = contender.batch("calibration"), parts.sets["calibration"]

    def loss() -> torch.Tensor:
        return parts.loss(parts.model(batch), batch.labels).mean()

    with learned_by_heart(parts.model, loss, steps=150, lr=5e-3):
        predictor = TASK.predictor(config, parts)
        actual = predictor.read(questions, table=parts.tables["calibration"]).predictions()
    for example, answer in zip(questions.examples, actual, strict=True):
        chosen = answer.at(0.0)
        assert (chosen.text if chosen else None) == (example.answers[0].text if example.answers else None)
        assert chosen is None or chosen.text == example.context[chosen.start : chosen.end]


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_run_loads_and_answers_as_it_did(name, settings, tmp_path):
    config = configure(name, [], settings)
    record = train(config, folder=tmp_path)
    assert record.status == "ok"
    predictor = load_predictor(tmp_path, device="cpu")
    torch.manual_seed(5)
    output = json.loads((tmp_path / "null_odds.json").read_text())
    dev = TASK.load_splits(config.data)["dev"]
    assert {a.id: a.null_odds for a in predictor.read(dev).predictions()} == output


def test_all_models_step_together_on_two_ranks(fleet, step_on_two_ranks):
    everyone = []
    for case in CASES:
        contender = fleet[case]
        rows = list(range(len(contender.parts.tables["train"])))
        batches = [contender.batch(rows=rows[rank::2]) for rank in range(2)]
        everyone.append((case, contender.parts.model, batches))
    first, second = step_on_two_ranks(everyone)
    assert first == second
    assert set(first) == set(CASES)

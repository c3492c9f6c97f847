"""Contract of pre-training models, on encoders of several families, and of our Transformer as a span model.

Companion of ``test_contract.py`` on a handful of stories in blocks of 32 tokens.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
from contract import LazyCases, build_subjects, every_other_row, require_same_step, title

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.contract import (
    Subject,
    difference,
    gradients_reach_all_parameters,
    logits_of,
    output_has_its_shape,
    overfit,
    require,
    same_alone_and_padded,
    saved_weights_load,
    tolerance,
)
from qa_arch.extras.pretraining import recipe
from qa_arch.extras.pretraining.manifest import EXTRA
from qa_arch.extras.pretraining.models import LanguageLogits
from qa_arch.models import store
from qa_arch.records import CALIBRATION, TRAIN

STORIES = [
    f"{name} keeps {n} bees near {town}. On day {n} it rains. {name} sells {n + 3} goats to {town}."
    + " Nobody minds." * n
    for n, (name, town) in enumerate(
        [("Tarn", "Lomm"), ("Mira", "Osk"), ("Bell", "Ryde"), ("Ada", "Wick")], 2
    )
]
CASES = {
    "mlm": "albert",
    "mlm_nsp": "bert",
    "mlm_sop": "roberta",
    "causal": "qa_transformer",
    "denoising": "distilbert",
}
"""Objective -> encoder family, one of them our own Transformer."""


class TextSubject(Subject):
    """A language model."""

    output_type = LanguageLogits

    def batch(self, split: str = TRAIN, rows: list[int] | None = None, multiple: int = 1) -> Any:
        """``multiple`` is unused, as blocks are padded to the longest."""
        table = self.parts.tables[split]
        return recipe.collator(self.config, table)(rows or list(range(len(table))))

    def outputs(self, split: str) -> Any:
        predictor = recipe.LanguagePredictor(self.model, self.parts.tokenizer, self.config)
        return predictor.rank(self.parts.sets[split], table=self.parts.tables[split])[1]

    def save(self, folder) -> None:
        store.save_encoder(folder, self.model.encoder)
        store.save_weights(folder, self.model)

    def load(self, folder) -> Any:
        encoder = store.load_encoder(folder)
        return recipe.build_model(self.config.model, encoder, inputs=recipe.INPUTS)


def targets_have_scores(subject: Subject) -> None:
    """Every target has a finite score for each token of the vocabulary."""
    batch = subject.batch()
    logits = logits_of(subject.model, batch)
    vocabulary = subject.model.encoder.vocab_size
    require(
        logits.tokens.shape[-1] == vocabulary,
        f"{logits.tokens.shape[-1]} scores for a vocabulary of {vocabulary}",
    )
    require(logits.tokens.isfinite().all(), "a score is not finite")
    require(
        (logits.follows is None) == (batch.follows is None), "only one of model and batch has a sentence task"
    )


def text_padding_has_no_effect(subject: Subject) -> None:
    """The content of padding has no effect."""
    if subject.model.encoder.config.model_type == "roberta":
        return  # RoBERTa derives position ids from padding ids
    batch = subject.batch()
    other = replace(batch, ids=batch.ids.where(batch.mask, 7))
    first, second = (logits_of(subject.model, x).tokens[batch.counted] for x in (batch, other))
    change = difference(first, second)
    require(change <= tolerance(first), f"scores change by {change:.2g} with the ids of padding")


def learns_two_stories(subject: Subject) -> None:
    """The model overfits two stories, token by token."""
    blocks = overfit(subject, CALIBRATION, steps=120, lr=1e-2)
    scores = recipe.scores_of(subject.config, subject.parts.tables[CALIBRATION], blocks)
    accuracy, targets, perplexity = (scores[name] for name in ("token_accuracy", "targets", "perplexity"))
    # From [CLS] alone a causal model cannot know which of the two stories follows.
    highest = 100 - 100 * (recipe.objective_of(subject.config) == "causal") / targets
    require(
        math.isclose(accuracy, highest, rel_tol=1e-6), f"{accuracy:.2f} percent of tokens, not {highest:.2f}"
    )
    require(perplexity < 1.2, f"perplexity {perplexity:.2f}, not below 1.2")
    sentences = scores.get("sentence_accuracy")
    require(sentences in (None, 100.0), f"{sentences} percent of the sentence task")


TEXT_CHECKS = (
    output_has_its_shape,
    same_alone_and_padded,
    gradients_reach_all_parameters,
    targets_have_scores,
    text_padding_has_no_effect,
    learns_two_stories,
    saved_weights_load,
)


def configure(case: str, settings: list[str]) -> Config:
    model = [f"model=pretrain/{case}", f"encoder={CASES[case]}", "encoder.init=random"]
    decoder = ["model.dropout=0.0"] if case == "denoising" else []
    return validate(compose([*model, *settings, *decoder]))


@pytest.fixture(scope="module")
def subjects(settings, tmp_path_factory) -> LazyCases:
    """Small models on four stories, in blocks of 32 tokens."""
    folder = tmp_path_factory.mktemp("stories")
    (folder / "train.txt").write_text("\n\n".join(STORIES))
    (folder / "held.txt").write_text("\n\n".join(STORIES[:2]))
    sizes = ["encoder.layers=1", "encoder.width=32", "encoder.heads=2"]
    no_dropout = ["encoder.hidden_dropout=0.0", "encoder.attention_dropout=0.0"]
    data = [f"data.train={folder}/train.txt", f"data.calibration={folder}/held.txt"]
    small = [*settings, *sizes, *no_dropout, *data]
    return build_subjects(lambda case: configure(case, small), TextSubject, recipe.assemble)


def test_every_objective_is_a_case():
    files = (EXTRA.conf / "model" / "pretrain").glob("*.yaml")
    assert {path.stem for path in files} == {*CASES}
    assert {compose([f"model=pretrain/{case}"])["model"]["task"] for case in CASES} == {*EXTRA.recipes}


@pytest.mark.parametrize("check", TEXT_CHECKS, ids=title)
@pytest.mark.parametrize("case", CASES)
def test_model_meets_the_contract(subjects, case, check):
    check(subjects[case])


@pytest.mark.slow
def test_all_models_step_together_on_two_ranks(subjects, step_on_two_ranks):
    require_same_step(subjects, CASES, step_on_two_ranks, every_other_row)

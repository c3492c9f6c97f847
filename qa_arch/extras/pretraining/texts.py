"""What a language model says of a text: masked tokens, whether a sentence follows, continuation, repair.

Axes: ``P`` masked tokens, ``T`` tokens, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.pretraining.blocks import Framing, Padded
from qa_arch.extras.pretraining.models import CausalLM, Denoiser, LanguageBatch, MaskedLM
from qa_arch.extras.pretraining.task import LanguagePredictor
from qa_arch.extras.pretraining.transformer import NextScores, beam_search
from qa_arch.features.words import name_of
from qa_arch.models.build import load_tokenizer
from qa_arch.models.checkpoint_files import CheckpointFiles
from qa_arch.models.span_checkpoint import load_with_head, read_config
from qa_arch.tasks import device_of

MASK = "[MASK]"
"""How a user writes a masked token, whatever the tokenizer calls it."""


class MaskedCheckpoint(NamedTuple):
    """Any ``AutoModelForMaskedLM`` checkpoint: the library's own class, whole."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_masked_checkpoint(files: CheckpointFiles) -> MaskedCheckpoint:
    """Model (in fp32) and tokenizer of ``files``; nothing is downloaded, no code of theirs is run.

    Raises ConfigError for what is no masked language model or was saved without its head, UnavailableError
    for files that cannot be read.
    """
    config = read_config(files)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise ConfigError(
            f"{files.source}: transformers has no masked language model of '{config.model_type}'; name one of"
            " BERT's kind, or a run of model=pretrain/mlm"
        )
    tokenizer = load_tokenizer(str(files.folder))
    remedy = "a bare encoder predicts no tokens, name a checkpoint with its MLM head or a pre-training run"
    model = load_with_head(files, config, AutoModelForMaskedLM, "head of masked language modelling", remedy)
    return MaskedCheckpoint(model.eval(), tokenizer)


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that may stand at a masked place."""

    token: str
    probability: float


@dataclass(frozen=True, slots=True)
class Written:
    """A text that a model wrote."""

    text: str
    log_prob: float
    finished: bool
    """Whether the model ended it; False where it was cut at the largest length."""


def fill(model: LanguagePredictor | MaskedCheckpoint, text: str, top_k: int = 5) -> list[list[Guess]]:
    """For each [MASK] of ``text`` the ``top_k`` most probable tokens, best first.

    Raises ConfigError for a text without a mask or longer than the model reads, RunError for a run of another
    objective.
    """
    tokenizer = model.tokenizer
    row = Framing.of(tokenizer).single([_encode(tokenizer, text)])
    places = (row.ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
    if not places:
        raise ConfigError(f"the text has no {MASK}: put it where a token is to be predicted")
    with torch.inference_mode():
        probabilities = _mask_scores(model, row, places).float().softmax(-1)
    best = probabilities.topk(min(top_k, probabilities.shape[-1]))
    return [
        [
            Guess(tokenizer.decode([token]).strip() or tokenizer.convert_ids_to_tokens(token), chance)
            for token, chance in zip(tokens, chances, strict=True)
        ]
        for tokens, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _mask_scores(model: LanguagePredictor | MaskedCheckpoint, row: Padded, places: list[int]) -> Tensor:
    """(P, V) scores of the tokens at ``places``."""
    length = row.ids.shape[1]
    if isinstance(model, LanguagePredictor):
        own = _require(model, MaskedLM, "pretrain/mlm")
        _check_length(length, own.encoder.max_tokens)
        return own(_batch(model, row, places)).tokens[0]
    _check_length(length, getattr(model.model.config, "max_position_embeddings", None))
    ids = torch.from_numpy(row.ids)
    return model.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, places]


def follows(predictor: LanguagePredictor, first: str, second: str) -> float:
    """The probability that ``second`` follows ``first`` in a text; RunError for a run without that task."""
    model = predictor.model
    if not isinstance(model, MaskedLM) or model.sentence is None:
        raise RunError(
            "this run was not trained on pairs of sentences; name one of model=pretrain/mlm_nsp or mlm_sop"
        )
    tokenizer = predictor.tokenizer
    row = Framing.of(tokenizer).pair([(_encode(tokenizer, first), _encode(tokenizer, second))])
    with torch.inference_mode():
        logits = model(_batch(predictor, row, [0]))
    assert logits.follows is not None
    return float(logits.follows.float().sigmoid())


def continuation(predictor: LanguagePredictor, text: str, *, max_tokens: int = 30, beams: int = 1) -> Written:
    """How ``text`` goes on: greedily, or by beam search. RunError for a run of another objective."""
    model = _require(predictor, CausalLM, "pretrain/causal")
    tokenizer, framing = predictor.tokenizer, Framing.of(predictor.tokenizer)
    prompt = [*framing.before, *_encode(tokenizer, text)]
    limit = (model.encoder.max_tokens or len(prompt) + max_tokens) - len(prompt)
    _check_length(len(prompt) + 1, model.encoder.max_tokens)

    def next_scores(ids: Tensor, row: Tensor) -> Tensor:
        real = torch.ones_like(ids, dtype=torch.bool)
        segments = torch.zeros_like(ids) if model.encoder.has_segments else None
        batch = LanguageBatch(row, ids, real, segments, ids, real, torch.ones(len(ids)))
        return model(batch).tokens[:, -1]

    return _write(predictor, next_scores, prompt, framing.separator, min(max_tokens, limit), beams)


def repair(predictor: LanguagePredictor, text: str, *, beams: int = 1) -> Written:
    """``text`` as the model thinks it was before spans were hidden behind [MASK]; RunError for a run of
    another objective."""
    model = _require(predictor, Denoiser, "pretrain/denoising")
    framing = Framing.of(predictor.tokenizer)
    row = framing.single([_encode(predictor.tokenizer, text)])
    batch = _batch(predictor, row, [0])
    _check_length(row.ids.shape[1], model.encoder.max_tokens)
    with torch.inference_mode():
        memory = model.encoder(batch.ids, batch.mask, batch.segments)

    def next_scores(ids: Tensor, rows: Tensor) -> Tensor:
        return model.decode(ids, memory[rows], batch.mask[rows])[:, -1]

    limit = model.positions.num_embeddings - 1
    return _write(predictor, next_scores, list(framing.before), framing.separator, limit, beams)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    if not text.strip():
        raise ConfigError("the text is empty; give one")
    if tokenizer.mask_token is None:
        raise ConfigError(f"{name_of(tokenizer)} has no mask token, so nothing can be asked for")
    return tokenizer(text.replace(MASK, tokenizer.mask_token), add_special_tokens=False)["input_ids"]


def _batch(predictor: LanguagePredictor, row: Padded, places: list[int]) -> LanguageBatch:
    """A single row as a batch that predicts the tokens at ``places``."""
    ids, positions = torch.from_numpy(row.ids), torch.tensor([places])
    batch = LanguageBatch(
        index=torch.zeros(1, dtype=torch.long),
        ids=ids,
        mask=torch.from_numpy(row.mask),
        segments=torch.from_numpy(row.segments) if predictor.model.encoder.has_segments else None,
        targets=ids.gather(1, positions),
        counted=torch.ones_like(positions, dtype=torch.bool),
        weight=torch.ones(1),
        positions=positions,
    )
    return batch.to(device_of(predictor.model))


def _require(predictor: LanguagePredictor, kind: type, model: str) -> Any:
    if isinstance(predictor.model, kind):
        return predictor.model
    task = predictor.config.model["task"]
    raise RunError(f"this run is of task {task}; name one of model={model}")


def _check_length(tokens: int, limit: int | None) -> None:
    if limit is not None and tokens > limit:
        raise ConfigError(f"the text has {tokens} tokens and the model reads {limit}; shorten it")


def _write(
    predictor: LanguagePredictor,
    next_scores: NextScores,
    prompt: list[int],
    end: int,
    max_length: int,
    beams: int,
) -> Written:
    """The best text behind ``prompt``; special tokens other than the end are never written."""
    tokenizer, device = predictor.tokenizer, device_of(predictor.model)
    barred = torch.tensor(sorted({*tokenizer.all_special_ids} - {end}), device=device)

    def open_scores(ids: Tensor, row: Tensor) -> Tensor:
        return next_scores(ids, row).float().index_fill(1, barred, -torch.inf)

    start = torch.tensor([prompt], device=device)
    [[best, *_]] = beam_search(open_scores, start, end=end, max_length=max_length, beams=beams)
    return Written(tokenizer.decode(list(best.ids)), best.log_prob, best.finished)

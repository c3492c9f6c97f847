"""Several runs as one predictor, where all of them cut texts into the same windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from qa_arch.errors import ConfigError, RunError
from qa_arch.features.glove import WordVectors
from qa_arch.features.template import backend_of, unlimited
from qa_arch.models.ensemble import Ensemble
from qa_arch.predict.precision import Precision
from qa_arch.predict.predictor import Predictor, load
from qa_arch.predict.selection import SelectionPredictor


def load_ensemble(
    runs: Sequence[str | Path],
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
) -> Predictor:
    """The mean of the runs' probabilities as one predictor; of one run, the run itself.

    Decoding follows the config of the first run; the null margin is the mean of theirs. Raises
    ConfigError for a run named twice, RunError where two runs have different tokenizers or windows.
    """
    if len({Path(run).resolve() for run in runs}) < len(runs):
        raise ConfigError("an ensemble names each run once")
    members = [_of_spans(run, load(run, device=device, precision=precision, trust=trust)) for run in runs]
    first = members[0]
    if len(members) == 1:
        return first
    for run, member in zip(runs[1:], members[1:], strict=True):
        _require_same_windows(runs[0], first, run, member)
    tables = [member.vectors for member in members]
    vectors = _index(tables)
    model = Ensemble([member.model for member in members], [_rows(vectors, table) for table in tables])
    margins = [member.margin for member in members]
    return Predictor(
        model.to(next(first.model.parameters()).device),
        first.tokenizer,
        vectors,
        first.config,
        segments=first.segments,
        margin=sum(margins) / len(margins) if all(map(math.isfinite, margins)) else math.inf,
        record=first.record,
        precision=precision,
    )


def _of_spans(run: str | Path, member: Predictor | SelectionPredictor) -> Predictor:
    if isinstance(member, Predictor):
        return member
    raise RunError(
        f"{run}: this run selects answers from candidates and finds none in a text; qa-arch evaluate --run"
        " scores it, qa_arch.load(RUN)(question, candidates) ranks"
    )


def _index(tables: Sequence[WordVectors | None]) -> WordVectors | None:
    """The words of all tables, without vectors: what the batches of an ensemble refer to."""
    if all(table is None for table in tables):
        return None
    words = tuple(dict.fromkeys(word for table in tables if table is not None for word in table.words))
    return WordVectors(words, np.zeros((len(words) + 1, 0), np.float32))


def _rows(vectors: WordVectors | None, table: WordVectors | None) -> torch.Tensor | None:
    """Row in ``table`` of every row of ``vectors``; row 0 is the unknown word of both."""
    if vectors is None or table is None:
        return None
    return torch.cat([torch.zeros(1, dtype=torch.long), torch.from_numpy(table.rows(vectors.words))])


def _require_same_windows(first: str | Path, one: Predictor, second: str | Path, other: Predictor) -> None:
    for name in ("max_length", "stride", "max_question"):
        ours, theirs = (getattr(member.config.features, name) for member in (one, other))
        if ours != theirs:
            raise RunError(
                f"{second}: features.{name} is {theirs}, that of {first} is {ours}: only runs that read the"
                " same windows make an ensemble"
            )
    if one.segments != other.segments or _vocabulary(one) != _vocabulary(other):
        raise RunError(
            f"{second}: its tokenizer is not that of {first}: only runs that read the same tokens make an"
            " ensemble"
        )


def _vocabulary(member: Predictor) -> str:
    with unlimited(backend_of(member.tokenizer)) as backend:
        return backend.to_str()

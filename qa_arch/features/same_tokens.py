"""Whether two tokenizers cut texts into the same tokens with the same ids."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Features
from qa_arch.errors import ConfigError
from qa_arch.features.cache import windows_of
from qa_arch.features.template import backend_of, unlimited
from qa_arch.types.text import QuestionSet


def require_same_tokens(
    first: PreTrainedTokenizerBase,
    second: PreTrainedTokenizerBase,
    questions: QuestionSet,
    settings: Features,
    *,
    names: tuple[str, str],
) -> None:
    """Raise ConfigError where two tokenizers do not give the same windows, with the first piece that differs.

    Their vocabularies have to be equal; where the rest of them is not (case folding, say), so have the
    windows of ``questions``. ``names``: what to call the two.
    """
    pieces, others = ({id_: piece for piece, id_ in t.get_vocab().items()} for t in (first, second))
    if pieces != others:
        differing = min(id_ for id_ in pieces.keys() | others.keys() if pieces.get(id_) != others.get(id_))
        sizes = "unlike pieces"
        if len(pieces) != len(others):
            sizes = f"{len(pieces):,} and {len(others):,} pieces"
        raise ConfigError(
            f"{names[0]} and {names[1]} do not read the same tokens: their vocabularies have {sizes}, number"
            f" {differing} is {pieces.get(differing)!r} and {others.get(differing)!r}"
        )
    if _whole(first) == _whole(second):
        return
    tables = [windows_of(questions, t, settings, segments=False) for t in (first, second)]
    if tables[0].template != tables[1].template:
        raise ConfigError(f"{names[0]} and {names[1]} do not put the same special tokens around a question")
    ids = [table.ids for table in tables]
    shared = min(map(len, ids))
    unlike = np.flatnonzero(ids[0][:shared] != ids[1][:shared])
    if len(unlike) or len(ids[0]) != len(ids[1]):
        at = int(unlike[0]) if len(unlike) else shared - 1
        raise ConfigError(
            f"{names[0]} and {names[1]} do not read the same tokens: where the former cuts"
            f" {pieces[int(ids[0][at])]!r} out of a training text, the latter has {pieces[int(ids[1][at])]!r}"
        )


def _whole(tokenizer: PreTrainedTokenizerBase) -> str:
    with unlimited(backend_of(tokenizer)) as backend:
        return backend.to_str()

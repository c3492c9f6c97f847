"""``hub:NAME[@REVISION]:SPLIT``: a split of a data set on the Hugging Face hub with SQuAD's columns.

``hub:rajpurkar/squad_v2:validation``; slices such as ``train[:10%]`` work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from qa_arch.data.formats import Format, OnError
from qa_arch.data.question_sets import QuestionSetBuilder, RawQuestion
from qa_arch.errors import DataError, UnavailableError
from qa_arch.types.text import QuestionSet

_NAMES = {"squad": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}


def read_hub(
    dataset: str, split: str, *, name: str = "", on_error: OnError = "raise", revision: str | None = None
) -> QuestionSet:
    """Read a split of a hub data set with SQuAD's columns (``rajpurkar/squad``, ``rajpurkar/squad_v2``).

    ``dataset`` may be a local folder that ``datasets`` loads. Raises UnavailableError where the hub cannot be
    reached and nothing is cached, DataError for an unknown split or faulty records.
    """
    dataset = _NAMES.get(dataset, dataset)
    source = f"hub:{dataset}{'@' + revision if revision else ''}:{split}"
    builder = QuestionSetBuilder(on_error)
    rows = _rows(dataset, split, revision, source)
    builder.add(source, (RawQuestion(f"row {index}", row, nested=False) for index, row in enumerate(rows)))
    return builder.build(name or f"{dataset}:{split}")


def _open(sources: Sequence[str], *, name: str, on_error: OnError) -> QuestionSet:
    dataset, _, split = sources[0].partition(":")
    dataset, _, revision = dataset.partition("@")
    if not dataset or not split:
        raise DataError(f"hub:{sources[0]}: write hub:NAME:SPLIT, such as hub:rajpurkar/squad_v2:validation")
    return read_hub(dataset, split, name=name, on_error=on_error, revision=revision or None)


def _rows(dataset: str, split: str, revision: str | None, source: str) -> Iterable[dict[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UnavailableError(f"{source}: datasets is missing ({error}); pip install datasets") from None
    try:
        return load_dataset(dataset, split=split, revision=revision)
    except Exception as error:  # the clients of the hub raise errors of many libraries
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, ValueError) and reason.startswith(("Unknown split", "Bad split")):
            raise DataError(f"{source}: {reason}; name an existing split") from error
        raise UnavailableError(
            f"{source}: cannot be loaded ({type(error).__name__}: {reason}); check the name and the network, "
            "or give SQuAD JSON files by path instead"
        ) from error


FORMAT = Format("hub:NAME:SPLIT", "a hub set", open=_open, files=lambda source: (), offline=False)

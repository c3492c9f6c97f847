"""``hub:NAME[@REVISION]:SPLIT``: a split of a Hugging Face data set with SQuAD's columns.

``hub:rajpurkar/squad_v2:validation``; slices such as ``train[:10%]`` work.
"""

from __future__ import annotations

from collections.abc import Sequence

from qa_arch.data.formats import Format, OnError
from qa_arch.data.question_sets import RawQuestion, build
from qa_arch.errors import DataError, UnavailableError, first_line
from qa_arch.types.text import QuestionSet

_NAMES = {"squad": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}


def split_source(source: str) -> tuple[str, str, str]:
    """(data set, revision, split) of a source without its scheme; missing parts are empty."""
    name, _, split = source.partition(":")
    dataset, _, revision = name.partition("@")
    return _NAMES.get(dataset, dataset), revision, split


def _open(sources: Sequence[str], *, name: str, on_error: OnError) -> QuestionSet:
    """Read a split with SQuAD's columns; NAME may be a local folder that ``datasets`` loads.

    Raises UnavailableError if the hub cannot be reached and nothing is cached, DataError for an unknown split
    or faulty records.
    """
    dataset, revision, split = split_source(sources[0])
    if not dataset or not split:
        raise DataError(f"hub:{sources[0]}: write hub:NAME:SPLIT, such as hub:rajpurkar/squad_v2:validation")
    from datasets import load_dataset

    source = f"hub:{dataset}{'@' + revision if revision else ''}:{split}"
    try:
        rows = load_dataset(dataset, split=split, revision=revision or None)
    except Exception as error:  # hub clients raise errors of many libraries
        reason = first_line(error)
        if isinstance(error, ValueError) and reason.startswith(("Unknown split", "Bad split")):
            raise DataError(f"{source}: {reason.rstrip('.')}; name an existing split") from error
        raise UnavailableError(
            f"{source}: cannot be loaded ({type(error).__name__}: {reason}); check the name and the network, "
            "or give SQuAD JSON files by path instead"
        ) from error
    batches = rows.with_format("arrow").iter(batch_size=1000)  # row by row takes six times as long
    records = (record for batch in batches for record in batch.to_pylist())
    questions = (RawQuestion(f"row {index}", record) for index, record in enumerate(records))
    return build(name or f"{dataset}:{split}", [(source, False, questions)], on_error)


FORMAT = Format("hub:NAME:SPLIT", "a hub set", open=_open, files=lambda source: (), offline=False)

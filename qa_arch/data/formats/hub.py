"""``hub:NAME[@REVISION]:SPLIT[:CONFIG]``: a split of a Hugging Face data set with SQuAD's columns.

``hub:rajpurkar/squad_v2:validation``, ``hub:google/xquad:validation:xquad.de``; slices such as
``train[:10%]`` work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.question_sets import RawQuestion, build
from qa_arch.errors import DataError, UnavailableError, first_line, one_line
from qa_arch.system import hub
from qa_arch.types.text import QuestionSet

_NAMES = {"squad": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}


def split_source(source: str) -> tuple[str, str, str, str]:
    """(data set, revision, split, configuration) of a source without its scheme; missing parts are empty."""
    name, _, rest = source.partition(":")
    dataset, _, revision = name.partition("@")
    split = re.match(r"(?:\[[^]]*]?|[^:\[])*", rest)  # a colon in brackets belongs to a slice
    assert split is not None
    return _NAMES.get(dataset, dataset), revision, split[0], rest[split.end() + 1 :]


def _open(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> QuestionSet:
    """Read a split with SQuAD's columns; NAME may be a local folder that ``datasets`` loads.

    Raises UnavailableError if the hub cannot be reached and nothing is cached, DataError for an unknown split
    or configuration, or faulty records.
    """
    dataset, revision, split, config = split_source(sources[0])
    if not dataset or not split:
        raise DataError(
            f"hub:{sources[0]}: write hub:NAME:SPLIT or hub:NAME:SPLIT:CONFIG, such as"
            " hub:rajpurkar/squad_v2:validation"
        )
    source = f"hub:{dataset}{'@' + revision if revision else ''}:{split}{':' + config if config else ''}"
    try:
        rows = hub.retried(lambda: _load(dataset, revision, split, config))
    except Exception as error:  # hub clients raise errors of many libraries
        reason = one_line(error, 400)
        if isinstance(error, ValueError) and reason.startswith(("Unknown split", "Bad split")):
            raise DataError(f"{source}: {reason.rstrip('.')}; name an existing split") from error
        if isinstance(error, ValueError) and re.match(
            "Config name is missing|BuilderConfig .*not found", reason
        ):
            remedy = f"name a configuration: hub:{dataset}:{split}:CONFIG"
            raise DataError(f"{source}: {remedy} ({reason})") from error
        cause = hub.interruption(error) or f"{type(error).__name__}: {first_line(error)}"
        raise UnavailableError(
            f"{source}: cannot be loaded ({cause}); check the name and the network, "
            "or give SQuAD JSON files by path instead"
        ) from error
    batches = rows.with_format("arrow").iter(batch_size=1000)  # row by row takes six times as long
    records = (record for batch in batches for record in batch.to_pylist())
    questions = (RawQuestion(f"row {index}", record) for index, record in enumerate(records))
    title = name or ":".join(filter(None, (dataset, split, config)))
    return build(title, [(source, False, questions)], on_error, use)


def _load(dataset: str, revision: str, split: str, config: str) -> Any:
    """The rows of a split. Offline, ``datasets`` takes the newest that it has of any revision."""
    import datasets

    pinned = revision not in ("", "main") and not Path(dataset).is_dir()
    if not pinned or not datasets.config.HF_HUB_OFFLINE:
        return datasets.load_dataset(dataset, config or None, split=split, revision=revision or None)
    folder = hub.prepared(dataset, config, revision)
    if folder is None:
        raise FileNotFoundError(f"revision {revision} was not downloaded before")
    from datasets.packaged_modules.cache.cache import Cache

    name, version, commit = folder.parts[-3:]
    short = dataset.rpartition("/")[2]
    builder = Cache(dataset_name=short, config_name=name, version=version, hash=commit, repo_id=dataset)
    return builder.as_dataset(split=split)


FORMAT = Format("hub:NAME:SPLIT[:CONFIG]", "a hub set", open=_open, files=lambda source: (), offline=False)

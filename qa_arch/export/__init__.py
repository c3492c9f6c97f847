"""Export trained span models as a Hugging Face folder or an ONNX graph; here what both need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qa_arch.data.synthetic import generate
from qa_arch.errors import RunError
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.files import replacing_folder
from qa_arch.qa.reader import Reader
from qa_arch.records import changing
from qa_arch.tensors import Batch

SAMPLE = 3
"""Windows of ``sample``: the tracer would take a single one for a constant."""


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` at the end of the block, or is removed on an error.

    Raises RunError if ``path`` is not empty, QaArchError if it cannot be written.
    """
    target = Path(path)
    with changing(target, "folder", replaced=True):
        if target.is_file() or (target.is_dir() and any(target.iterdir())):
            raise RunError(f"{target}: exists already; name a new folder, or remove it first")
        with replacing_folder(target) as temporary:
            yield temporary


def sizes(folder: Path) -> Counter[str]:
    """Bytes of each file and subfolder of ``folder``."""
    total: Counter[str] = Counter()
    for file in filter(Path.is_file, folder.rglob("*")):
        total[file.relative_to(folder).parts[0]] += file.stat().st_size
    return total


def sample(predictor: Reader) -> Batch:
    """A few windows of generated questions, which every model can read."""
    table = predictor.table(generate(1, 0), cache=False)
    return Collator(table, vector_rows(predictor.vectors, table), labels=False)(range(SAMPLE))

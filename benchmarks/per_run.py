"""What a run pays once, beside its steps: word vectors, rows of a data set on the hub, and all that follows
the last step. Files are made for the row."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.growth import generated_set
from benchmarks.inputs import SEED, hub_row
from benchmarks.memory import peak_resident
from benchmarks.targets import Measure, Measurement, cost
from benchmarks.timing import alternate, once
from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.features.vectors import file_vectors
from qa_arch.files import write_json

WORDS, WIDTH = 219_602, 300
"""A tenth of GloVe 840B."""
LOOKED_UP = 20_000
"""Distinct words of the passages, at the end of the file."""
ROWS_READ = 20_000


@contextmanager
def vectors_config(quick: bool) -> Iterator[tuple[Config, list[str]]]:
    """Settings with a made file of vectors and an empty cache, and the words of a run."""
    share = 20 if quick else 1
    count = WORDS // share
    drawn = np.random.default_rng(SEED).normal(0, 0.4, (100, WIDTH))
    numbers = [" ".join(f"{value:.5f}" for value in row) for row in drawn]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "vectors.txt")
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"w{n} {numbers[n % 100]}\n" for n in range(count))
        words = ["model=proposed", "glove=file", f"glove.path={path}", f"features.cache_dir={temporary}"]
        yield validate(compose(words)), [f"w{n}" for n in range(count - LOOKED_UP // share, count)]


def vectors_first(quick: bool) -> Measurement:
    """Read the vectors of a run from the text file, and write them into the cache."""
    with vectors_config(quick) as given:
        times = once(partial(file_vectors, *given))
    size = f"{WORDS // 20 if quick else WORDS:,} words × {WIDTH}"
    return Measurement(times.wall, times.cpu, times, note=f"{size}; all of the file are {10 * WORDS:,}")


def vectors_memory(quick: bool) -> Measurement:
    with vectors_config(quick) as given:
        peak = peak_resident(partial(file_vectors, *given)) * 2**20 / 1e6
    return Measurement(peak, note="private memory beyond that before")


def vectors_cached(quick: bool) -> Measurement:
    """The same words again."""
    with vectors_config(quick) as given:
        file_vectors(*given)
        times = once(partial(file_vectors, *given))
    return Measurement(times.wall, times.cpu, times)


def hub_rows(quick: bool) -> Measurement:
    """Read questions from a data set as ``datasets`` keeps it, and from SQuAD's JSON."""
    questions = generated_set(ROWS_READ // 20 if quick else ROWS_READ)
    with tempfile.TemporaryDirectory() as temporary:
        folder, file = Path(temporary, "set"), Path(temporary, "set.json")
        write_json(file, write(questions), indent=None)
        folder.mkdir()
        pq.write_table(
            pa.Table.from_pylist([hub_row(example) for example in questions.examples]),
            folder / "train.parquet",
        )
        pairs = alternate(lambda: open_passages(f"hub:{folder}:train"), lambda: open_passages(str(file)), 3)
    return cost(pairs, f"{len(questions):,} questions")


def after_training(quick: bool) -> Measurement:
    """Everything between the last step and the return of ``train``, over the time of the epoch.

    The demo's encoder and data, where scoring costs more of an epoch than for a larger encoder.
    """
    from qa_arch.training.module import TrainingModule
    from qa_arch.training.run import train

    starts: list[float] = []
    step = TrainingModule.training_step

    def noted(self, batch, batch_idx):
        starts.append(time.perf_counter())
        return step(self, batch, batch_idx)

    settings = ["model=bert", "experiment=demo", "trainer.progress=false"]
    settings += ["data.train_questions=500"] if quick else []
    with (
        tempfile.TemporaryDirectory() as temporary,
        mock.patch.object(TrainingModule, "training_step", noted),
    ):
        config = validate(compose([*settings, f"features.cache_dir={temporary}/cache"]))
        record = train(config, folder=Path(temporary, "run"))
        after = time.perf_counter() - starts[-1]
    epoch = starts[-1] - starts[0]
    sizes = ", ".join(f"{facts.questions:,} of {split}" for split, facts in record.data.items())
    return Measurement(after / epoch, note=f"{after:.1f} s after {epoch:.1f} s; questions: {sizes}")


ROWS: dict[str, Measure] = {
    "glove-840b": vectors_first,
    "glove-840b-memory": vectors_memory,
    "glove-840b-cached": vectors_cached,
    "hub-rows": hub_rows,
    "after-training": after_training,
}

"""``qa_arch.load(run)``: a trained run that answers questions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import SELECTING, Config, validate
from qa_arch.config.target import TRUSTED
from qa_arch.data.squad import question_set
from qa_arch.decode.answers import Ranking, answers
from qa_arch.errors import RunError
from qa_arch.features.cache import windows_of
from qa_arch.features.glove import WordVectors, vector_rows
from qa_arch.features.table import FeatureTable
from qa_arch.models.assemble import build_model
from qa_arch.predict import store
from qa_arch.predict.precision import Precision, lower
from qa_arch.predict.question_types import with_types
from qa_arch.predict.reading import read_out
from qa_arch.predict.selection import SelectionPredictor
from qa_arch.results.record import MODEL, read_record
from qa_arch.types.records import RunRecord
from qa_arch.types.text import Answer, Example, QuestionSet, SelectionSet

TYPES = "types"
"""Folders: of the model in a run, and in that of the classifier of questions whose classes it reads."""
PART = 1000
"""Questions held at once where a set is read in parts: enough to sort windows by length."""


class Predictor:
    """Answers questions about texts of any length.

    ``margin`` is the null margin fitted on the run's calibration split: an answer is given unless
    "no answer" scores higher by more than that (``Answer.at(margin)``).
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        vectors: WordVectors | None,
        config: Config,
        *,
        segments: bool,
        margin: float,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self.model, self.tokenizer, self.vectors = model.eval(), tokenizer, vectors
        self.segments = segments
        self.config, self.margin, self.record = config, margin, record
        self.precision: Precision = precision

    def __call__(self, question: str, context: str) -> Answer:
        """The answer to one question; a blank question or text has none (``best`` is None)."""
        if not question.strip() or not context.strip():
            return Answer(id="0", best=None, null_odds=float("inf"), windows=0)
        example = Example(id="0", question=question, context=context)
        text = repr((question, context)).encode()
        single = QuestionSet("asked", (example,), "2.0", hashlib.sha256(text).hexdigest())
        return answers(self.read(single, cache=False))[0]

    def read(
        self,
        questions: QuestionSet,
        *,
        cache: bool = True,
        batch_size: int | None = None,
        watch: Callable[[int, int], None] | None = None,
    ) -> Ranking:
        """The ranked answers to each question of a set, in order; ``decode.answers`` makes them objects."""
        table = self.features(questions, cache=cache)
        return read_out(
            self.model,
            questions,
            table,
            self.config.decode,
            vectors=vector_rows(self.vectors, table),
            batch_size=batch_size or self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )

    def read_parts(
        self,
        questions: QuestionSet,
        *,
        size: int = PART,
        batch_size: int | None = None,
        watch: Callable[[int, int], None] | None = None,
    ) -> Iterator[Ranking]:
        """``read`` for any number of questions in the memory of ``size``: one ranking a part, in order.

        Features are made anew for each part. ``watch(done, all)`` is told the number of questions.
        """
        for begin in range(0, len(questions), size):
            part = questions.examples[begin : begin + size]
            yield self.read(
                question_set(questions.name, part, questions.protocol), cache=False, batch_size=batch_size
            )
            if watch is not None:
                watch(begin + len(part), len(questions))

    def features(self, questions: QuestionSet, *, cache: bool = True) -> FeatureTable:
        """The windows of a set under the settings that the model was trained with."""
        settings = self.config.features if cache else replace(self.config.features, cache_dir=None)
        return windows_of(questions, self.tokenizer, settings, segments=self.segments)


def load(
    run: str | Path,
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
) -> Predictor | SelectionPredictor:
    """The best model of a run folder, ready to answer: to find a span, or to select an answer.

    Weights come from safetensors and classes from trusted packages only (``trust`` adds prefixes).
    ``int8`` needs a CPU, the default device then. Raises RunError where the folder is not a finished
    run, ConfigError for an untrusted target, UnavailableError for a precision that the device has not.
    """
    folder = Path(run)
    record = read_record(folder)
    if record.status != "ok":
        raise RunError(
            f"{folder}: the run's status is '{record.status}', only a finished one can answer;"
            " go on with it: qa-arch train --config-from RUN --folder RUN --if-exists resume"
        )
    if not (folder / MODEL).is_dir():
        raise RunError(
            f"{folder}: has no weights (no folder {MODEL}), as a published record has none; train the run"
            f" again: qa-arch train --config-from {folder} --folder RUN"
        )
    config = validate(record.config)
    selects = config.model["task"] in SELECTING
    encoder = None if selects else store.load_encoder(folder / MODEL)
    vectors = store.load_vectors(folder / MODEL)
    model = build_model(config.model, encoder, store.vector_tensor(vectors), (*TRUSTED, *trust))
    store.load_weights(folder / MODEL, model)
    where = device or ("cuda" if torch.cuda.is_available() and precision != "int8" else "cpu")
    model = lower(model.to(where), precision)
    if encoder is None:
        if vectors is None:
            raise RunError(f"{folder / MODEL}: holds no word vectors; the run is incomplete, train it again")
        typed = _typist(folder / MODEL / TYPES, where, trust) if config.selection.types else None
        return SelectionPredictor(model, vectors, config, record=record, precision=precision, typed=typed)
    return Predictor(
        model,
        store.load_tokenizer(folder / MODEL),
        vectors,
        config,
        segments=encoder.has_segments,
        margin=_margin(record),
        record=record,
        precision=precision,
    )


def _typist(
    folder: Path, device: str | torch.device, trust: Sequence[str]
) -> Callable[[SelectionSet], SelectionSet]:
    """What gives questions their class: the classifier that was saved with the run."""
    classifier = load(folder, device=device, trust=trust)
    assert isinstance(classifier, SelectionPredictor)
    return partial(with_types, classifier=classifier)


def _margin(record: RunRecord) -> float:
    """The fitted margin; None in the record means that "no answer" is never given."""
    value = record.threshold.value if record.threshold else 0.0
    return math.inf if value is None else float(value)

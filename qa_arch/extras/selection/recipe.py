"""The recipe of answer selection: find the right answer among candidates (Tan et al. 2015), or the class of a
question (Di Gennaro et al. 2020).

``train`` shows the whole way. The trained model ranks candidates, compares two questions, or classifies
questions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from qa_arch.config.schema import Config, require_vectors, validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError
from qa_arch.evaluation import Reading, load_references, read_set, reference_scores
from qa_arch.extras.selection.features import (
    CandidateCollator,
    SelectionBatch,
    SelectionTable,
    candidate_vectors,
    selection_table,
    settings_of,
    word_rows,
)
from qa_arch.extras.selection.manifest import Selection
from qa_arch.extras.selection.sets import (
    CLASSES,
    SelectionQuestion,
    SelectionSet,
    class_set,
    load_splits,
    selection_set,
    words,
)
from qa_arch.features.batches import EpochBatchSampler
from qa_arch.features.vectors import WordVectors, unread_width
from qa_arch.files import write_json
from qa_arch.metrics.abstention import auroc
from qa_arch.models import store
from qa_arch.models.store import build_model, check_model
from qa_arch.nn.features import parameter_blocks
from qa_arch.nn.losses import Loss, build_loss
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.nn.reading import Batches, RowCollector, Watch, run_model
from qa_arch.records import (
    CALIBRATION,
    DEV,
    MODEL,
    TRAIN,
    Parameters,
    Point,
    Points,
    RunRecord,
    SplitFacts,
    questions_folder,
    write_questions,
)
from qa_arch.training.module import Fitting
from qa_arch.training.run import OpenRun

INPUTS = ("vectors",)
METRIC_VERSION = "selection-1"
POINT = "ranked"
"""The operating point of the scores: candidates are ranked, there is no threshold."""
Scored = Mapping[int, Sequence[float]] | Sequence[Sequence[float]]
"""Row of the question -> scores of its candidates, in order."""

log = logging.getLogger(__name__)


def train(run: OpenRun) -> None:
    """Learn to rank: read the sets, build tables and model, fit it, score it and the heuristics."""
    config = run.config
    parts = assemble(config, run.trusted)
    facts = {
        split: facts_of(questions, parts.tables[split], titles=split != DEV)
        for split, questions in parts.sets.items()
    }
    run.describe(parts.sets, facts, parts.model, vectors=parts.vectors)
    store.save_vectors(run.model_folder, parts.vectors)
    run.fit(fitting(config, parts))
    predictor = SelectionPredictor(parts.model, parts.vectors, config)
    for split in (CALIBRATION, DEV):
        if split in parts.sets:
            reading = read_set(predictor, parts.sets[split], table=parts.tables[split], facts_of=facts_of)
            scored = score(predictor, reading, run.folder, split=split)
            references = heuristics(config, parts.sets[split], run.trusted)
            run.add_scores(split, *scored, reading.seconds, references=references)
    run.finish()


# Data and model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelectionParts:
    """Question sets and their tables by split, word vectors, model and loss."""

    sets: Mapping[str, SelectionSet]
    tables: Mapping[str, SelectionTable]
    vectors: WordVectors
    model: nn.Module
    loss: Loss


def assemble(config: Config, trusted: Sequence[str] = TRUSTED) -> SelectionParts:
    """Load the sets and word vectors, and build tables, model and loss."""
    sets, settings = load_splits(config), settings_of(config)
    for split, questions in sets.items():
        log.info(
            "%s: %d questions, %d left out, %d answers",
            split,
            len(questions),
            questions.left_out,
            len(questions.answers),
        )
    vectors = candidate_vectors(config, sets)
    row = word_rows(vectors, settings.unknown_buckets)
    tables = {split: selection_table(questions, row, settings) for split, questions in sets.items()}
    model = build_model(config.model, None, vectors, trusted, inputs=INPUTS)
    return SelectionParts(sets, tables, vectors, model, build_loss(config, trusted, margin=settings.margin))


def check(config: Config, trusted: Sequence[str] = TRUSTED) -> None:
    """Raise ConfigError if model, loss or heuristics cannot be built, or fixed vectors would be random."""
    require_vectors(config)
    if not config.glove.use and config.model.get("train_vectors") is False:
        raise ConfigError(
            "model.train_vectors: without a file of word vectors (glove=none) they are random and must be"
            " trained; set it to true or name a file (glove=file glove.path=...)"
        )
    if _classifies(config) and (count := config.model.get("classes", len(CLASSES))) != len(CLASSES):
        raise ConfigError(f"model.classes: must be {len(CLASSES)}, not {count}; remove the setting")
    check_model(config.model, trusted, inputs=INPUTS, with_vectors=config.glove.use)
    margin = settings_of(config).margin
    loss = build_loss(config, trusted, margin=margin)
    if margin != Selection.margin and not hasattr(loss, "margin"):
        raise ConfigError(
            f"selection.margin: {margin:g} has no effect with {type(loss).__name__}; leave it out, or choose"
            " loss=hinge"
        )
    load_references(config, trusted, "rank")


def count_parameters(config: Config, trusted: Sequence[str] = TRUSTED) -> Parameters:
    """Count on the meta device. Reads the data, whose words determine the number of trained vectors."""
    if config.glove.use and (width := unread_width(config.glove)) is not None:
        shape: tuple[int, ...] = 1, width
    else:
        shape = candidate_vectors(config, load_splits(config)).matrix.shape
    with torch.device("meta"):
        return parameter_blocks(build_model(config.model, None, torch.empty(shape), trusted, inputs=INPUTS))


def _classifies(config: Config) -> bool:
    """Whether every class is a candidate of every question (Di Gennaro et al. 2020)."""
    return config.model["task"] == "classification"


def facts_of(questions: SelectionSet, table: SelectionTable, *, titles: bool = False) -> SplitFacts:
    candidates = sum(len(question.candidates) for question in questions.questions)
    return SplitFacts(
        name=questions.name,
        fingerprint=questions.fingerprint,
        protocol=questions.protocol,
        questions=len(questions),
        candidates=round(candidates / len(questions), 2),
        answers=len(questions.answers),
        titles=tuple(sorted(questions.titles)) if titles else (),
        left_out=questions.left_out,
    )


# Fit ------------------------------------------------------------------------------------------------


def fitting(config: Config, parts: SelectionParts) -> Fitting:
    """Training pairs with negatives sampled anew every epoch; all candidates for validation.

    A classifier trains with all wrong classes as negatives, so its loss is a softmax over the classes.
    """
    answers = len(parts.sets[TRAIN].answers)
    negatives = answers - 1 if _classifies(config) else settings_of(config).negatives
    held = parts.tables.get(CALIBRATION)
    batches = Batches(
        CandidateCollator(parts.tables[TRAIN], negatives, config.seed),
        None if held is None else CandidateCollator(held),
        EpochBatchSampler,
    )
    return Fitting(
        parts.model,
        parts.loss,
        batches,
        Float[Tensor, "B N"],
        ScoreCollector,
        partial(validation_scores, parts.sets.get(CALIBRATION)),
        monitor="calibration_mrr",
    )


# Score ----------------------------------------------------------------------------------------------


class ScoreCollector(RowCollector):
    """Collects the scores of the candidates of each question."""

    def add(self, batch: SelectionBatch, scores: Tensor) -> None:
        counts = batch.offered.sum(1).tolist()
        rows = zip(batch.index.tolist(), counts, scores.float().tolist(), strict=True)
        self.parts += ((row, values[:count]) for row, count, values in rows)


def rank_of_right(scores: Sequence[float], right: Collection[int]) -> int | None:
    """Rank (from 1) of the best right candidate, or None if no candidate is right.

    ``right`` holds indices into ``scores``. Wrong candidates with an equal or NaN score rank before it, so a
    constant score gains nothing. A right candidate with a NaN score ranks last.
    """
    if not right:
        return None
    best = max(float("-inf") if isnan(scores[i]) else scores[i] for i in right)
    wrong = (score for i, score in enumerate(scores) if i not in right)
    return 1 + sum(isnan(score) or score >= best for score in wrong)


def selection_scores(ranks: Sequence[int | None]) -> dict[str, float | int]:
    """Means over at least one question, in percent, from the ranks of ``rank_of_right``.

    ``accuracy`` is the share of questions whose top candidate is right, ``mrr`` the mean reciprocal rank of
    the best right candidate, 0 if none is right.
    """
    return {
        "accuracy": 100 * fmean(rank == 1 for rank in ranks),
        "mrr": 100 * fmean(1 / rank if rank else 0.0 for rank in ranks),
        "questions": len(ranks),
    }


def ranks(questions: SelectionSet, scored: Scored, *, main: bool = False) -> list[int | None]:
    """Rank of the best right candidate of each question, in order; see ``rank_of_right``.

    With ``main``, candidates are sub classes and all those of a right main class are right.
    """
    result = []
    for row, question in enumerate(questions.questions):
        right = set(question.right)
        if main:
            mains = {questions.main[answer] for answer in right}
            right = {answer for answer in question.candidates if questions.main[answer] in mains}
        indices = {index for index, answer in enumerate(question.candidates) if answer in right}
        result.append(rank_of_right(scored[row], indices))
    return result


def points_of(questions: SelectionSet, scored: Scored, engine: str | None = None) -> dict[str, Point]:
    """Top-1 accuracy and MRR for the record; for classes also the accuracy over main classes."""
    scores = selection_scores(ranks(questions, scored))
    if questions.main:
        scores["main_accuracy"] = selection_scores(ranks(questions, scored, main=True))["accuracy"]
    protocol = questions.protocol
    point = Point(protocol=protocol, metric_version=METRIC_VERSION, engine=engine, metrics=scores)
    return {POINT: point}


def paraphrase_scores(
    similarities: Sequence[float], labels: Sequence[bool], threshold: float
) -> dict[str, float | int | None]:
    """Scores in percent of N > 0 pairs; ``labels`` are True for paraphrases.

    ``accuracy`` predicts a paraphrase if the similarity is at least ``threshold``. ``oracle_accuracy`` uses
    the best threshold for these labels: an upper bound, not a result. ``auroc`` is None unless both labels
    occur.
    """
    scores, positive = np.asarray(similarities, np.float64), np.asarray(labels, bool)
    area = auroc(scores, positive)
    _, level = np.unique(scores, return_inverse=True)
    negatives, positives = np.bincount(level, ~positive), np.bincount(level, positive)
    # Per threshold, at each distinct similarity or above all: negatives below it plus positives from it on.
    correct = np.r_[0, np.cumsum(negatives)] + np.r_[np.cumsum(positives[::-1])[::-1], 0]
    return {
        "pairs": len(scores),
        "paraphrases": int(positive.sum()),
        "threshold": threshold,
        "accuracy": 100 * float(((scores >= threshold) == positive).mean()),
        "oracle_accuracy": 100 * float(correct.max()) / len(scores),
        "auroc": None if area is None else 100 * area,
    }


def validation_scores(questions: Any, outputs: Scored) -> dict[str, float]:
    """``calibration_*`` scores of an epoch."""
    scores = selection_scores(ranks(questions, outputs))
    return {f"calibration_{name}": scores[name] for name in ("accuracy", "mrr")}


def score(predictor: SelectionPredictor, reading: Reading, folder: Path, *, split: str) -> tuple[Points, str]:
    """Score a set; write its rows below the run folder and, but for calibration, ``selections.json``:
    question id -> scores of its candidates, in the order of the data. Returns scores and the rows' hash.
    """
    questions, outputs, target = reading.questions, reading.outputs, questions_folder(folder, split)
    rows: dict[str, list[Any]] = {
        "id": [question.id for question in questions.questions],
        "rank": ranks(questions, outputs),
        "candidates": [len(question.candidates) for question in questions.questions],
    }
    rows_hash = write_questions(target, rows)
    if split != CALIBRATION:
        by_id = dict(zip(rows["id"], outputs, strict=True))
        write_json(target / "selections.json", by_id, indent=None)
    return points_of(questions, outputs, f"torch {predictor.precision}"), rows_hash


def heuristics(config: Config, questions: SelectionSet, trusted: Sequence[str] = TRUSTED) -> Points:
    """Scores of the heuristics in ``config.references``."""
    return reference_scores(config, None, questions, trusted, method="rank", point_of=_heuristic_point)


def _heuristic_point(heuristic: Any, _: Any, questions: SelectionSet) -> Point:
    return points_of(questions, heuristic.rank(questions))[POINT]


# The trained model ----------------------------------------------------------------------------------


def load(
    folder: Path, record: RunRecord, *, device: Any, precision: Precision, trusted: Sequence[str]
) -> SelectionPredictor:
    """The ranking model of a finished run."""
    config, saved = validate(record.config), folder / MODEL
    vectors = store.load_vectors(saved)
    if vectors is None:
        raise RunError(f"{saved}: has no word vectors; the run is incomplete, train it again")
    model = build_model(config.model, None, vectors, trusted, inputs=INPUTS)
    store.load_weights(saved, model)
    return SelectionPredictor(model.to(device), vectors, config, precision=precision)


@dataclass(frozen=True, slots=True)
class Selected:
    """A candidate and its score, the cosine with the question."""

    text: str
    place: int
    """Its index among the candidates given."""
    score: float


def _require_texts(name: str, texts: Any) -> None:
    """Raise ConfigError for a text in place of several, which is a sequence of its characters."""
    if isinstance(texts, str):
        raise ConfigError(f"{name}: must be a list of strings, not str")


class SelectionPredictor:
    """Ranks candidates (call it), compares questions (``similarity``) or classifies them (``classify``)."""

    def __init__(
        self,
        model: nn.Module,
        vectors: WordVectors,
        config: Config,
        *,
        precision: Precision | None = None,
    ) -> None:
        self.precision: Precision = precision or config.trainer.precision  # type: ignore[assignment]
        self.model = cast_weights(model, self.precision).eval()
        self.vectors, self.config = vectors, config
        self._row = word_rows(vectors, settings_of(config).unknown_buckets)

    def table(self, questions: SelectionSet) -> SelectionTable:
        """The features of a set, with the settings that the model was trained with."""
        return selection_table(questions, self._row, settings_of(self.config))

    def try_out(self) -> None:
        """Read something short, so that files that do not fit together fail when they are loaded."""
        count = len(CLASSES) if self.config.model["task"] == "classification" else 1
        question = SelectionQuestion("0", ("who",), range(count), ())
        self.rank(selection_set("question", [("ada",)] * count, [question]))

    def __call__(self, question: str, candidates: Sequence[str]) -> list[Selected]:
        """Candidates sorted by score, ties in input order; empty for a blank question."""
        self._require("selection")
        _require_texts("candidates", candidates)
        question_words = words(question)
        if not question_words or not candidates:
            return []
        single = SelectionQuestion("0", question_words, range(len(candidates)), ())
        scores = self.rank(selection_set("question", map(words, candidates), [single]))[0]
        ranked = [Selected(*row) for row in zip(candidates, range(len(scores)), scores, strict=True)]
        return sorted(ranked, key=lambda selected: -selected.score)

    def similarity(self, first: str, second: str) -> float:
        """Similarity of two questions, from -1 to 1 (paraphrases are near 1); 0 if one is blank."""
        return self.similarities([(first, second)])[0]

    def similarities(self, pairs: Sequence[tuple[str, str]], *, watch: Watch | None = None) -> list[float]:
        """``similarity`` of each pair, in order.

        Averages both directions, as attention from question to candidate is not symmetric.
        """
        self._require("selection")
        texts = [words(text) for pair in pairs for text in pair]
        # Texts 2i and 2i + 1 are question and candidate, then the reverse.
        paired = [row for row in range(len(texts)) if texts[row] and texts[row ^ 1]]
        means = [0.0] * len(pairs)
        if paired:
            questions = [SelectionQuestion(str(row), texts[row], (row ^ 1,), ()) for row in paired]
            scores = self.rank(selection_set("pairs", texts, questions), watch=watch)
            for number, row in enumerate(paired):
                means[row // 2] += scores[number][0] / 2
        return means

    def classify(self, questions: Sequence[str], *, watch: Watch | None = None) -> list[str]:
        """Most probable class (``MAIN:sub``) of each question, in order."""
        self._require("classification")
        _require_texts("questions", questions)
        unlabelled = class_set("questions", [(None, text) for text in questions])
        return [CLASSES[int(np.argmax(scores))] for scores in self.rank(unlabelled, watch=watch)]

    def _require(self, task: str) -> None:
        """Raise RunError if the run was trained for another task."""
        trained = self.config.model["task"]
        if trained != task:
            raise RunError(f"the run was trained for task {trained}, not {task}; name another run")

    def rank(
        self, questions: SelectionSet, *, table: SelectionTable | None = None, watch: Watch | None = None
    ) -> list[list[float]]:
        """The scores of the candidates of each question; ``table`` holds the features if they exist."""
        table = self.table(questions) if table is None else table
        return run_model(
            self.model,
            CandidateCollator(table),
            ScoreCollector(),
            batch_size=self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )

"""Where a run is mirrored while it trains and after it was scored: nowhere, in wandb or for TensorBoard.

The run's own record is the truth. A mirror that cannot take the results says so and changes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.config.schema import Config
from qa_arch.decode.formats import PREDICTIONS
from qa_arch.errors import UnavailableError
from qa_arch.results.comparison import comparison
from qa_arch.results.record import QUESTIONS, read_questions
from qa_arch.results.render import render
from qa_arch.types.records import RunRecord
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)
EVENTS = "tensorboard"
"""The folder of event files, in the run's own."""
COLUMNS = ("id", "kind", "question", "gold", "prediction", "exact", "f1", "null_odds", "article")
"""Of the table of predictions."""


@dataclass(frozen=True)
class Results:
    """What a finished run leaves for its mirror."""

    record: RunRecord
    folder: Path
    questions: Any
    """The dev set; its texts are shown where it is a set of SQuAD questions."""

    def scalars(self) -> dict[str, float]:
        """Every score by split and operating point, and what the run cost."""
        cost = {f"seconds/{name}": value for name, value in asdict(self.record.seconds).items()}
        found: dict[str, Any] = {"parameters": self.record.parameters.total, **cost}
        found["peak_memory_mb"] = self.record.peak_memory_mb
        for split, points in self.record.scores.items():
            for name, point in points.items():
                found |= {f"{split}/{name}/{key}": value for key, value in point.flat().items()}
        return {key: value for key, value in found.items() if type(value) in (int, float)}

    def tables(self, form: str) -> str:
        """The run's row beside the heuristics, of each scored set."""
        runs = [(Path(self.folder.name), self.record)]
        return render([comparison(runs, split=split) for split in self.record.scores], form)

    def predictions(self) -> list[list[Any]]:
        """One row of ``COLUMNS`` a question of dev; none where dev was not opened or has no texts."""
        if not isinstance(self.questions, QuestionSet) or not (self.folder / QUESTIONS).is_file():
            return []
        said = json.loads((self.folder / PREDICTIONS).read_text(encoding="utf-8"))
        rows = read_questions(self.folder)
        places = {id_: place for place, id_ in enumerate(rows["id"])}
        table = []
        for example in self.questions.examples:
            scored: Mapping[str, Any] = {name: rows[name][places[example.id]] for name in rows}
            gold = " | ".join(dict.fromkeys(answer.text for answer in example.answers))
            texts = [example.question, gold, said[example.id]]
            figures = [float(scored[name]) for name in ("exact", "f1", "null_odds")]
            table.append([example.id, example.kind or "", *texts, *figures, example.title])
        return table


@dataclass(frozen=True)
class Mirror:
    """``logger`` is what Lightning's Trainer takes."""

    logger: Any = False
    take: Callable[[Results], None] | None = None

    def results(self, results: Results) -> None:
        """Hand over what came out."""
        if self.take is None:
            return
        try:
            self.take(results)
        except Exception as error:  # whatever a service or its library raises, the run is finished
            log.warning("the results could not be mirrored (%s); the record has them", error)


@contextmanager
def mirrored(config: Config, folder: Path) -> Iterator[Mirror]:
    """The mirror that the config asks for, closed as failed where an error passes through."""
    if config.logger.name == "none":
        yield Mirror()
    elif config.logger.name == "tensorboard":
        logger = _tensorboard(folder)
        yield Mirror(logger, partial(_write_results, logger))
        logger.finalize("success")
    else:
        from qa_arch.training import loggers

        name = f"{config.model.get('name')}-s{config.seed}"
        with loggers.wandb_logger(
            config.logger, folder, name=name, group=config.name, config=asdict(config)
        ) as wandb:
            yield Mirror(wandb, partial(loggers.log_results, wandb.experiment))


def _tensorboard(folder: Path) -> Any:
    from pytorch_lightning.loggers import TensorBoardLogger

    try:
        return TensorBoardLogger(save_dir=folder, name=EVENTS, version="", default_hp_metric=False)
    except ModuleNotFoundError as error:
        raise UnavailableError(
            "logger=tensorboard writes with tensorboard: pip install 'qa-arch[tensorboard]'"
        ) from error


def _write_results(logger: Any, results: Results) -> None:
    logger.log_metrics(results.scalars())
    logger.experiment.add_text("table", results.tables("markdown"))

"""Compare inference engines on a trained run: torch in fp32 and bf16, ONNX in fp32 and int8.

    python -m benchmarks.engines RUN --data SOURCE [--questions N] [--rounds N] [--page FILE] [--json FILE]

Prints scores, speed, size and memory as Markdown, writes them between the marks of ``--page`` and as JSON.
The engines take turns in every round, so a machine that slows down affects all of them; speeds are
meaningful only on a quiet machine. Time includes inference and decoding but not feature preparation; memory
is that of a separate process that loads the engine and reads the same questions once.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.memory import STATUS, status_bytes
from benchmarks.rows import describe_machine
from benchmarks.timing import once
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.errors import QaArchError, RunError, UnavailableError
from qa_arch.export import sizes
from qa_arch.features.windows import FeatureTable
from qa_arch.files import write_atomic, write_json
from qa_arch.metrics.abstention import best_texts
from qa_arch.nn.precision import Precision
from qa_arch.qa.files import operating_points
from qa_arch.qa.loading import load_predictor
from qa_arch.qa.ranking import Ranking
from qa_arch.qa.reader import Reader
from qa_arch.qa.task import answerable_auroc
from qa_arch.records import CALIBRATED, FORCED, MODEL, read_record
from qa_arch.results.tables import Table, fill_between, markdown, number, text, two_decimals
from qa_arch.types import QuestionSet

MARK = "table: engines"
BUSY = 0.5
"""Load per core above which the table notes that the machine was busy."""
CHECKED = 20
"""Number of questions on which an exported graph is checked against its model."""


@dataclass(frozen=True, slots=True)
class Engine:
    library: str
    """``torch`` or ``onnx``."""
    precision: Precision

    def __str__(self) -> str:
        return f"{self.library} {self.precision}"


BASE = Engine("torch", "fp32")
ENGINES = (
    BASE,
    Engine("torch", "bf16"),
    Engine("onnx", "fp32"),
    Engine("onnx", "int8"),
)


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of an engine; scores in percent, at the run's null threshold."""

    engine: str
    answers_per_second: float
    ratio: float
    """Speed relative to torch in fp32, median over the rounds."""
    exact: float
    f1: float
    forced_f1: float
    """F1 of the best spans on answerable questions, never abstaining."""
    auroc: float | None
    """Area under the ROC curve of "answerable" by null odds; None without both kinds of questions."""
    same_answers: float
    """Percent of answers equal to those of torch in fp32."""
    same_spans: float
    """Percent of best spans equal to those of torch in fp32."""
    disk_mb: float
    memory_mb: float | None
    """Peak resident memory; None if the system does not report it."""


def measure(run: Path, sources: Sequence[str], count: int, rounds: int) -> dict[str, Any]:
    """Rows of all engines available, with machine, run and data, as plain JSON."""
    machine = describe_machine()
    questions = _questions(sources, count)
    with tempfile.TemporaryDirectory() as temporary:
        graphs = Path(temporary)
        loaded, missing = _load_all(run, graphs, questions)
        table = loaded[BASE].table(questions, cache=False)
        rankings = {engine: predictor.rank(questions, table=table) for engine, predictor in loaded.items()}
        seconds = _alternate(loaded, questions, table, rounds)
        rows = []
        for engine, predictor in loaded.items():
            disk = sum(sizes(_folder(run, graphs, engine)).values())
            peak = _peak_memory(run, sources, count, graphs, engine)
            figures = _scores(questions, rankings[engine], rankings[BASE], predictor.null_threshold)
            speed = _speed(seconds[engine], seconds[BASE], len(questions))
            rows.append(
                EngineFigures(engine=str(engine), **speed, **figures, disk_mb=disk / 1e6, memory_mb=peak)
            )
    machine["load_after"] = [round(value, 2) for value in os.getloadavg()]
    record = read_record(run)
    return {
        "machine": machine,
        "run": {"model": record.model, "config_hash": record.run_hash, "threshold": record.null_threshold},
        "data": {"name": questions.name, "questions": len(questions), "windows": len(table)},
        "rounds": rounds,
        "rows": [asdict(row) for row in rows],
        "missing": missing,
    }


def table_of(results: Mapping[str, Any]) -> Table:
    """The rows of ``measure`` as a table."""
    machine, data = results["machine"], results["data"]
    loads = machine["load"][0], machine["load_after"][0]
    run, shown = results["run"], f"{data['questions']:,} questions of {data['name']}"
    notes = [
        f"{run['model']} (config {run['config_hash'][:8]}), {shown} in {data['windows']:,} windows;"
        f" {results['rounds']} rounds in which the engines take turns",
        f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, torch {machine['torch']},"
        f" {machine['date'][:10]}; load {loads[0]} at the beginning, {loads[1]} at the end",
        *results["missing"],
    ]
    if max(loads) > BUSY * machine["cores"]:
        notes.append("the machine was busy: measure again on an idle one")
    columns = [
        text("engine", "engine"),
        number("answers_per_second", "answers/s"),
        number("ratio", "times torch fp32", two_decimals),
        number("exact", "EM", two_decimals),
        number("f1", "F1", two_decimals),
        number("forced_f1", "answerable F1 (forced answer)", two_decimals),
        number("auroc", "AUROC, answerable", two_decimals),
        number("same_answers", "same answers, %"),
        number("same_spans", "same best spans, %"),
        number("disk_mb", "MB on disk"),
        number("memory_mb", "peak MB"),
    ]
    return Table("Engines", columns, results["rows"], notes)


def _questions(sources: Sequence[str], count: int) -> QuestionSet:
    questions = open_passages(list(sources))
    return subset(questions, min(count, len(questions)), 0)


def _load_all(run: Path, graphs: Path, questions: QuestionSet) -> tuple[dict[Engine, Reader], list[str]]:
    """(available engines, with graphs exported below ``graphs``; a line per unavailable engine)."""
    loaded, missing = {}, []
    base = _open(run, graphs, BASE)
    for engine in ENGINES:
        try:
            if engine.library == "onnx":
                from qa_arch.export.onnx import export_onnx  # raises UnavailableError without the packages

                sample = subset(questions, min(CHECKED, len(questions)), 0)
                export_onnx(base, _folder(run, graphs, engine), precision=engine.precision, questions=sample)
            loaded[engine] = base if engine == BASE else _open(run, graphs, engine)
        except UnavailableError as error:
            missing.append(f"{engine}: {error}")
    return loaded, missing


def _folder(run: Path, graphs: Path, engine: Engine) -> Path:
    """Folder that the engine loads; torch casts the same weights to every precision."""
    return run / MODEL if engine.library == "torch" else graphs / engine.precision


def _open(run: Path, graphs: Path, engine: Engine) -> Reader:
    source = run if engine.library == "torch" else _folder(run, graphs, engine)
    predictor = load_predictor(source, device="cpu", precision=engine.precision)
    if not isinstance(predictor, Reader):
        raise RunError(f"{run}: ranks candidates; engines read span models")
    return predictor


def _alternate(
    loaded: Mapping[Engine, Reader], questions: QuestionSet, table: FeatureTable, rounds: int
) -> dict[Engine, list[float]]:
    """Seconds of each engine per round; a different engine starts each round."""
    seconds: dict[Engine, list[float]] = {engine: [] for engine in loaded}
    engines = list(loaded)
    for round_ in range(rounds):
        shift = round_ % len(engines)
        for engine in engines[shift:] + engines[:shift]:
            seconds[engine].append(once(partial(loaded[engine].rank, questions, table=table)).wall)
    return seconds


def _speed(seconds: Sequence[float], base: Sequence[float], count: int) -> dict[str, float]:
    ratios = [theirs / ours for ours, theirs in zip(seconds, base, strict=True)]
    return {"answers_per_second": count / median(seconds), "ratio": median(ratios)}


def _scores(questions: QuestionSet, ranking: Ranking, base: Ranking, threshold: float) -> dict[str, Any]:
    own, others = ranking.best_predictions, base.best_predictions
    answers, expected = ({p.id: p.text(threshold) for p in side} for side in (own, others))
    points = operating_points(questions, own, threshold)
    point = points[CALIBRATED] if math.isfinite(threshold) else points[FORCED]
    return {
        "exact": point.exact,
        "f1": point.f1,
        "forced_f1": points[FORCED].metric("HasAns_f1") or points[FORCED].f1,
        "auroc": answerable_auroc(questions, own),
        "same_answers": _percent_equal(answers, expected),
        "same_spans": _percent_equal(best_texts(own), best_texts(others)),
    }


def _percent_equal(texts: Mapping[str, str], expected: Mapping[str, str]) -> float:
    return 100 * sum(texts[id_] == value for id_, value in expected.items()) / len(expected)


def _peak_memory(run: Path, sources: Sequence[str], count: int, graphs: Path, engine: Engine) -> float | None:
    """Peak MB of a process that loads the engine and reads the questions."""
    if not STATUS.exists():
        return None
    command = [sys.executable, "-m", "benchmarks.engines", str(run), "--data", *sources]
    command += ["--questions", str(count), "--peak", engine.library, engine.precision, str(graphs)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _print_peak(args: argparse.Namespace) -> None:
    """Run in that process. Uses VmHWM, as ru_maxrss includes the parent's memory."""
    library, precision, graphs = args.peak
    predictor = _open(args.run, Path(graphs), Engine(library, precision))
    predictor.rank(_questions(args.data, args.questions))
    print(status_bytes("VmHWM") / 1e6)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="folder of a trained span model")
    add("--data", nargs="+", required=True, metavar="SOURCE", help="questions with answers")
    add("--questions", type=int, default=400, metavar="N", help="number of questions sampled (default: 400)")
    add("--rounds", type=int, default=5, metavar="N", help="rounds per engine (default: 5)")
    add("--page", type=Path, metavar="FILE", help=f"write the table behind its mark '{MARK}'")
    add("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    add("--peak", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.peak:
        _print_peak(args)
        return 0
    results = measure(args.run, args.data, args.questions, args.rounds)
    page = markdown(table_of(results), titled=False)
    print(page)
    if args.json:
        write_json(args.json, results)
    if args.page:
        write_atomic(args.page, fill_between(args.page.read_text(encoding="utf-8"), MARK, page))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QaArchError as error:
        sys.exit(str(error))

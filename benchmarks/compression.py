"""CPU latency, memory and size of compressed models relative to the run they came from.

    python -m benchmarks.compression --baseline RUN --data SOURCE RUN...

Each engine has its own process, in which every run alternates with the baseline, one question at a time;
memory is measured in a separate process per run. The figures are printed and saved as ``cost`` in the runs'
records, from which ``experiments/compression`` makes its tables and figure.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.memory import STATUS, private_memory, sample_memory
from benchmarks.targets import NotMeasuredError
from benchmarks.timing import alternate, median_time
from qa_arch import provenance
from qa_arch.cli.runs import PRECISIONS, open_reader
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.errors import QaArchError
from qa_arch.qa.reader import Reader
from qa_arch.records import DEV, GRAPH, WRITING, Cost, changing, read_record, write_record
from qa_arch.results.columns import Scored, row_of, select_columns
from qa_arch.results.tables import Table, render

ENGINES = ("torch", "onnx")
SHOWN = (
    *("model", "run", "engine", "read_in", "parameters", "nonzero", "weights_mb"),
    *("latency_ms", "latency_ratio", "memory_mb", "memory_ratio"),
)
SEED = 13
Pairs = Sequence[tuple[str, str]]


def engine_of(run: str) -> str:
    return "onnx" if (Path(run) / GRAPH).exists() else "torch"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs, or folders of qa-arch export --to onnx")
    parser.add_argument("--baseline", required=True, metavar="RUN", help="run that ratios are relative to")
    parser.add_argument("--data", required=True, nargs="+", metavar="SOURCE", help="source of the questions")
    parser.add_argument("--questions", type=int, default=50, help="questions per repeat (default: 50)")
    parser.add_argument("--repeats", type=int, default=7, help="repeats per run (default: 7)")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="precision of runs other than graphs (default: as recorded)",
    )
    parser.add_argument("--child", choices=("latency", "memory"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        if args.child:
            print(json.dumps(CHILDREN[args.child](args)))
            return 0
        return _measure(args)
    except (QaArchError, NotMeasuredError) as error:
        print(f"benchmarks.compression: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _measure(args: argparse.Namespace) -> int:
    """Measure the baseline and every run, update their records and print the figures."""
    runs = list(dict.fromkeys([args.baseline, *args.runs]))
    records = {run: read_record(run) for run in runs}
    baseline = f"{Path(args.baseline).resolve().name} ({records[args.baseline].run_hash[:8]})"
    latency: dict[str, Any] = {}
    for engine in ENGINES:
        if engine_runs := [run for run in runs if engine_of(run) == engine]:
            latency |= _run_child("latency", engine_runs, args)
    used = {run: _run_child("memory", [run], args) for run in runs}
    rows = []
    for run in runs:
        cost = Cost(
            baseline=baseline,
            engine=engine_of(run),  # type: ignore[arg-type]
            precision=str(_precision(run, args.precision)),
            processor=provenance.processor(),
            memory_mb=round(used[run], 1),
            memory_ratio=round(used[run] / used[args.baseline], 4),
            measured=provenance.now(),
            questions=args.questions,
            repeats=args.repeats,
            **latency[run],
        )
        with changing(Path(run), patience=WRITING):
            record = replace(read_record(run), cost=cost)
            write_record(run, record)
        rows.append(row_of(Scored(record.model, DEV, None, record, Path(run)), SHOWN))
    print(render([Table(f"compared with {baseline}", select_columns(SHOWN), rows)], "text"), end="")
    return 0


def _run_child(what: str, runs: Sequence[str], args: argparse.Namespace) -> Any:
    """Measure ``runs`` in a separate process."""
    settings = {"baseline": args.baseline, "questions": args.questions, "repeats": args.repeats}
    settings |= {"precision": args.precision} if args.precision else {}
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "benchmarks.compression", *runs, *options, "--child", what, "--data"]
    process = subprocess.run([*command, *args.data], stdout=subprocess.PIPE, text=True)
    if process.returncode:
        raise NotMeasuredError(f"{', '.join(runs)}: {what} could not be measured, see above")
    return json.loads(process.stdout.splitlines()[-1])


def latencies(args: argparse.Namespace) -> dict[str, Any]:
    """Run -> median time per question, and median ratio to the baseline's time next to it."""
    import torch

    pairs, baseline = _pairs(args), partial(_ask, _load(args.baseline, args.precision))
    figures = {}
    for run in args.runs:
        ours = partial(_ask, _load(run, args.precision))
        timed = alternate(partial(ours, pairs), partial(baseline, pairs), args.repeats)
        figures[run] = {
            "latency_ms": round(1000 * median_time(timed.ours).wall / len(pairs), 3),
            "latency_ratio": round(timed.cost(), 4),
            "threads": torch.get_num_threads(),
        }
    return figures


def memory(args: argparse.Namespace) -> float:
    """Peak MiB of loading and querying the run, beyond what the libraries use."""
    if not STATUS.exists():
        raise NotMeasuredError("private memory is read from /proc, which this system does not have")
    (run,), pairs = args.runs, _pairs(args)
    _ask(_load(run, args.precision), pairs[:1])  # loads the libraries and fills their caches
    _trim()
    before = private_memory()
    predictor = _load(run, args.precision)
    _trim()
    with sample_memory() as samples:
        _ask(predictor, pairs)
    return max(samples) - before


def _trim() -> None:
    """Return free memory to the system, if the C library can."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _precision(run: str, requested: str | None) -> str | None:
    """Precision to load the run in; that of a graph is fixed."""
    fixed = engine_of(run) == "onnx" or requested is None
    return read_record(run).precision if fixed else requested


def _load(run: str, precision: str | None) -> Reader:
    """Load the run on the CPU."""
    options = argparse.Namespace(
        device="cpu", precision=_precision(run, precision), trust=[], config_dir=None
    )
    return open_reader([run], options)


def _pairs(args: argparse.Namespace) -> Pairs:
    questions = open_passages(args.data if len(args.data) > 1 else args.data[0])
    sample = subset(questions, min(args.questions, len(questions)), SEED)
    return [(example.question, example.context) for example in sample.examples]


def _ask(predictor: Reader, pairs: Pairs) -> None:
    for question, context in pairs:
        predictor(question, context)


CHILDREN = {"latency": latencies, "memory": memory}

if __name__ == "__main__":
    sys.exit(main())

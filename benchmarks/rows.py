"""Rows as they are measured: each by a process of its own, ``python -m benchmarks.rows NAME``, and kept in
``SAVED`` as one file, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.targets import TARGETS, Measurement, NotMeasuredError, Target
from qa_arch.errors import UnavailableError
from qa_arch.files import files_hash, write_json
from qa_arch.process import module_command, start
from qa_arch.provenance import code_hash, commit, now, processor, versions

CACHE = Path(".cache/bench")
SAVED = CACHE / "rows"
SAME = ("processor", "isa", "cores", "threads", "torch", "python", "code")
"""What must be equal for a kept row, or another kept choice, to be used again."""
Row = dict[str, Any]


def describe_machine() -> dict[str, Any]:
    """Machine, versions and code; ``code`` is a hash of what is measured and of the benchmarks."""
    head, changed = commit()
    own = Path(__file__).parent
    code = sha256(f"{code_hash({})} {files_hash(own, own.glob('*.py'))}".encode()).hexdigest()
    return {
        "processor": processor(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": versions()["python"],
        "load": load(),
        "date": now(),
        "commit": head,
        "uncommitted_changes": changed,
        "code": code,
    }


def load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def saved(name: str, machine: Mapping[str, Any], quick: bool) -> Any:
    """What was kept as ``name`` for this code, machine and size; None if there is nothing."""
    path = SAVED / f"{name}.json"
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["of"] == _identity(machine, quick):
            return stored["value"]
    return None


def save(name: str, value: Any, machine: Mapping[str, Any], quick: bool) -> None:
    """Keep a row, or something else that is measured once, at once and whole."""
    write_json(SAVED / f"{name}.json", {"of": _identity(machine, quick), "value": value})


def _identity(machine: Mapping[str, Any], quick: bool) -> dict[str, Any]:
    return {name: machine[name] for name in SAME} | {"quick": quick}


def measure(target: Target, quick: bool) -> Row:
    """Measure a row in a fresh process; one that fails does not stop the others."""
    if lacking := [need.what for need in target.needs if not need.is_met()]:
        return as_row(target, None, f"needs {' and '.join(lacking)}")
    begun = time.perf_counter()
    command = module_command("benchmarks.rows", target.name, *(["--quick"] if quick else []))
    process = start(command, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    if process.returncode:
        return as_row(target, None, f"failed: its process ended with {process.returncode}")
    return json.loads(output) | {"seconds": round(time.perf_counter() - begun, 1)}


def as_row(target: Target, measured: Measurement | None, reason: str = "") -> Row:
    """``ratio`` is in ``unit`` ("×" is a ratio to the peer); times are medians in seconds.

    ``seconds`` is what measuring took. Without a measurement the note is the ``reason``.
    """
    return {
        "name": target.name,
        "what": target.what,
        "peer": target.peer,
        "unit": target.unit,
        "ratio": measured.value if measured else None,
        "wanted": target.wanted,
        "reached": target.reached(measured.value) if measured else None,
        "cpu_ratio": measured.cpu_value if measured else None,
        "ours": asdict(measured.ours) if measured and measured.ours else None,
        "theirs": asdict(measured.theirs) if measured and measured.theirs else None,
        "note": measured.note if measured else f"not measured: {reason}",
        "seconds": 0.0,
    }


def measure_here(target: Target, quick: bool) -> Row:
    """Measure a row in this process."""
    try:
        measures = import_module(f"benchmarks.{target.module}").ROWS
        return as_row(target, measures[target.name](quick))
    except (NotMeasuredError, UnavailableError) as error:
        return as_row(target, None, str(error))
    except Exception as error:
        traceback.print_exc()
        reason = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return as_row(target, None, reason)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows", description=__doc__)
    parser.add_argument("name", choices=[target.name for target in TARGETS])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    (requested,) = (target for target in TARGETS if target.name == args.name)
    with redirect_stdout(sys.stderr):  # libraries also print
        row = measure_here(requested, args.quick)
    print(json.dumps(row))

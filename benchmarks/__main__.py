"""``python -m benchmarks [NAME ...] [--quick]``: measure, print the table and save it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path

from benchmarks.registry import MEASURES
from benchmarks.report import TargetRow, describe_machine, markdown, summary
from benchmarks.targets import TARGETS, NotMeasuredError, Target
from qa_arch.errors import UnavailableError
from qa_arch.files import write_atomic, write_json
from qa_arch.results.tables import fill_between

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent / "README.md"
MARK = "bench"


def measure(target: Target, quick: bool) -> TargetRow:
    """Measure one row; a failing benchmark does not stop the others."""
    if target.name not in MEASURES:
        return TargetRow(target, None, f"no function measures '{target.name}'")
    try:
        return TargetRow(target, MEASURES[target.name](quick))
    except (NotMeasuredError, UnavailableError) as error:
        return TargetRow(target, None, str(error))
    except Exception as error:
        traceback.print_exc()
        return TargetRow(
            target, None, f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        )


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 whether targets are met or not; only a full run at full size replaces the saved table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that it runs, not how fast")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args(argv)
    targets = {target.name: target for target in TARGETS}
    if unknown := [name for name in args.names if name not in targets]:
        parser.error(f"unknown row {unknown[0]}; rows are {', '.join(targets)}")

    machine = describe_machine()
    rows = []
    for name in args.names or targets:
        started = time.perf_counter()
        rows.append(measure(targets[name], args.quick))
        if rows[-1].measured:
            print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    machine["load_after"] = [round(value, 2) for value in os.getloadavg()]
    table = markdown(rows, machine)
    print(json.dumps([row.record() for row in rows]) if args.json else table)
    if not args.names and not args.quick:
        write_atomic(RESULTS / "table.md", table)
        results = {"machine": machine, "rows": [row.record() for row in rows]}
        write_json(RESULTS / "table.json", results)
        write_atomic(PAGE, fill_between(PAGE.read_text(encoding="utf-8"), MARK, summary(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks [NAME ...] [--quick]``: measure rows, each in a fresh process, and print the table.

Without names all rows are measured, but for those that an earlier, stopped run of this code on this machine
has measured already; at the end the saved table is replaced. Rows that are named are measured again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import rows
from benchmarks.report import markdown, summary, verdict
from benchmarks.targets import DATA, TARGETS
from qa_arch.files import write_atomic, write_json
from qa_arch.results.tables import fill_between

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent / "README.md"
MARK = "bench"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 whether targets are met or not; only a full run at full size replaces the saved table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that it runs, not how fast")
    args = parser.parse_args(argv)
    targets = {target.name: target for target in TARGETS}
    if unknown := [name for name in args.names if name not in targets]:
        parser.error(f"unknown row {unknown[0]}; rows are {', '.join(targets)}")

    chosen = [targets[name] for name in args.names or targets]
    on_data = [target.name for target in chosen if DATA in target.needs]
    is_here = "which is here" if DATA.is_met() else "which is not here: they are skipped"
    _say(f"{len(chosen)} rows; {len(on_data)} need {DATA.what}, {is_here}: {', '.join(on_data)}")
    for need in dict.fromkeys(need for target in chosen for need in target.needs if need != DATA):
        if not need.is_met():
            skipped = [target.name for target in chosen if need in target.needs]
            _say(f"skipped for want of {need.what}: {', '.join(skipped)}")
    machine = rows.describe_machine()
    measured = []
    for target in chosen:
        row = None if args.names else rows.saved(target.name, machine, args.quick)
        origin = f", saved in {rows.SAVED}"
        if row is None:
            row, origin = rows.measure(target, args.quick), ""
            if row["ratio"] is not None:
                rows.save(target.name, row, machine, args.quick)
        measured.append(row)
        if row["ratio"] is not None or "failed" in row["note"]:
            _say(f"{target.name}: {verdict(row)}, {row['seconds']:.0f} s{origin}")
    machine["load_after"] = rows.load()
    table = markdown(measured, machine)
    print(table)
    if not args.names and not args.quick:
        results = {"machine": machine, "rows": measured}
        write_atomic(RESULTS / "table.md", table)
        write_json(RESULTS / "table.json", results)
        write_atomic(PAGE, fill_between(PAGE.read_text(encoding="utf-8"), MARK, summary(results)))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

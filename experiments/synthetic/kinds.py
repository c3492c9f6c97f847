"""F1 per kind of question and run, from the scores in ``questions.parquet``.

python experiments/synthetic/kinds.py RUNS
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from qa_arch.errors import QaArchError, RunError
from qa_arch.records import QUESTIONS, find_runs, read_questions
from qa_arch.results.tables import Table, markdown, number, text

ANSWERABLE = "answerable"


def f1_by_kind(folder: Path) -> dict[str, tuple[float, int]]:
    """Kind -> (mean F1 in percent, number of questions), answerable first, then by name."""
    columns = read_questions(folder)
    kinds = [kind or ANSWERABLE for kind in columns["kind"]]
    sums: Counter[str] = Counter()
    for kind, f1 in zip(kinds, columns["f1"], strict=True):
        sums[kind] += f1
    counts = Counter(kinds)
    order = sorted(counts, key=lambda kind: (kind != ANSWERABLE, kind))
    return {kind: (100 * sums[kind] / counts[kind], counts[kind]) for kind in order}


def kinds_table(roots: list[str]) -> Table:
    """Table with one row per kind and one column per run; RunError if runs were scored on different sets."""
    runs = [(folder, record) for folder, record in find_runs(roots) if (folder / QUESTIONS).is_file()]
    if not runs:
        raise RunError(f"{', '.join(roots)}: no {QUESTIONS} below; train a model first")
    if len({record.fingerprint("dev") for _, record in runs}) > 1:
        raise RunError("the runs were scored on different dev sets; name runs of one experiment")
    scored = {f"{record.model}, seed {record.seed}": f1_by_kind(folder) for folder, record in runs}
    if len(scored) < len(runs):
        raise RunError("two runs share model and seed; name only one of them")
    rows = [
        {"model": kind, "questions": count, **{run: kinds[kind][0] for run, kinds in scored.items()}}
        for kind, (_, count) in next(iter(scored.values())).items()
    ]
    columns = [text("model", "kind"), number("questions", "questions"), *(number(run, run) for run in scored)]
    title = f"{runs[0][1].name}: dev F1 by kind of question"
    return Table(title, columns, rows, ["unanswerable kinds: F1 is the share answered with nothing"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="F1 of each kind of question, as Markdown.")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders of runs")
    try:
        print(markdown(kinds_table(parser.parse_args(arguments).runs)), end="")
    except QaArchError as error:
        print(f"kinds.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

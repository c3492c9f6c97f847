"""Table 2.3: match-LSTM with Answer Pointer (Wang & Jiang 2016) in every published configuration.

Filled by: the commands of the rows below; README.md has them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from qa_arch.provenance import dev_access_note
from qa_arch.records import DEV, TRAIN, RunRecord, Runs, recorded
from qa_arch.results.columns import COLUMNS, runs_table
from qa_arch.results.experiments import COLOURS, DASHES, FAINT, GRID, MARKERS, records_table, save_figure
from qa_arch.results.tables import Column, Table, number, text

ON_GPU = "qa-arch train -m experiment=table_2_3_gpu seed=13,14,15 model=match_lstm"
BOUNDARY = f"{ON_GPU}/boundary"
FEWER = f"{BOUNDARY} trainer.epochs=60"
TWELVE = "qa-arch train experiment=table_2_3 model=match_lstm/boundary"
MATCH_LSTM = ("sequence", "boundary", "boundary-300", "boundary_b", "bi_ans_ptr", "half", "quarter")
LOGISTIC = "python experiments/table_2_3/logistic.py --train train-v1.1.part.json --dev dev-v1.1.json --final"
EVALUATE = "qa-arch evaluate --final --run"
RUNS = "runs/table_2_3"
SHOWN: Sequence[Column] = (
    text("model", "configuration"),
    number("hidden", "l"),
    number("parameters", "parameters"),
    number("exact", "EM, published"),
    number("f1", "F1, published"),
    number("our_exact", "EM, ours"),
    number("our_f1", "F1, ours"),
    number("train_exact", "EM, its training questions"),
    number("our_parameters", "parameters, ours"),
    number("train_questions", "training questions"),
    number("epochs", "epochs"),
    number("vectors", "vectors"),
    number("runs", "runs"),
)
"""Columns of ``published_vs_ours``."""


class PublishedRow(NamedTuple):
    """A published row, the location of our runs of it, and the command that produces them.

    ``records`` is a folder or glob below ``records/``; several runs are averaged. A row whose runs are
    missing says so and names its ``command``; one without ``command`` is published only.
    """

    model: str
    exact: float | None = None
    f1: float | None = None
    parameters: int | None = None
    hidden: int | None = None
    records: str | None = None
    command: str | None = None
    note: str | None = None


class SizeScores(NamedTuple):
    """Mean scores in percent of the runs of one size; ``train_exact`` is on their own training questions."""

    questions: int
    exact: float | None
    f1: float | None
    train_exact: float | None = None


SIZES = ("quarter", "half", "boundary")
PUBLISHED = SizeScores(questions=87599, exact=63.0, f1=72.7)


def tables(folder: Path) -> list[Table]:
    return [
        published_vs_ours(
            folder,
            "Table 2.3: match-LSTM with Answer Pointer, SQuAD 1.1 dev",
            [*_non_neural(), *_match_lstm()],
            notes=[
                "published: Wang & Jiang 2016, all of train (87,599), GloVe 840B.300d; the counts are theirs,"
                " over vectors of width 300",
                "ours: 10,045 questions of train (11%), GloVe 6B.50d, until calibration stops, so that the"
                " columns do not compare directly; of several runs the mean",
            ],
        ),
        published_vs_ours(
            folder,
            "Boundary + Search by the number of training questions",
            [
                PublishedRow("a quarter", records="quarter", command=f"{FEWER} data.train_questions=2500"),
                PublishedRow("a half", records="half", command=f"{FEWER} data.train_questions=5000"),
                PublishedRow("all 10,045", records="boundary", command=BOUNDARY),
                PublishedRow("all of train", 63.0, 72.7, note="published, 87,599 questions"),
            ],
        ),
        published_vs_ours(
            folder,
            "The same after twelve epochs on a CPU, 10,000 word vectors",
            [
                PublishedRow(size, records=f"twelve_epochs/{name}", command=f"{TWELVE}{options}")
                for size, name, options in (
                    ("a quarter", "quarter", " data.train_questions=2500"),
                    ("a quarter, overlap flag", "quarter-overlap", "_overlap data.train_questions=2500"),
                    ("a half", "half", " data.train_questions=5000"),
                    ("all 10,045", "boundary-search", ""),
                    ("all 10,045, overlap flag", "overlap", "_overlap"),
                )
            ],
        ),
        records_table(  # the other tables show means, and seeds differ more than rows
            folder,
            "The runs one by one",
            columns=("model", "parameters", "seed", "train_questions", "exact", "f1", "epochs", "seconds"),
            records=MATCH_LSTM,
            sort=("model", "parameters", "train_questions", "seed"),
        ),
    ]


def _non_neural() -> list[PublishedRow]:
    note = (
        "ours uses no parse; its candidates and features are described in baselines/candidates.py and"
        " span_features.py"
    )
    guess, logistic = "non_neural/random-guess*", "non_neural/logistic-regression*"
    return [
        PublishedRow("Random guess", 1.1, 4.1, 0, records=guess, command=LOGISTIC),
        PublishedRow("Logistic regression", 40.0, 51.0, records=logistic, command=LOGISTIC, note=note),
        PublishedRow("DCR", 62.5, 71.2, note="published only"),
    ]


def _match_lstm() -> list[PublishedRow]:
    """Model, EM, F1, parameters and width as published; our records and their command."""
    search, ensemble = "Boundary + Search", "Boundary + Search + ensemble"
    adopted = f"qa-arch adopt {RUNS}/boundary-seed13 --decode greedy --folder {RUNS}/greedy-seed13"
    greedy = f"{adopted} && {EVALUATE} {RUNS}/greedy-seed13"
    members = " ".join(f"{RUNS}/boundary-seed{seed}" for seed in (13, 14, 15))
    rescored = (
        "qa-arch adopt --predictions match_lstm_boundary_ensemble_v1.1_dev.json --data dev-v1.1.json"
        f" --name published-predictions --folder {RUNS}/rescored"
    )
    together = f"qa-arch adopt {members} --folder {RUNS}/ensemble && {EVALUATE} {RUNS}/ensemble"
    rows: list[tuple[str, float, float, int, int, str, str]] = [
        ("Sequence", 54.4, 68.2, 882452, 150, "sequence", f"{ON_GPU}/sequence"),
        ("Boundary", 61.1, 71.2, 882452, 150, "greedy", greedy),
        (search, 63.0, 72.7, 882452, 150, "boundary", BOUNDARY),
        (f"{search}, l = 300", 63.1, 72.7, 3249902, 300, "boundary-300", f"{BOUNDARY} model.hidden=300"),
        (f"{search} + b", 63.4, 73.0, 1085852, 150, "boundary_b", f"{ON_GPU}/boundary_b"),
        (f"Bi-Ans-Ptr, {search} + b", 64.1, 73.9, 1425003, 150, "bi_ans_ptr", f"{ON_GPU}/bi_ans_ptr"),
        (ensemble, 67.6, 76.8, 882452, 150, "ensemble", together),
        (f"{ensemble}, its published predictions scored here", 67.6, 76.8, 882452, 150, "rescored", rescored),
    ]
    return [PublishedRow(*row) for row in rows]


def figures(folder: Path) -> list[Sequence[Path]]:
    """EM and F1 by number of training questions; none for a single size."""
    ours = by_size([run for run in recorded(folder, SIZES) if DEV in run[1].scores])
    return [save_figure(lambda: _draw_sizes(ours), folder / "sizes")] if len(ours) > 1 else []


def published_vs_ours(
    folder: Path, title: str, rows: Sequence[PublishedRow], *, notes: Sequence[str] = ()
) -> Table:
    """Table of the experiment in ``folder``; RunError if runs of two rows are not comparable."""
    runs = {
        row.model: [run for run in recorded(folder, row.records) if run[1].measure(DEV)]
        if row.records
        else []
        for row in rows
    }
    all_runs = [run for row_runs in runs.values() for run in row_runs]
    table_notes = [*runs_table(all_runs, split=DEV, columns=["model"]).notes] if all_runs else []
    table_notes += notes
    for row in rows:
        if row.note:
            table_notes.append(f"{row.model}: {row.note}")
        if row.command and not runs[row.model]:
            table_notes.append(f"{row.model}, to be run: `{row.command}`")
    fingerprints = {measure.fingerprint for _, record in all_runs if (measure := record.measure(DEV))}
    if note := dev_access_note(folder, fingerprints):
        table_notes.append(note)
    figures = [_published_and_ours(row, runs[row.model]) for row in rows]
    has_train_scores = any(row.get("train_exact") is not None for row in figures)
    columns = [column for column in SHOWN if column.key != "train_exact" or has_train_scores]
    return Table(title, columns, figures, table_notes)


def _published_and_ours(row: PublishedRow, runs: Runs) -> dict[str, Any]:
    """Published and our figures of a row."""
    keys = ("model", "hidden", "parameters", "exact", "f1")
    published: dict[str, Any] = {key: getattr(row, key) for key in keys}
    if not runs:
        return {**published, "our_exact": "to be run" if row.command else None}
    ours = [figures for figures in runs_table(runs, split=DEV).rows if "status" in figures]
    records = [record for _, record in runs]
    return {
        **published,
        "our_exact": mean_metric(records, DEV, "exact"),
        "our_f1": mean_metric(records, DEV, "f1"),
        "train_exact": mean_metric(records, TRAIN, "exact"),
        "our_parameters": _joined(run["parameters"] for run in ours),
        "train_questions": _joined(run["train_questions"] for run in ours),
        "epochs": _joined(run["epochs"] for run in ours),
        "vectors": _joined(map(_vectors, records)),
        "runs": len(runs),
    }


def mean_metric(records: Iterable[RunRecord], split: str, key: str) -> float | None:
    """Mean of a metric over the runs that were scored on ``split``."""
    points = [point for record in records if (point := record.compared_point(split))]
    values = [value for point in points if (value := point.metric(key)) is not None]
    return fmean(values) if values else None


def _joined(values: Iterable[Any]) -> Any:
    """The common value; otherwise the mean of numbers, or all distinct values."""
    values = list(values)
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return distinct[0]
    if all(isinstance(value, int | float) for value in distinct):
        return fmean(values)
    return ", ".join(str(value) for value in distinct)


def _vectors(record: RunRecord) -> str | None:
    """Name of the word vector file."""
    path = record.setting("glove", "path")
    return Path(str(path)).stem if record.setting("glove", "use") and path else None


def by_size(runs: Runs) -> list[SizeScores]:
    """Scores sorted by number of training questions; RunError if runs are not comparable."""
    if runs:
        runs_table(runs, split=DEV, columns=["model"])
    by_questions: dict[int, list[RunRecord]] = {}
    for _, record in runs:
        questions = record.facts(TRAIN).questions
        if questions and record.compared_point(DEV):
            by_questions.setdefault(questions, []).append(record)
    return [
        SizeScores(
            questions,
            exact=mean_metric(records, DEV, "exact"),
            f1=mean_metric(records, DEV, "f1"),
            train_exact=mean_metric(records, TRAIN, "exact"),
        )
        for questions, records in sorted(by_questions.items())
    ]


def _draw_sizes(ours: Sequence[SizeScores]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(5.2, 3.4), layout="tight")
    panel = figure.subplots()
    panel.set_title("Boundary + Search by training questions", loc="left", fontsize=10, fontweight="bold")
    panel.set_xscale("log")
    panel.set_xlabel("training questions", color=FAINT, fontsize=8)
    panel.set_ylabel("percent", color=FAINT, fontsize=8)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    sizes = [point.questions for point in ours]
    for i, key in enumerate(("exact", "f1")):
        heading = COLUMNS[key].heading
        style: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i]}
        panel.plot(
            sizes, [getattr(point, key) for point in ours], linestyle=DASHES[i], label=heading, **style
        )
        style |= {"linestyle": "", "fillstyle": "none"}
        panel.plot(PUBLISHED.questions, getattr(PUBLISHED, key), label=f"{heading}, published", **style)
    on_train = [(point.questions, point.train_exact) for point in ours if point.train_exact is not None]
    if on_train:
        style = {"color": FAINT, "marker": MARKERS[2], "linestyle": DASHES[2]}
        panel.plot(*zip(*on_train, strict=True), label="EM, its training questions", **style)
    ticks = sorted({*sizes, PUBLISHED.questions})
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize=8)
    return figure

"""Functions for ``experiments/*/tables.py``, one per kind of table or figure, and the execution of that file.

An experiment's ``tables.py`` defines ``tables(folder)``, which returns its tables, and may define
``figures(folder)``, which draws its figures and returns their paths; ``folder`` is the experiment's own, with
the committed records in ``records/``. Tables of a single experiment are built in its file. The file is code
of the checkout and is executed: only in an experiment folder that the user named (``qa-arch tables
experiments/demo``, ``--all``), never among records.

``records`` is a folder or glob below ``records/``, or a list of them.

Figures are byte-reproducible SVG and PNG in one style. They need ``qa-arch[plots]`` (matplotlib), which is
imported when a figure is saved: without it, ``save_figure`` raises UnavailableError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from runpy import run_path
from statistics import fmean
from textwrap import wrap
from typing import Any, Literal

from qa_arch.config.check import suggest
from qa_arch.config.target import require_packages
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.files import read_json, replacing
from qa_arch.provenance import dev_access_note
from qa_arch.records import DEV, RECORD, RECORDS, Globs, RunRecord, Runs, recorded
from qa_arch.results.columns import COLUMNS, EPOCH, SPAN_COLUMNS, runs_table, select_columns
from qa_arch.results.compare import effects_table, pair_table
from qa_arch.results.effects import MEASURES, MeasureName, samples_of
from qa_arch.results.systems import System, find_system, group_by_system, labelled
from qa_arch.results.tables import Table, number, text

TABLES = "tables.py"
_DRAWN: tuple[MeasureName, ...] = ("f1", "forced_f1")
_SPAN_FIGURES = ("exact", "f1", "HasAns_f1", "NoAns_f1", "parameters")
"""Keys that every published row has in CSV and JSON, whether or not they were published."""


def experiment_tables(folder: Path) -> list[Table]:
    """Tables of one experiment, without those that have no recorded or published rows yet.

    Executes ``tables.py`` in the folder. Raises RunError if a table matches none of the existing records,
    ConfigError if the file cannot be executed or names something that does not exist.
    """
    with _errors_naming(folder / TABLES):
        return [table for table in _script(folder)["tables"](folder) if table.rows]


def experiment_figures(folder: Path) -> list[Path]:
    """Draw the experiment's figures in its folder, except those without records; return their paths."""
    with _errors_naming(folder / TABLES):
        drawn = _script(folder).get("figures", lambda folder: ())(folder)
        return [path for paths in drawn for path in paths]


def _script(folder: Path) -> Mapping[str, Any]:
    """Execute ``tables.py`` and return its namespace."""
    defined = run_path(str(folder / TABLES), run_name=f"experiment_{folder.name}")
    if "tables" not in defined:
        raise ConfigError("defines no tables(folder); see qa_arch/results/experiments.py")
    return defined


@contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    """Make errors of the executed file name its path; errors of records already name theirs."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except QaArchError:
        raise
    except Exception as error:
        raise ConfigError(f"{path}: cannot be executed ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class Published:
    """A row of published scores by column; ``note`` states the protocol they were measured by."""

    model: str
    figures: Mapping[str, float]
    note: str

    def __post_init__(self) -> None:
        select_columns(self.figures, f"{self.model}, published")


@dataclass(frozen=True)
class Wanted:
    """A row still to be filled: ``command`` makes the run, ``model`` is the name in its record."""

    model: str
    command: str
    batch: int | None = None
    """Global batch size of the run; None: any."""

    @property
    def row(self) -> dict[str, Any]:
        return {"model": self.model} | ({} if self.batch is None else {"batch": self.batch})

    @property
    def note(self) -> str:
        name = self.model if self.batch is None else f"{self.model}, batch {self.batch}"
        return f"{name}: not run yet; `{self.command}` fills the row"


def missing_rows(wanted: Sequence[Wanted], runs: Runs) -> list[Wanted]:
    """The rows that no finished run fills."""
    finished = [(record.model, record.batch.global_size) for _, record in runs if record.status == "ok"]
    filled = {(model, size) for model, batch in finished for size in (batch, None)}  # None: of any batch
    return [row for row in wanted if (row.model, row.batch) not in filled]


def records_table(
    folder: Path,
    title: str,
    *,
    columns: Sequence[str] = SPAN_COLUMNS,
    records: Globs = "**",
    split: str = DEV,
    published: Sequence[Published] = (),
    wanted: Sequence[Wanted] = (),
    notes: Sequence[str] = (),
    sort: Sequence[str] = (),
) -> Table:
    """Table with one row per run, below published rows and above ``wanted`` rows that no run fills yet.

    ``sort`` are columns to sort the runs by, heuristics first and runs without a value last; by default they
    are in the order of their folders.
    """
    runs, shown = recorded(folder, records), select_columns(columns)
    select_columns(sort, "sort")
    missing = missing_rows(wanted, runs)
    table = Table(title, shown, [])
    if runs:
        table = runs_table(runs, split=split, title=title, columns=columns, also=sort, root=folder)
    # An experiment without any record is still to be run; a glob that misses all records is a mistake.
    elif any((folder / RECORDS).rglob(RECORD)) and not (published or missing):
        raise RunError(f"{folder / RECORDS}: no {RECORD} below {records!r}; commit the records first")
    rows = [*table.rows, *(row.row for row in missing)]

    def sort_key(row: Mapping[str, Any]) -> list[tuple[bool, Any]]:
        is_run = "run" in row or "split" not in row  # rows still to be filled have neither
        values = [row.get(key) for key in sort]
        return [(is_run, 0), *((value is None, 0 if value is None else value) for value in values)]

    published_rows = [
        {"model": f"{row.model} (published)", **dict.fromkeys(_SPAN_FIGURES), **row.figures, "note": row.note}
        for row in published
    ]
    sources = dict.fromkeys(f"{row.model}, published: {row.note}" for row in published)
    all_notes = [*table.notes, *notes, *sources, *(row.note for row in missing), *_code_note(runs)]
    fingerprints = {record.fingerprint(split) for _, record in runs}
    if split == DEV and (note := dev_access_note(folder, fingerprints)):
        all_notes.append(note)
    if sort:
        rows.sort(key=sort_key)
    return replace(table, rows=[*published_rows, *rows], notes=all_notes)


def _code_note(runs: Runs) -> list[str]:
    """Note on the commits that made the runs, unless it is a single clean one."""
    commits = Counter(record.commit[:7] for _, record in runs if record.commit)
    changed = sum(bool(record.dirty) for _, record in runs)
    if len(commits) < 2 and not changed:
        return []
    counts = ", ".join(f"{commit} ({count})" for commit, count in commits.most_common())
    tail = f"; {changed} of {len(runs)} with uncommitted changes" if changed else ""
    return [f"code of the runs, by commit: {counts}{tail}"]


def _systems(folder: Path, records: Globs, split: str) -> list[System]:
    """Systems that were scored on the split, sorted by label."""
    runs = [(folder / place, record) for place, record in recorded(folder, records) if split in record.scores]
    return sorted(group_by_system(runs), key=lambda system: system.label)


def baseline_table(
    folder: Path, title: str, baseline: str, *, records: Globs = "**", split: str = DEV, **options: Any
) -> Table:
    """Table of every system against one of them, empty until two are recorded. ``options`` are those of
    ``effects_table``: ``measure``, ``paired``, ``order``, ``equivalence``."""
    systems = _systems(folder, records, split)
    if len(systems) < 2:
        return Table(title, [], [])
    parent = find_system(systems, baseline).label
    return effects_table(samples_of(systems, split), parent, title=title, **options)


def registered_systems(folder: Path, registered: Mapping[str, Mapping[str, str]]) -> list[System]:
    """The arms of a registration (``Registration.runs``) with the registered runs and no others; none before
    the last of them is scored."""
    runs = [(folder / place, record) for place, record in recorded(folder, "**") if DEV in record.scores]
    scored = {record.settings_hash: (path, record) for path, record in runs}
    if not all(settings in scored for arm in registered.values() for settings in arm.values()):
        return []
    return [System(arm, tuple(map(scored.__getitem__, own.values()))) for arm, own in registered.items()]


def pairwise_table(
    folder: Path, title: str, a: str, b: str, *, records: Globs = "**", split: str = DEV
) -> Table:
    """Table of system ``b`` against ``a``, by label: every measure, and F1 by kind of question; empty until
    both are recorded."""
    systems = _systems(folder, records, split)
    if not {a, b} <= {system.label for system in systems}:
        return Table(title, [], [])
    return pair_table(find_system(systems, a), find_system(systems, b), split=split, title=title)


def learning_curves(
    folder: Path,
    file: str,
    title: str,
    measures: Sequence[str],
    *,
    records: Globs = "**",
    model: str | None = None,
) -> Sequence[Path]:
    """Draw ``measures`` by epoch, one line per system; of ``model`` alone, if given."""
    for key in measures:
        if key not in EPOCH:
            raise ConfigError(f"measures: unknown measure '{key}'{suggest(key, EPOCH)}")
    trained = [run for run in recorded(folder, records) if run[1].epochs]
    runs = [run for run in trained if model in (None, run[1].model)]
    if not runs:
        return ()
    for key in measures:
        if not any(epoch.value(key) is not None for _, record in runs for epoch in record.epochs):
            raise ConfigError(f"{title}: no run recorded '{key}'; leave it out of the figure")
    return save_figure(lambda: draw_curves(runs, measures, title), folder / file)


def drawn_table(
    folder: Path, title: str, columns: Sequence[str], records: Globs, split: str = DEV
) -> Table | None:
    """Table of the runs that were scored on the split, named by system; None if there are none."""
    runs = [run for run in recorded(folder, records) if split in run[1].scores]
    if not runs:
        return None
    table = labelled(runs_table(runs, split=split, columns=columns, root=folder), group_by_system(runs))
    return replace(table, title=title)


def dot_plot(
    folder: Path, file: str, title: str, columns: Sequence[str], *, records: Globs = "**", split: str = DEV
) -> Sequence[Path]:
    """Draw one panel per column, one line per system and one mark per run; best of the first column on top.

    Heuristics without any of the values are left out.
    """
    for column in select_columns(columns):
        if column.mark is None:
            raise ConfigError(
                f"columns: '{column.key}' is not a percentage; a dot plot shows only percentages"
            )
    table = drawn_table(folder, title, ["model", *columns], records, split)
    if table is None:
        return ()
    rows = [row for row in table.rows if "run" in row or any(row.get(k) is not None for k in columns)]
    shown = replace(table, rows=rows)
    return save_figure(lambda: draw_dots(shown, columns), folder / file)


def difference_plot(
    folder: Path,
    file: str,
    title: str,
    baseline: str,
    *,
    names: Mapping[str, str],
) -> Sequence[Path]:
    """Draw differences from ``baseline`` in F1 and in answerable F1 (forced answer), with 95% intervals;
    nothing until two systems are recorded. ``names`` maps labels to display names."""
    panels = {
        MEASURES[measure]: baseline_table(folder, title, baseline, measure=measure) for measure in _DRAWN
    }
    if not all(table.rows for table in panels.values()):
        return ()
    caption = f"{DIFFERENCES} Baseline: {names.get(baseline, baseline)}."
    return save_figure(lambda: draw_differences(panels, title, caption, names), folder / file)


DIFFERENCES = (
    "Bars: 95% intervals, not corrected for the number of comparisons. Grey: p is 0.05 or more after"
    " Holm's correction, so the difference may be chance."
)
"""Caption of a figure of differences."""
COUNTS = ("examples", "negatives", "articles", "articles_with_negatives")
"""Default columns of a table of data sets."""


@dataclass(frozen=True)
class DataSet:
    """A data set: its published counts, and ours from ``records/<file>``, the output of ``qa-arch stats``."""

    name: str
    file: str | None
    """None for a set that cannot be counted because its questions are not public."""
    published: Mapping[str, int] = field(default_factory=dict)
    source: str | None = None
    """Source for ``--data``, if it is not the file's own name."""


def sets_table(
    folder: Path,
    title: str,
    sets: Sequence[DataSet],
    *,
    columns: Sequence[str] = COUNTS,
    notes: Sequence[str] = (),
) -> Table:
    """Table of published counts and ours, one row each; notes give the command for sets not counted yet."""
    rows: list[dict[str, Any]] = []
    all_notes = list(notes)
    for data in sets:
        if data.published:
            rows.append({"set": f"{data.name} (published)", **data.published})
        if data.file is None:
            continue
        path = folder / RECORDS / data.file
        counts = read_json(path, "it is what `qa-arch stats --json` prints") if path.is_file() else {}
        rows.append({"set": data.name, **{key: counts.get(key) for key in columns}})
        if not counts:
            command = f"qa-arch stats --data {data.source or data.file} --json > {path.as_posix()}"
            all_notes.append(f"{data.name}: not counted here; `{command}` fills the row")
    shown = [text("set", "set"), *(number(key, key.replace("_", " ")) for key in columns)]
    return Table(title, shown, rows, all_notes)


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe & Ito 2008: distinguishable with any colour vision."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"
INK, FAINT, GRID, GREY = "#222222", "#767676", "#E3E3E3", "#B9B9B9"
_STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same shapes
    "font.size": 9,
    "figure.constrained_layout.w_pad": 0.1,  # inches
    "figure.constrained_layout.h_pad": 0.08,
    "svg.hashsalt": "qa-arch",  # the ids inside an SVG are random without it
}

Row = Mapping[str, Any]


METADATA: Mapping[str, Mapping[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Formats of figures by suffix, and what would make their bytes differ from one time to the next."""


def save_figure(draw: Callable[[], Any], path: Path) -> Sequence[Path]:
    """Save the figure that ``draw`` returns in the format of ``path``, without one as .svg and .png; return
    the files.

    The bytes are reproducible for a given matplotlib version. Raises UnavailableError without matplotlib.
    """
    require_packages("plots", "figures")
    from matplotlib import style

    both = [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "png")]
    files = [path] if path.suffix in METADATA else both
    with style.context(["default", _STYLE]):  # whatever the user's matplotlibrc says
        figure = draw()
        for file in files:
            with replacing(file) as temporary:
                form, metadata = file.suffix[1:], METADATA[file.suffix]
                figure.savefig(temporary, format=form, dpi=160, metadata=metadata)
    return files


def panel_grid(
    title: str,
    below: Sequence[str],
    size: tuple[float, float],
    *,
    columns: int,
    rows: int = 1,
    sharey: Literal["row"] | bool = "row",
) -> tuple[Any, Any]:
    """Create a figure of ``size`` inches with (rows, columns) panels, a title and caption lines ``below``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=7.5, color=FAINT)
    return figure, panels


def legend_below(figure: Any, panel: Any, note: str) -> None:
    """Add the legend of ``panel`` below all panels, and ``note`` above the legend."""
    legend = figure.legend(
        *panel.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=8.5,
        title=note, title_fontsize=7.5, alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(FAINT)


def row_panel(panel: Any, title: str, rows: int, colour: str = INK) -> None:
    """Set up a panel of named rows, the first on top."""
    two_lines = title.replace(" (", "\n(")
    panel.set_title(two_lines, loc="left", fontsize=9.5, color=colour, fontweight="bold")
    panel.set_ylim(rows - 0.4, -0.6)
    plain_panel(panel, "x")
    panel.tick_params(axis="y", labelsize=9, labelcolor=INK)
    panel.spines[:].set_visible(False)


def plain_panel(panel: Any, axis: str) -> None:
    """Remove the ticks of a panel and draw a faint grid across ``axis``."""
    panel.grid(axis=axis, color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(length=0, labelsize=8, labelcolor=FAINT)


def caption(table: Table) -> str:
    """Caption: the table's notes, the seeds, and how to read the marks."""
    seeds = sorted({row["seed"] for row in table.rows if not _is_reference(row)})
    parts = [*table.notes]
    if seeds:
        parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}")
    if any(len(rows) > 1 for _, rows in lines(table)):
        parts.append("a mark is a run, the number beside them their mean")
    if any(map(_is_reference, table.rows)):
        parts.append("open marks: untrained heuristics")
    return "; ".join(parts)


def lines(table: Table, by: str = "f1") -> list[tuple[str, list[Row]]]:
    """Lines from top to bottom: models by their mean ``by``, then references likewise."""
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in table.rows:
        groups.setdefault((_is_reference(row), str(row["model"])), []).append(row)

    def order(item: tuple[tuple[bool, str], list[Row]]) -> tuple[bool, float]:
        (reference, _), rows = item
        known = [row[by] for row in rows if row.get(by) is not None]
        return reference, -fmean(known) if known else 1.0  # without values below all

    return [(name, rows) for (_, name), rows in sorted(groups.items(), key=order)]


def _is_reference(row: Row) -> bool:
    return row.get("seed") is None


def draw_dots(table: Table, measures: Sequence[str]) -> Any:
    """Draw ``table`` as a dot plot, one panel per measure and one line per model, highest mean of the first
    measure on top.

    Seeds of a model share a line. Rows without a seed (heuristics) come last, with light marks. The caption
    has the table's notes.
    """
    drawn = lines(table, measures[0])
    below = wrap(caption(table), 26 + 33 * len(measures))
    size = (2 + 2.1 * len(measures), 1.1 + 0.32 * len(drawn) + 0.17 * len(below))
    figure, (panels,) = panel_grid(f"{table.title}, percent", below, size, columns=len(measures))
    models = sum(not _is_reference(rows[0]) for _, rows in drawn)
    for panel, key in zip(panels, measures, strict=True):
        mark = COLUMNS[key].mark
        assert mark is not None, "dot_plot refuses other columns"
        row_panel(panel, COLUMNS[key].heading, len(drawn), mark[0])
        panel.set_xlim(-3, 116)  # room for the mark at 0 and the number beside the mark at 100
        panel.set_xticks([0, 25, 50, 75, 100])
        panel.set_yticks(range(len(drawn)), [name for name, _ in drawn])
        if 0 < models < len(drawn):
            panel.axhline(models - 0.5, color=FAINT, linewidth=0.6)  # between models and references
        for line, (_, rows) in enumerate(drawn):
            _dots(panel, key, line, rows, *mark)
    return figure


def _dots(panel: Any, key: str, line: int, rows: Sequence[Row], colour: str, marker: str) -> None:
    """One mark per row and their mean; without values, the status of an unsuccessful run."""
    light = _is_reference(rows[0])
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        ended = next((str(row["status"]).upper() for row in rows if row.get("status", "ok") != "ok"), "–")
        panel.text(0, line, ended, va="center", fontsize=7.5, color=FAINT)
        return
    if not light:
        panel.hlines(line, 0, max(values), color=colour, linewidth=1.2, alpha=0.45)
    panel.plot(
        values,
        [line] * len(values),
        linestyle="none",
        marker=marker,
        markersize=5 if light else 6.5,
        markerfacecolor="white" if light else colour,
        markeredgecolor=FAINT if light else "white",
        markeredgewidth=0.9 if light else 0.6,
        clip_on=False,
    )
    mean = sum(values) / len(values)
    panel.text(max(values) + 5, line, f"{mean:.1f}", va="center", fontsize=8, color=FAINT if light else INK)


def draw_differences(panels: Mapping[str, Table], title: str, caption: str, names: Mapping[str, str]) -> Any:
    """Draw baseline tables side by side.

    ``panels`` maps measures ("F1") to tables of ``effects_table``; every tested system is a line, sorted
    by the first panel's differences. ``names`` maps labels to display names. Differences with p below 0.05
    after correction are coloured, others are grey: they may be chance.
    """
    tested = [row for row in next(iter(panels.values())).rows if row.get("delta") is not None]
    systems = [str(row["model"]) for row in sorted(tested, key=lambda row: -row["delta"])]
    labels = [names.get(system, system) for system in systems]
    width = 3.4 + 2.6 * len(panels)
    below = wrap(caption, int(17 * width))
    size = (width, 1.2 + 0.42 * len(systems) + 0.17 * len(below))
    figure, (axes,) = panel_grid(title, below, size, columns=len(panels))
    for panel, (measure, table) in zip(axes, panels.items(), strict=True):
        rows = {str(row["model"]): row for row in table.rows}
        _differences(panel, measure, [rows[system] for system in systems])
    axes[0].set_yticks(range(len(systems)), labels)
    return figure


def _differences(panel: Any, measure: str, rows: Sequence[Row]) -> None:
    """Intervals of one measure around a line at zero, which is the baseline."""
    ends = [(row["delta_95_low"], row["delta_95_high"]) for row in rows]
    widest = max(abs(end) for interval in ends for end in interval) or 1.0  # equal runs have no width
    row_panel(panel, "ΔF1" if measure == "F1" else f"Δ {measure}", len(rows))
    panel.set_xlim(-1.12 * widest, 1.12 * widest)
    panel.axvline(0, color=INK, linewidth=0.9)
    direction = "← better      worse →" if measure == MEASURES["aurc"] else "← worse      better →"
    panel.set_xlabel(direction, fontsize=7.5, color=FAINT)
    for line, (row, (low, high)) in enumerate(zip(rows, ends, strict=True)):
        delta, significant = row["delta"], row["p_holm"] < 0.05
        panel.hlines(line, low, high, color=COLOURS[0] if significant else GREY, linewidth=5, zorder=2)
        panel.plot(delta, line, "o", color=INK, markersize=5, zorder=3)
        label = panel.text(
            delta, line - 0.2, f"{delta:+.2f}", ha="center", va="bottom", fontsize=8, color=INK
        )
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})  # over the line at zero


def mean_line(records: Sequence[RunRecord], measure: str) -> dict[int, float]:
    """Mean of a measure over the runs that reached an epoch, by epoch from 1."""
    values: dict[int, list[float]] = {}
    for record in records:
        for epoch in record.epochs:
            value = epoch.value(measure)
            if value is not None and epoch.epoch is not None:
                values.setdefault(epoch.epoch + 1, []).append(value)
    return {epoch: fmean(reached) for epoch, reached in sorted(values.items())}


def draw_curves(runs: Runs, measures: Sequence[str], title: str) -> Any:
    """Draw ``measures`` of ``runs`` by epoch.

    Seeds of a system share a line, their mean, with each seed faint behind it; the filled mark is the epoch
    whose weights were kept. Lines differ in dash as well as colour, for print.
    """
    from matplotlib.ticker import MaxNLocator

    systems = sorted(
        group_by_system(sorted(runs, key=lambda run: (run[1].model, run[1].seed))),
        key=lambda system: system.label,
    )
    size = (max(1 + 3.1 * len(measures), 6.2), 3.1 + 0.2 * -(-len(systems) // 3))  # a legend of 3 columns
    figure, (panels,) = panel_grid(title, (), size, columns=len(measures), sharey=False)
    for panel, measure in zip(panels, measures, strict=True):
        panel.set_title(EPOCH[measure], loc="left", fontsize=9.5, color=INK)
        panel.set_xlabel("epoch", color=FAINT, fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        panel.spines[["top", "right", "left"]].set_visible(False)
        plain_panel(panel, "y")
        for nth, system in enumerate(systems):
            _curves(panel, nth, system, measure)
    several = any(len(system.runs) > 1 for system in systems)
    note = "filled mark: the epoch whose weights were kept" + ("; faint: single seeds" if several else "")
    legend_below(figure, panels[0], note)
    return figure


def _curves(panel: Any, number: int, system: System, measure: str) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    records = [record for _, record in system.runs]
    for record in records:
        line = mean_line([record], measure)
        if len(records) > 1:
            panel.plot(list(line), list(line.values()), color=colour, linewidth=0.7, alpha=0.3)
        if record.best_epoch is not None and (best := record.best_epoch + 1) in line:
            panel.plot(best, line[best], marker=marker, color=colour, markersize=6, zorder=3)
    mean = mean_line(records, measure)
    panel.plot(
        list(mean), list(mean.values()), color=colour, linestyle=DASHES[number % len(DASHES)], linewidth=1.6,
        marker=marker, markersize=3.5, markerfacecolor="white",
        label=system.label if len(records) == 1 else f"{system.label} ({len(records)} seeds)",
    )  # fmt: skip

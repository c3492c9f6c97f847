"""``experiments/*/table.yaml``: which tables and figures are made of the committed records.

One table, with everything but ``title`` optional:

    title: MiniLM on an eighth of SQuAD 2.0
    split: dev                     # or calibration
    records: v2                    # folder or glob below records/, or a list of them (default: all)
    columns: [model, exact, f1, spans_f1]
    published:
      - {model: BERT-base, exact: 73.7, f1: 76.3, note: "all of train, all of dev, margin fitted on dev"}
    wanted:                        # rows that stand empty until a run of that model is recorded
      - {model: albert, command: qa-arch train experiment=thesis model=albert}
    notes: [Both models saw the same 3 epochs.]
    sort: [batch, seed]            # columns that the runs are ordered by

``tables: [...]`` holds several such mappings. One with ``sets`` in place of the rest counts data
sets, one with ``rows`` is a published table with ours beside it (``results.beside``), one with ``baseline``
tests every system against that one, one with ``effects: [A, B]`` compares two in every measure and by
kind of question.
``figures: [...]`` beside ``tables`` draws learning curves, scores by size, or a mark a run:

    tables:
      - title: Data sets
        sets: [{name: SQuAD 1.1 dev, file: dev-v1.1.json, published: {examples: 10570}}]
    figures:
      - {file: curves, title: Learning curves, measures: [train_loss, calibration_loss]}
      - {file: sizes, title: More questions, sizes: [quarter, half, all]}   # folders below records/
      - {file: models, title: Every model, dots: [spans_f1, f1]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from qa_arch.config.check import read, suggest
from qa_arch.errors import ConfigError
from qa_arch.results.beside import BesideSpec
from qa_arch.results.comparison import ALL_HEADINGS, COLUMNS
from qa_arch.results.curves import MEASURES
from qa_arch.results.plots import MEASURES as DOTS
from qa_arch.results.sizes import SizePoint

SPEC = "table.yaml"
Globs = str | list[str]
"""One or several folders or globs below ``records/``."""
COUNTS = ("examples", "negatives", "articles", "articles_with_negatives")
"""What a table of data sets shows where its ``columns`` say nothing else."""
COUNT_HEADINGS = {
    **{key: key.replace("_", " ") for key in COUNTS},
    "questions": "questions",
    "answers": "answers",
    "question_words": "question words",
}
"""Every count that a table of data sets can show, and its heading."""


@dataclass(frozen=True)
class Published:
    """A row of somebody else's figures; ``note`` says by which protocol they were measured.

    With ``beside`` they get no row of their own but stand in the rows of our ``model``, in columns that
    only published figures have: for figures measured on another task.
    """

    model: str
    note: str
    exact: float | None = None
    f1: float | None = None
    HasAns_f1: float | None = None
    NoAns_f1: float | None = None
    parameters: int | None = None
    accuracy: float | None = None
    mrr: float | None = None
    insuranceqa_dev: float | None = None
    """Top-1 accuracy on InsuranceQA V1, as for the two tests."""
    insuranceqa_test1: float | None = None
    insuranceqa_test2: float | None = None
    beside: bool = False

    @property
    def figures(self) -> dict[str, Any]:
        """The figures by their columns: of spans all, of answer selection those that were published."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        told = {key: value for key, value in named.items() if key not in ("model", "note", "beside")}
        return {key: value for key, value in told.items() if value is not None or key not in _SELECTED}


_SELECTED = ("accuracy", "mrr", "insuranceqa_dev", "insuranceqa_test1", "insuranceqa_test2")


@dataclass(frozen=True)
class Wanted:
    """A row that is to be filled: ``command`` makes the run, ``model`` is the name in its record."""

    model: str
    command: str
    batch: int | None = None
    """Of the run; None: any."""


@dataclass(frozen=True)
class TableSpec:
    """One comparison of runs."""

    title: str
    split: Literal["dev", "calibration"] = "dev"
    records: Globs = "**"
    columns: list[str] = field(default_factory=lambda: list(COLUMNS))
    published: list[Published] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sort: list[str] = field(default_factory=list)
    """Columns that the runs are ordered by; otherwise they stand in the order of their folders."""


@dataclass(frozen=True)
class SetSpec:
    """One data set: its published counts, and ours from ``records/<file>``, what ``qa-arch stats`` prints."""

    name: str
    file: str
    published: dict[str, int] = field(default_factory=dict)
    source: str | None = None
    """What ``--data`` must name, where that is not the file's own name."""
    open: bool = True
    """False for a set that nobody can count, as its questions are kept back."""


@dataclass(frozen=True)
class SetsSpec:
    """A table of data sets."""

    title: str
    sets: list[SetSpec]
    notes: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=lambda: list(COUNTS))


@dataclass(frozen=True)
class DrawbacksSpec:
    """What models cost and where they fail: of the experiment ``drawbacks``, its records and wanted runs."""

    title: str
    drawbacks: str
    records: Globs = "**"
    split: Literal["dev", "calibration"] = "dev"
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AgainstSpec:
    """Every system tested against one of them (``results.compare``), over the records' question rows."""

    title: str
    baseline: str
    records: Globs = "**"
    split: Literal["dev", "calibration"] = "dev"
    spans: bool = False
    """Compare F1 on the answerable questions where "no answer" is never allowed."""


@dataclass(frozen=True)
class EffectsSpec:
    """One system against another: every measure, and F1 by kind of question (``results.sides``)."""

    title: str
    effects: list[str]
    """The two labels: the second is measured against the first."""
    records: Globs = "**"
    split: Literal["dev", "calibration"] = "dev"

    def __post_init__(self) -> None:
        if len(self.effects) != 2:
            raise ConfigError(f"effects: two systems are compared, not {len(self.effects)}")


AnyTable = TableSpec | SetsSpec | BesideSpec | DrawbacksSpec | AgainstSpec | EffectsSpec


@dataclass(frozen=True)
class FigureSpec:
    """Learning curves of the recorded runs, written as ``<file>.svg`` and ``<file>.png``."""

    file: str
    title: str
    measures: list[str]
    records: Globs = "**"


@dataclass(frozen=True)
class SizesSpec:
    """EM and F1 against the number of training questions, of the runs below ``sizes``."""

    file: str
    title: str
    sizes: list[str]
    published: list[SizePoint] = field(default_factory=list)
    split: Literal["dev", "calibration"] = "dev"


@dataclass(frozen=True)
class DotsSpec:
    """A panel for each column of ``dots``, a line a model and a mark a run; the best of the first on top."""

    file: str
    title: str
    dots: list[str]
    records: Globs = "**"
    split: Literal["dev", "calibration"] = "dev"


AnyFigure = FigureSpec | SizesSpec | DotsSpec


@dataclass(frozen=True)
class Sheet:
    """All that one experiment shows."""

    tables: list[AnyTable]
    figures: list[AnyFigure]


def read_sheet(folder: Path) -> Sheet:
    """What the folder's ``table.yaml`` asks for; ConfigError names the file and the faulty setting."""
    import yaml  # type: ignore[import-untyped]

    path = folder / SPEC
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    several = isinstance(raw, Mapping) and "tables" in raw and set(raw) <= {"tables", "figures"}
    tables, figures = (raw["tables"], raw.get("figures", [])) if several else ([raw], [])
    if not (isinstance(tables, list) and isinstance(figures, list)):
        raise ConfigError(f"{path}: tables and figures are lists")
    try:
        return Sheet([_table(item) for item in tables], [_figure(item) for item in figures])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _table(raw: Any) -> AnyTable:
    if isinstance(raw, Mapping) and "sets" in raw:
        sets = read(SetsSpec, raw)
        _require(sets.columns, COUNT_HEADINGS, "columns", "count")
        return sets
    if isinstance(raw, Mapping) and "rows" in raw:
        return read(BesideSpec, raw)
    if isinstance(raw, Mapping) and "drawbacks" in raw:
        return read(DrawbacksSpec, raw)
    if isinstance(raw, Mapping) and "baseline" in raw:
        return read(AgainstSpec, raw)
    if isinstance(raw, Mapping) and "effects" in raw:
        return read(EffectsSpec, raw)
    spec = read(TableSpec, raw)
    _require(spec.columns, ALL_HEADINGS, "columns", "column")
    _require(spec.sort, ALL_HEADINGS, "sort", "column")
    return spec


def _figure(raw: Any) -> AnyFigure:
    if isinstance(raw, Mapping) and "sizes" in raw:
        return read(SizesSpec, raw)
    if isinstance(raw, Mapping) and "dots" in raw:
        dots = read(DotsSpec, raw)
        _require(dots.dots, DOTS, "figures.dots", "measure")
        return dots
    spec = read(FigureSpec, raw)
    _require(spec.measures, MEASURES, "figures.measures", "measure")
    return spec


def _require(given: list[str], known: Mapping[str, Any], where: str, what: str) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: unknown {what} '{key}'{suggest(key, known)}")

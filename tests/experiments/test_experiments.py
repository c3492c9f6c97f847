"""Committed experiments: pages, tables, figures and fingerprints fit the records; no file quotes SQuAD."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from pages import lacks_extra, points, skip_without_extra
from scripts import load

from qa_arch.cli.main import main
from qa_arch.config.schema import Data, validate
from qa_arch.data.sources import local
from qa_arch.data.splits import load_splits
from qa_arch.errors import ConfigError
from qa_arch.files import write_json
from qa_arch.records import DEV, TRAIN, read_record
from qa_arch.results import experiments
from qa_arch.results.experiments import TABLES, experiment_figures, experiment_tables
from qa_arch.results.tables import Table, fill, render

ROOT = Path(__file__).parents[2]

PAGES, SCRIPTS = (
    {path.parent for path in (ROOT / "experiments").glob(f"*/{name}")} for name in ("README.md", TABLES)
)
FOLDERS = sorted(PAGES & SCRIPTS)
HEADER = ("Question", "Command", "Hours", "Expected", "Results")
NGRAM = 8
"""Consecutive words that count as a quotation."""


def ngrams(text: str) -> Iterator[tuple[str, ...]]:
    """All sequences of ``NGRAM`` words, ignoring case and punctuation."""
    words = re.findall(r"\w+", text.lower())
    return zip(*(words[offset:] for offset in range(NGRAM)), strict=False)


def strings(value: object) -> Iterator[str]:
    """Every string in a JSON value, keys included, one by one: n-grams do not span two values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def texts_of(path: Path) -> Iterator[str]:
    """Texts of a committed file; parquet columns and JSON files give one text per string."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        numeric = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
        for name, column in zip(table.column_names, table.columns, strict=True):
            yield name
            if not any(is_number(column.type) for is_number in numeric):
                yield from strings(column.to_pylist())
    elif path.suffix == ".json":
        yield from strings(json.loads(path.read_text(encoding="utf-8")))
    elif path.suffix != ".png":
        yield path.read_text(encoding="utf-8")


def committed_files() -> list[Path]:
    paths = (ROOT / "experiments").rglob("*")
    return [path for path in sorted(paths) if path.is_file() and "__pycache__" not in path.parts]


def test_every_experiment_has_a_script_and_a_page_with_the_header():
    incomplete = [folder.name for folder in PAGES ^ SCRIPTS]
    assert not incomplete, f"{incomplete}: each needs README.md and {TABLES}; see CONTRIBUTING.md"
    for folder in FOLDERS:
        page = (folder / "README.md").read_text()
        fields = re.findall(r"^\*\*(\w+)\.\*\* ?", page, flags=re.MULTILINE)
        assert tuple(fields[: len(HEADER)]) == HEADER, folder
        for script in ("build.py", "kinds.py"):
            assert (f"experiments/{folder.name}/{script}" in page) == (folder / script).is_file()
        assert "Filled by: " in (folder / TABLES).read_text().split('"""')[1], folder


def pending_rows() -> list[tuple[str, str, str]]:
    """Experiment, model and command of every row without a run; no table is computed."""
    rows: list[tuple[str, str, str]] = []

    def collect(folder, title, *, wanted=(), **given):
        rows.extend((folder.name, row.model, row.command) for row in wanted)
        return Table(title, [], [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "records_table", collect)
        for other in ("baseline_table", "pairwise_table", "sets_table"):
            patch.setattr(experiments, other, lambda folder, title, *given, **options: Table(title, [], []))
        for folder in FOLDERS:
            if "records_table(" in (folder / TABLES).read_text() and not lacks_extra(folder.name):
                experiment_tables(folder)
    return list(dict.fromkeys(rows))


ROWS = pending_rows()
QUICK_ROWS = [next(row for row in ROWS if row[0] == name) for name in sorted({row[0] for row in ROWS})[::3]]


@pytest.mark.parametrize(
    ("name", "model", "command"),
    [pytest.param(*row, marks=() if row in QUICK_ROWS else pytest.mark.slow) for row in ROWS],
    ids=lambda value: value.split()[-1],
)
def test_command_of_a_pending_row_trains_its_model(name, model, command, monkeypatch, capsys):
    skip_without_extra(name)
    monkeypatch.setenv("QA_ARCH_DATA", "data")
    call = points(shlex.split(command)[1:])[0]
    main([*call, "--dry-run"])
    out, err = capsys.readouterr()
    assert out, err
    config = yaml.safe_load(out)
    assert (config["name"], config["model"]["name"]) == (name, model)


@pytest.mark.data
def test_no_squad_text_in_experiments(real_data):
    texts = {text for path in committed_files() for text in texts_of(path)}
    known = {ngram for text in texts for ngram in ngrams(text)}
    sets = [json.loads(path.read_text(encoding="utf-8")) for path in (real_data / "squad").glob("*.json")]
    for text in set(strings(sets)):
        quoted = next((ngram for ngram in ngrams(text) if ngram in known), ())
        assert not quoted, f"{' '.join(quoted)!r} of SQuAD is quoted in experiments/"


TABLED = sorted(folder.relative_to(ROOT) for folder in SCRIPTS)
FORMS = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


@pytest.mark.parametrize("folder", TABLED, ids=lambda folder: folder.name)
def test_committed_tables_match_the_records(folder, monkeypatch, tmp_path):
    skip_without_extra(folder.name)
    monkeypatch.chdir(ROOT)  # commands in the notes name paths relative to it
    tables = experiment_tables(folder)
    present = [(folder / f"table{suffix}").is_file() == bool(tables) for suffix in (*FORMS, ".json")]
    assert all(present), f"{folder}: its table.* do not fit its records; run make tables"
    if not tables:
        return
    for suffix, format_ in FORMS.items():
        committed = (folder / "table").with_suffix(suffix).read_text(encoding="utf-8")
        assert committed == render(tables, format_), (
            f"{folder}/table{suffix}: make tables writes different text"
        )
    write_json(tmp_path / "table.json", [table.as_dict() for table in tables])
    assert (tmp_path / "table.json").read_bytes() == (folder / "table.json").read_bytes()
    assert (folder / "README.md").is_file(), f"{folder}: needs a README.md; see CONTRIBUTING.md"
    for readme in (ROOT / "README.md", folder / "README.md"):
        page = readme.read_text(encoding="utf-8")
        assert page == fill(page, folder.name, tables), f"{readme}: make tables writes a different table"


@pytest.mark.parametrize(
    "folder",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.name != "hypothesis")) for path in TABLED],
    ids=[path.name for path in TABLED],
)
def test_committed_figures_match_the_records(folder, tmp_path):
    """Byte for byte under the pinned matplotlib; other versions render slightly differently."""
    skip_without_extra(folder.name)
    copy = shutil.copytree(ROOT / folder, tmp_path / folder.name)
    committed = {path.name: path.read_bytes() for kind in ("svg", "png") for path in copy.glob(f"*.{kind}")}
    drawn = {path.name: path.read_bytes() for path in experiment_figures(copy)}
    assert set(drawn) == set(committed), f"{folder}: make tables draws other figures"
    constraints = (ROOT / "constraints.txt").read_text()
    (pinned,) = re.findall(r"^matplotlib==(\S+)", constraints, flags=re.MULTILINE)
    if metadata.version("matplotlib") == pinned:
        assert drawn == committed, f"{folder}: make tables draws them differently"


def here(text: str, folder: Path) -> str:
    """A data section's JSON with its sources below QA_ARCH_DATA, and level 3 in files of ``folder``."""
    text = re.sub(r"synthetic:(\w+):L3", rf"{folder}/\1.json", text)
    return local(text.replace('"data/', '"$QA_ARCH_DATA/'))


def recorded(folder: Path, *, generated: bool) -> Iterator[tuple[Data, dict[str, str]]]:
    """Data of every span model's record, with its fingerprints by split."""
    for path in sorted((ROOT / "experiments").rglob("run.json")):
        if generated and "synthetic:" not in path.read_text(encoding="utf-8"):
            continue
        record = read_record(path.parent)
        facts = {split: str(record.fingerprint(split)) for split in record.data}
        try:
            text = json.dumps(record.config.get("data"))
            config = validate({**record.config, "data": json.loads(here(text, folder))})
        except ConfigError:
            continue  # not a training run
        spans = TRAIN in facts and record.finds_spans
        if spans and ("synthetic:" in text) == generated:
            yield replace(config.data, open_dev=DEV in facts), facts


def check(folder: Path, *, generated: bool, before: Mapping[str, str] = MappingProxyType({})) -> set[str]:
    """Compare all; returns the fingerprints of the training sets.

    ``before``: those that the runs of a registered experiment keep, as they were registered with them.
    """
    read: dict[str, dict[str, str]] = {}
    for data, facts in recorded(folder, generated=generated):
        if str(data) not in read:
            read[str(data)] = {split: item.fingerprint for split, item in load_splits(data).items()}
        sets = read[str(data)]
        assert {split: before.get(facts[split], facts[split]) for split in sets} == sets, data
    return {sets[TRAIN] for sets in read.values()}


def test_generated_sets(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["level3.py", "--out", str(tmp_path)])
    load("synthetic/level3.py").main()
    assert len(check(tmp_path, generated=True)) >= 4


@pytest.mark.data
def test_real_sets(real_data, tmp_path, monkeypatch):
    """With the sets that three experiments derive: those of an earlier run in QA_ARCH_DATA are not read."""
    derived = {
        "swapped": ("decision/split.py",),
        "swapped_rejoined": ("decision/split.py", "--rejoin"),
        "systems": ("systems/sample.py",),
    }
    for folder in real_data.iterdir():
        if folder.name not in derived:
            (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path))
    for out, (name, *options) in derived.items():
        monkeypatch.setattr(sys, "argv", [name, *options, "--out", str(tmp_path / out)])
        load(name).main()
    assert len(check(tmp_path, generated=False, before=load("migrate_records.py").SETS)) >= 7

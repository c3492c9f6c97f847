"""The committed tables and figures equal what `make tables` writes from the committed records."""

import re
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from pages import skip_without_extra

from qa_arch.files import write_json
from qa_arch.results.experiments import TABLES, experiment_figures, experiment_tables
from qa_arch.results.tables import fill, render

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent.relative_to(ROOT) for path in (ROOT / "experiments").glob(f"*/{TABLES}"))
FORMS = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
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
    [pytest.param(path, marks=[pytest.mark.slow] * (path.name != "hypothesis")) for path in FOLDERS],
    ids=[path.name for path in FOLDERS],
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

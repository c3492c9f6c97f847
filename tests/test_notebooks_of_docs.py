"""Notebooks of docs/ are committed without outputs, and every page is in the site, whose build runs them."""

import re
from pathlib import Path

import pytest

import qa_arch

nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install -e '.[dev]'")
DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs_and_machine_paths(path):
    notebook = nbformat.read(path, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all((cell.outputs, cell.execution_count, cell.metadata) == ([], None, {}) for cell in code)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))


def test_both_notebooks_are_in_the_site():
    assert len(NOTEBOOKS) == 2
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert all(f"\nnotebooks/{path.stem}\n" in index for path in NOTEBOOKS)


def test_every_page_is_in_the_site():
    index = (DOCS / "index.md").read_text(encoding="utf-8").splitlines()
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= set(index)


def test_api_page_has_every_public_name():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"auto(?:function|class):: (\w+)$", page, re.MULTILINE))
    assert documented == set(dir(qa_arch)) - {"__version__"}

"""The site of ``make docs`` builds without warnings, is complete and loads nothing from other hosts."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qa_arch

pytest.importorskip("sphinx", reason="no sphinx: pip install -e '.[docs]'")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def build(source: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run Sphinx as ``make docs`` does."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", source / "docs", *options]
    return subprocess.run([*command, source, out], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out, "-d", str(tmp_path_factory.mktemp("trees")))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the checkout's pages and figures to edit, without notebooks, which need the records."""
    pages = shutil.ignore_patterns("records", "results", "*.ipynb", "__pycache__")
    for folder in ("experiments", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=pages)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for path in [*ROOT.glob("*.md"), ROOT / "CITATION.cff"]:
        shutil.copy(path, tmp_path)
    (tmp_path / "qa_arch").mkdir()
    shutil.copy(ROOT / "qa_arch/manifest.py", tmp_path / "qa_arch")  # pages link to it
    return tmp_path


def test_site_has_every_page_and_notebook_output(site):
    for page in [
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/*/*.ipynb"),
        *ROOT.glob("experiments/*/README.md"),
    ]:
        assert (site / page.relative_to(ROOT).with_suffix(".html")).is_file(), page
    notebook = (site / "docs/notebooks/compare_runs.html").read_text(encoding="utf-8")
    assert "every system against bert" in notebook
    assert 'class="dataframe"' in notebook
    api = (site / "docs/api.html").read_text(encoding="utf-8")
    names = set(dir(qa_arch)) - {"__version__"}
    assert not [name for name in names if f'id="qa_arch.{name}"' not in api]
    assert "url=README.html" in (site / "index.html").read_text(encoding="utf-8")


def test_pages_fetch_nothing_from_other_hosts(site):
    external = re.compile(
        r"""<(?:script|img|iframe)[^>]+src=["'](?:https?:)?//|<link[^>]+href=["'](?:https?:)?//"""
    )
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert len(pages) > 50
    assert not [page[:200] for page in pages if external.search(page)]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert not [css[:200] for css in styles if re.search(r"url\(\W*(?:https?:)?//|@import\s", css)]


@pytest.mark.parametrize(
    ("page", "text", "message"),
    [
        ("docs/training.md", "\n[gone](gone.md)\n", "gone"),
        ("docs/api.md", "\n```{eval-rst}\n.. autofunction:: qa_arch.gone\n```\n", "gone"),
        ("docs/orphan.md", "# A page in no toctree\n", "toctree"),
    ],
)
def test_broken_references_fail_the_build(copy, tmp_path_factory, page, text, message):
    with (copy / page).open("a", encoding="utf-8") as file:
        file.write(text)
    done = build(copy, tmp_path_factory.mktemp("out"), "-b", "dummy", "-D", "nb_execution_mode=off")
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings) == 1, done.stderr
    assert message in warnings[0]

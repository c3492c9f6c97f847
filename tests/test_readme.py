"""Pages: commands are valid, the example of README trains, tables are the recorded ones, the site builds."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from pages import commands, lacks_extra, points

import qa_arch
from qa_arch.cli.main import COMMANDS, OWN, _parser, main
from qa_arch.config.compose import compose, multirun, to_yaml
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import LOSSES, recipes, validate
from qa_arch.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXPERIMENTS = [
    path for path in sorted(ROOT.glob("experiments/*/README.md")) if not lacks_extra(path.parent.name)
]
CALLS = [
    pytest.param(page, call, id=f"{page.relative_to(ROOT)}: {' '.join(call)}")
    for page in PAGES + EXPERIMENTS
    for call in commands(page.read_text(encoding="utf-8"))
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


parser = cache(_parser)


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md")], ids=str)
def test_local_links_exist(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith(("http", "mailto"))]
    assert not [link for link in local if not (path.parent / link).exists()]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the config of a run, and a second one named like it and 2, for ``init_from=RUN,RUN2``."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    for place in (folder, Path(f"{folder}2")):
        place.mkdir()
        (place / "config.yaml").write_text(to_yaml(compose(["model=bert"])))
    return folder


@pytest.mark.parametrize(("page", "call"), CALLS)
def test_every_command_is_valid(page: Path, call: list[str], run: Path, monkeypatch) -> None:
    monkeypatch.setenv("QA_ARCH_DATA", "data")
    assert call[0] in COMMANDS
    call = [word.replace("RUN", str(run)) if word.startswith("init_from=") else word for word in call]
    args = parser(call[0]).parse_args(call)
    if "--config-dir" in call:
        return  # its choices are in a folder that the tests of docs/settings.md and your_model.md write
    if call[0] == "train" and args.multirun:
        is_grid = not any(word.startswith("hydra/sweeper=") for word in call)
        own = [word for word in args.overrides if "," in word or word.startswith(("sweep.", "hydra"))]
        with multirun(own if is_grid else args.overrides) as given:
            assert given.swept or given.settings["folder"]
            if not is_grid:  # points of a grid are composed below
                config = given.compose([])
                for section, _, name in (key.rpartition(".") for key in given.keys):
                    assert name in (config[section] if section else config), name
    if call[0] != "train" or "model=gated" in call:
        return  # the gated model is the example below, which the next test builds
    for point in points(call):
        args = parser(call[0]).parse_args(point)
        for model in (getattr(args, "models", None) or "").split(","):
            chosen = [f"model={model}"] if model not in ("", "all") else []
            overrides = [word.replace("$SLURM_ARRAY_TASK_ID", "1") for word in args.overrides]
            config = validate(compose([*overrides, *chosen]))
            assert config.model["task"] in {*LOSSES, *recipes()}
            if page in EXPERIMENTS and not config.init_from:
                assert config.name == page.parent.name, "dev accesses are logged under this name"


def test_every_make_target_exists() -> None:
    makefile = page("Makefile")
    lines = "\n".join(blocks("bash"))
    named = set(re.findall(r"^make ([a-z-]+)", lines, flags=re.MULTILINE))
    named |= {name for path in PAGES for name in re.findall(r"`make ([a-z-]+)`", path.read_text("utf-8"))}
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_example_architecture_is_one_file_and_one_yaml(tmp_path, monkeypatch, few_questions) -> None:
    example = page("docs/your_model.md")
    (source,) = [block for block in blocks("python", example) if "class Gated" in block]
    (head,) = [block for block in blocks("python", example) if "class Deep" in block]
    model_settings, head_settings = (text for text in blocks("yaml", example) if "baselines." in text)
    (shown,) = blocks("yaml")
    assert shown == f"# conf/model/gated.yaml\n{model_settings}"
    baselines, config = tmp_path / "code", tmp_path / "conf"
    baselines.mkdir()
    (baselines / "gated.py").write_text(source)
    (baselines / "deep.py").write_text(head)
    import baselines as package

    monkeypatch.setattr(package, "__path__", [*package.__path__, str(baselines)])
    shutil.copytree(conf_folder(), config)
    (config / "model" / "gated.yaml").write_text(model_settings)
    (config / "head" / "deep.yaml").write_text(head_settings)
    (config / "head" / "misplaced.yaml").write_text(head_settings.partition("\n")[2])
    monkeypatch.setattr("qa_arch.config.find.conf_folder", lambda: config)
    settings = ["debug=fast", f"runs_dir={tmp_path}", "features.cache_dir=null", *few_questions]
    try:
        assert main(["train", "model=gated", *settings]) == 0
        assert main(["train", "model=gated", *settings, "model.dropuot=0.2"]) == 2
        assert main(["train", "model=bert", "head=deep", "model.head.hidden=16", *settings]) == 0
        with pytest.raises(ConfigError, match=r"head: its YAML must begin with the line '# @package"):
            compose(["model=bert", "head=misplaced"])
    finally:
        sys.modules.pop("baselines.gated", None)
        sys.modules.pop("baselines.deep", None)


@pytest.mark.parametrize("name", ["csv", "mlflow"])
def test_page_of_loggers_shows_their_files(name: str) -> None:
    files = blocks("yaml", page("docs/loggers.md"))
    (shown,) = (text for text in files if text.startswith(f"# conf/logger/{name}.yaml"))
    assert yaml.safe_load(shown) == yaml.safe_load((conf_folder() / "logger" / f"{name}.yaml").read_text())


def test_benchmarks_are_the_recorded_ones() -> None:
    from benchmarks.report import summary

    text = page("benchmarks/README.md")
    (shown,) = re.findall(r"<!-- bench -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    table = ROOT / "benchmarks" / "results" / "table.json"
    expected = (
        summary(json.loads(table.read_text(encoding="utf-8"))) if table.exists() else "`make bench` writes"
    )
    assert shown.strip().startswith(expected.strip())


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[<>=!; ]", item)[0] for group in groups for item in group}
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page("docs/dependencies.md"), flags=re.MULTILINE)
    listed = {name.strip() for row, _ in rows for name in row.split(",")}
    assert names == listed - {"package", "---"}
    for extra in project["optional-dependencies"]:
        name = f"`{extra}`" if extra == "dev" else f"`qa-arch[{extra}]`"
        assert any(name in why for _, why in rows), f"the extra {extra} is not named"


def test_layout_page_matches_the_tree() -> None:
    """Every folder with code is on the page, every path of the page exists, and the commands match."""
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", page("docs/layout.md"), flags=re.MULTILINE)
    named = {path for where, _ in rows for path in re.findall(r"`([^`]+)`", where)}
    assert not [path for path in named if not (ROOT / path).exists()]
    tops = {path.split("/")[0] for path in named}
    for folder in (*ROOT.glob("*/__init__.py"), *ROOT.glob("qa_arch/*/__init__.py")):
        inside = folder.parent.relative_to(ROOT).as_posix()
        assert any(path.startswith(inside) for path in named), f"{inside}/ is not in docs/layout.md"
    assert {"conf", "experiments", "tests", "docs"} <= tops
    for path in re.findall(r"`([\w/]+/\w+\.(?:py|yaml))`", page("docs/layout.md")):
        assert (ROOT / path).exists() or (ROOT / "qa_arch" / path).exists(), path
    (listed,) = (re.findall(r"`qa-arch ([^`]+)`", why)[0] for where, why in rows if "qa_arch/cli/" in where)
    assert set(listed.split(", ")) == set(OWN)


DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs_and_machine_paths(path):
    nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install -e '.[dev]'")
    notebook = nbformat.read(path, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all((cell.outputs, cell.execution_count, cell.metadata) == ([], None, {}) for cell in code)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))


def test_api_page_has_every_public_name():
    documented = set(re.findall(r"auto(?:function|class):: (\w+)$", page("docs/api.md"), re.MULTILINE))
    assert documented == set(dir(qa_arch)) - {"__version__"}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as ``make docs`` builds it: every page in a toctree, and every reference found."""
    pytest.importorskip("sphinx", reason="no sphinx: pip install -e '.[docs]'")
    out, trees = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("trees")
    options = ["-q", "-W", "--keep-going", "-c", ROOT / "docs", "-d", trees]
    command = [sys.executable, "-m", "sphinx", *options, ROOT, out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
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
    assert "url=README.html" in (site / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_pages_fetch_nothing_from_other_hosts(site):
    external = re.compile(
        r"""<(?:script|img|iframe)[^>]+src=["'](?:https?:)?//|<link[^>]+href=["'](?:https?:)?//"""
    )
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert len(pages) > 50
    assert not [page[:200] for page in pages if external.search(page)]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert not [css[:200] for css in styles if re.search(r"url\(\W*(?:https?:)?//|@import\s", css)]


def test_readme_has_at_most_140_lines() -> None:
    assert len(README.splitlines()) <= 140

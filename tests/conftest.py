"""Fixtures shared by all tests. No test uses the network."""

import gc
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _gpu_tests_selected() -> bool:
    """Whether the command line selects tests marked gpu (``-m gpu``)."""
    marks = [mark for option, mark in pairwise(sys.argv) if option == "-m"]
    return any("gpu" in mark and "not gpu" not in mark for mark in marks)


if not _gpu_tests_selected():
    # Triton reads this once per process, when first imported; a pytest hook would run after the other
    # conftest files, which import it.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite tests/goldens (test_goldens.py)")


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Exempt imported modules from garbage collection, which every run does before it measures memory."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def shared_composition() -> Iterator[None]:
    """Compose every choice of config groups, and read every config file, only once (``composing.py``)."""
    from composing import use_caches

    with pytest.MonkeyPatch.context() as patch:
        use_caches(patch)
        yield


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium, driven by playwright; skips if missing.

    Module-scoped, because no other event loop can run in the process while playwright does.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser found (looked for {', '.join(BROWSERS)})")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """``visit(place, width, within=..., **context)``: open a path or URL and return the loaded page.

    The test fails if a page logs anything to the console or requests a URL that does not start with
    ``within`` (by default its own).
    """
    problems, contexts = [], []

    def visit_page(place: Path | str, width: int = 1200, *, within: str = "", **options: Any) -> Any:
        url = place.as_uri() if isinstance(place, Path) else place
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        prefix = within or url
        page.on("request", lambda sent: None if sent.url.startswith(prefix) else problems.append(sent.url))
        page.set_default_timeout(60_000)
        page.goto(url)
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield visit_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="session", autouse=True)
def data_folder() -> Iterator[str]:
    """``QA_ARCH_DATA``, which is unset for the tests: without ``real_data`` they print the same anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        given = os.environ.get("QA_ARCH_DATA", "")
        patch.delenv("QA_ARCH_DATA", raising=False)
        yield given


@pytest.fixture(scope="session")
def real_data(data_folder: str) -> Path:
    """Folder of real data sets, named by ``QA_ARCH_DATA``; skips if missing."""
    folder = Path(data_folder).expanduser()
    if not data_folder or not (folder / "squad").is_dir():
        pytest.skip("no real data: set QA_ARCH_DATA to the folder with squad/ and glove/")
    return folder


@pytest.fixture(scope="session")
def few_questions(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides for generated sets: train of 2 articles, calibration and dev of 1 each."""
    from qa_arch.data.squad import write
    from qa_arch.data.synthetic import generate
    from qa_arch.files import write_json

    folder = tmp_path_factory.mktemp("few")
    for split, articles in (("train", 2), ("calibration", 1), ("dev", 1)):
        write_json(folder / f"{split}.json", write(generate(articles, 3, 1, split)))
    return [f"data.{split}={folder}/{split}.json" for split in ("train", "calibration", "dev")]


READERS = {
    "span": ["model=bert", "encoder.initializer_range=0.2"],
    "sequence": ["model=match_lstm/sequence", "glove=none", "encoder.width=8", "model.hidden=6"],
}
SMALL = [
    *("debug=fast", "features.cache_dir=null", "trainer.progress=false"),
    *("features.max_length=64", "features.max_question=24"),
]


@pytest.fixture(scope="session")
def question_set() -> Any:
    """Questions whose passages need one or several windows; no article is in the data of the runs."""
    from qa_arch.data.synthetic import generate

    return generate(2, 8, 1, "dev")


@pytest.fixture(scope="session")
def make_run(
    tmp_path_factory: pytest.TempPathFactory, question_set: Any, few_questions: list[str]
) -> Callable[[str], Path]:
    """``make_run(name)`` -> the folder of a run whose threshold answers half of ``question_set``."""
    from qa_arch import load
    from qa_arch.config.compose import compose
    from qa_arch.config.schema import validate
    from qa_arch.records import Confidence, Threshold, read_record, write_record
    from qa_arch.training.run import train

    def build(name: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / name
        train(validate(compose([*READERS[name], *SMALL, *few_questions])), folder=folder)
        reader = load(folder)
        odds = [reader(example.question, example.context).null_odds for example in question_set.examples]
        record = replace(
            read_record(folder),
            threshold=Threshold(value=statistics.median(odds), fitted_on="calibration"),
            confidence=Confidence(method="temperature", value=1.7, fitted_on="calibration"),
        )
        write_record(folder, record)
        return folder

    return build


@pytest.fixture(scope="session")
def span_run(make_run: Callable[[str], Path]) -> Path:
    """Do not change it."""
    return make_run("span")


@pytest.fixture(scope="session")
def reader(span_run: Path) -> Any:
    from qa_arch import load

    return load(span_run, device="cpu")


@pytest.fixture(scope="session")
def sequence_run(make_run: Callable[[str], Path]) -> Path:
    """Do not change it."""
    return make_run("sequence")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of question sets and six runs (``world.py``). Do not change it."""
    from world import build

    return build(tmp_path_factory.mktemp("world"))


@pytest.fixture
def qa_arch(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    """``qa_arch(*arguments)``: run the command in this process; returns exit code, stdout and stderr."""
    from qa_arch.cli.main import main

    def call(*arguments: object) -> tuple[Any, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # raised by argparse
            code = stop.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def step_on_two_ranks(tmp_path) -> Callable[[list[tuple[str, Any, Any, list[Any]]]], list[dict[str, Any]]]:
    """``step_on_two_ranks(models)``: checksum of each model's weights after two steps, one dict per rank.

    ``models``: (name, model, loss, [(batch, labels) of each rank]). One pair of processes trains all models.
    """

    def step(models: list[tuple[str, Any, Any, list[Any]]]) -> list[dict[str, Any]]:
        import torch
        from ranks import run_ranks

        torch.save(models, tmp_path / "models.pt")
        run_ranks(2, tmp_path)
        return [json.loads((tmp_path / f"step-{rank}.json").read_text()) for rank in range(2)]

    return step


@pytest.fixture
def renamed_encoder(monkeypatch):
    """Runs are loaded as models whose encoder is not called ``encoder``, as a user's may be."""
    from torch import nn

    from qa_arch.qa import loading

    load = loading.load

    def renamed(*args, **kwargs):
        reader = load(*args, **kwargs)
        reader.model = nn.Sequential(reader.model)
        return reader

    monkeypatch.setattr(loading, "load", renamed)

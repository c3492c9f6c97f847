"""Fixtures shared by all tests. No test reaches the network."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _on_a_gpu() -> bool:
    """Whether the command line asks for the tests marked gpu (``-m gpu``)."""
    marks = [mark for option, mark in pairwise(sys.argv) if option == "-m"]
    return any("gpu" in mark and "not gpu" not in mark for mark in marks)


if not _on_a_gpu():
    # Triton interprets or compiles in the whole process, by what stands here when it is first imported: a
    # hook would come after the other conftest files, which import it.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def quick_collections() -> None:
    """Every run collects garbage before it measures memory: without what was imported it takes no second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def shared_composition() -> Iterator[None]:
    """Every choice of config groups is composed once (``composing.py``)."""
    from composing import cached

    from qa_arch.cli import compose

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "hydra_compose", cached(compose.hydra_compose))
        yield


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of the system, driven by playwright; skips where there is none.

    For a module and no longer: while playwright runs, no other event loop can in its process.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'qa-arch[dev]'")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser found (looked for {', '.join(BROWSERS)})")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """``visit(place, width, within=..., **context)`` -> the page at a path or address, ready; at the end it
    must have been quiet and have asked for nothing but what begins with ``within``, itself by default."""
    heard, opened = [], []

    def go(place: Path | str, width: int = 1200, *, within: str = "", **options: Any) -> Any:
        url = place.as_uri() if isinstance(place, Path) else place
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: heard.append(str(error)))
        own = within or url
        page.on("request", lambda sent: None if sent.url.startswith(own) else heard.append(sent.url))
        page.set_default_timeout(60_000)
        page.goto(url)
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield go
    for context in opened:
        context.close()
    assert heard == []


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets that ``QA_ARCH_DATA`` names; the test skips where there is none."""
    folder = Path(os.environ.get("QA_ARCH_DATA", "")).expanduser()
    if not os.environ.get("QA_ARCH_DATA") or not (folder / "squad").is_dir():
        pytest.skip("real data not at hand: set QA_ARCH_DATA to the folder that holds squad/ and glove/")
    return folder


@pytest.fixture(scope="session")
def few_questions(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides that name generated sets of 2 articles and 1 and 1."""
    from qa_arch.config.files import write_json
    from qa_arch.data.squad import write
    from qa_arch.data.synthetic import generate

    folder = tmp_path_factory.mktemp("few")
    for split, articles in (("train", 2), ("calibration", 1), ("dev", 1)):
        write_json(folder / f"{split}.json", write(generate(articles, 3, 1, split)))
    return [f"data.{split}={folder}/{split}.json" for split in ("train", "calibration", "dev")]


@pytest.fixture
def qa_arch(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    """``qa_arch(*arguments)`` -> exit code, stdout, stderr."""
    from qa_arch.cli.main import main

    def call(*arguments: object) -> tuple[Any, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse's own
            code = stop.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def step_on_two_ranks(tmp_path) -> Callable[[list[tuple[str, Any, Any, list[Any]]]], list[dict[str, Any]]]:
    """``step_on_two_ranks(models)``: what each rank says of one step of every model.

    ``models``: name, model, loss, and the batch and labels of each rank. All take their step in one pair of
    processes.
    """

    def step(models: list[tuple[str, Any, Any, list[Any]]]) -> list[dict[str, Any]]:
        import torch

        torch.save(models, tmp_path / "models.pt")
        program = Path(__file__).parent / "ranks.py"
        started = [
            subprocess.Popen(
                [sys.executable, program, "step", str(rank), "2", tmp_path], stderr=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        output = [rank.communicate(timeout=240)[1] for rank in started]
        assert [rank.returncode for rank in started] == [0, 0], output
        return [json.loads((tmp_path / f"step-2-{rank}.json").read_text()) for rank in range(2)]

    return step

"""A real browser for the tests of pages: the Chromium of the system, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def start_browser() -> Iterator:
    """The body of a fixture: the browser, closed at the end; skips where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'qa-arch[dev]'")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser found (looked for {', '.join(NAMES)})")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()

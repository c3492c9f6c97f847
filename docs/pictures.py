"""Generate the pictures of README.md and docs/ that show real output.

    make demo && python docs/pictures.py [terminal] [report] [page]

``terminal.svg``: commands of README.md with their output, at 100 columns. ``report.png``: sections of the
report on the demo's committed records. ``page.png``: an answer of the demo's proposed model on the page of
``serve``. The last two need chromium for playwright; only the report needs no runs of the demo.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from qa_arch.errors import RunError
from qa_arch.files import write_atomic

if TYPE_CHECKING:
    from playwright.sync_api import Page, Playwright

DOCS = Path(__file__).parent
COLUMNS, LINES = 100, 50
DEMO = Path("runs/demo")
TRAIN = "qa-arch train model=bert experiment=demo seed=1 --folder runs/first"
READ = (
    "qa-arch compare runs/demo --baseline bert",
    'qa-arch ask runs/demo/proposed-s13-* --question "Which river was Kelldale reached by?" \\\n'
    '  --context "Kelldale is a southern town. The town was destroyed in 1752. The town was reached by'
    ' the river Kemcreek."',
)
SECTIONS = ("runs", "abstention")
"""Sections of the report shown in the picture."""
TERMINAL = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{
    font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's terminal SVG with system fonts instead of downloaded ones."""


def terminal(path: Path) -> None:
    """Draw the commands and their output, run with access to the demo's runs."""
    console = Console(record=True, width=COLUMNS, file=StringIO())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runs").mkdir()
        (folder / DEMO).symlink_to(DEMO.resolve(), target_is_directory=True)
        texts = {command: _output(command, folder) for command in READ}
        for command, text in ({TRAIN: _output(TRAIN, folder, kind="dumb")} | texts).items():
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(text.strip()), "")
    svg = console.export_svg(title="", theme=SVG_EXPORT_THEME, code_format=TERMINAL, unique_id="terminal")
    write_atomic(path, svg)


def _output(command: str, folder: Path, *, kind: str = "xterm-256color") -> str:
    """Output of a command in a terminal; in a "dumb" one, progress is printed as lines."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = os.environ | {"TERM": kind, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with subprocess.Popen(command, shell=True, cwd=folder, env=env, stdout=end, stderr=end) as process:
        os.close(end)
        text = "".join(_read(terminal))
    if process.returncode:
        raise RunError(f"{command}: {text.strip()}")
    return text.replace("\r\n", "\n")


def _read(terminal: int) -> Iterator[str]:
    """Read until the other end closes, which Linux reports as an error."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    with suppress(OSError):
        while data := os.read(terminal, 4096):
            yield decode(data)


def report(path: Path) -> None:
    """Take a screenshot of ``SECTIONS`` of the report on the demo's records."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        page = Path(folder) / "report.html"
        options = f"-o {page} --baseline bert --data synthetic:dev"
        _output(f"qa-arch report experiments/demo/records {options}", Path.cwd())
        tab = _tab(browsers, 900)
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready=yes]")
        shown = ", ".join(f"#{section}" for section in SECTIONS)
        tab.add_style_tag(content=f"section:not({shown}) {{ display: none }}")
        # A figure is drawn once it is near the screen.
        tab.set_viewport_size({"width": 1280, "height": tab.evaluate("document.body.scrollHeight")})
        tab.wait_for_selector("#figure-abstain svg.main-svg")
        tab.wait_for_timeout(500)
        tab.screenshot(path=path, full_page=True)


def page(path: Path) -> None:
    """Take a screenshot of the page of ``serve`` with the example's answer."""
    from playwright.sync_api import sync_playwright

    command = [f"{Path(sys.executable).parent}/qa-arch", "serve", "--port", "0", *DEMO.glob("proposed-s13-*")]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service,
        sync_playwright() as browsers,
    ):
        try:
            assert service.stdout is not None
            address = next(line for line in service.stdout if line.startswith("http")).split()[0]
            tab = _tab(browsers, 660)
            tab.goto(address)
            tab.click("#example")
            tab.click("#ask")
            tab.wait_for_selector("mark")
            tab.screenshot(path=path)
        finally:
            service.terminate()


def _tab(browsers: Playwright, height: int) -> Page:
    options = {"executable_path": os.environ.get("CHROMIUM"), "args": ["--no-sandbox"]}
    return browsers.chromium.launch(**options).new_page(viewport={"width": 1280, "height": height})


if __name__ == "__main__":
    pictures = sys.argv[1:] or ["terminal", "report", "page"]
    if pictures != ["report"] and not DEMO.is_dir():
        sys.exit(f"{DEMO}: no such folder; run make demo first")
    if "terminal" in pictures:
        terminal(DOCS / "terminal.svg")
    if "report" in pictures:
        report(DOCS / "report.png")
    if "page" in pictures:
        page(DOCS / "page.png")

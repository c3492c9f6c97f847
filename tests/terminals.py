"""Run commands in a real terminal of a given width, and press keys."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Escape sequences of colours and cursor movements."""
CTRL_C = b"\x03"
SECONDS = 240.0


class Terminal:
    """``qa-arch`` with these arguments as the foreground process of a terminal of ``width`` columns."""

    def __init__(self, arguments: Sequence[object], width: int, cwd: Path) -> None:
        command = [sys.executable, "-m", "qa_arch.cli.main", *map(str, arguments)]
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        self.output = b""
        self.process, self._terminal = pty.fork()
        if not self.process:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
            os.chdir(cwd)
            os.execve(sys.executable, command, environment)

    def wait_for(self, text: str) -> None:
        """Read until ``text`` is printed; AssertionError if the command ends or hangs first."""
        deadline = time.monotonic() + SECONDS
        while text not in self.text:
            assert time.monotonic() < deadline, f"no {text!r} in {self.text[-2000:]}"
            assert self._read() or text in self.text, f"ended without {text!r}: {self.text[-2000:]}"

    def press(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def finish(self) -> int:
        """Read all output and return the exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read():
            assert time.monotonic() < deadline, f"still running: {self.text[-2000:]}"
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.output.decode(errors="replace"))

    @property
    def lines(self) -> list[str]:
        """All lines ever printed, including overwritten text."""
        return re.split(r"[\r\n]+", self.text)

    def _read(self) -> bool:
        """Read available output; False once the command has closed the terminal."""
        if not select.select([self._terminal], [], [], 1.0)[0]:
            return True
        try:
            part = os.read(self._terminal, 1 << 16)
        except OSError:  # Linux: nobody has the other end open
            return False
        self.output += part
        return bool(part)

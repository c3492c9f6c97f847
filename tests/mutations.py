"""Plants the faults of ``faults.py`` one at a time and runs the tests that must notice.

    python tests/mutations.py [NAME...]

A fault is planted in a temporary copy of the checkout, never in the checkout itself. It counts as caught
only where one of its tests fails: a test that cannot be collected or set up proves nothing about it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("qa_arch", "baselines", "conf", "tests", "pyproject.toml")
TEST_SECONDS = 100
"""Limit of a single test: some faults make a loop endless."""
RUN_SECONDS = 600

Verdict = Literal["caught", "survived", "broken", "too slow"]


class StaleFaultError(Exception):
    """The text that a fault replaces is not in its file, or not once."""


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    failed: tuple[str, ...]
    """Names of the tests that failed; the first alone where the run stopped there."""
    seconds: float
    output: str
    """What pytest printed."""


class Checkout:
    """A copy of the checkout in ``folder`` (not there yet) whose packages win over the installed ones."""

    def __init__(self, folder: Path) -> None:
        self.root, self.scratch = folder / "checkout", folder / "scratch"
        for name in COPIED:
            source, target = ROOT / name, self.root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        self.environment = {
            **{key: value for key, value in os.environ.items() if key != "QA_ARCH_DATA"},
            "PYTHONPATH": str(self.root),
            # A fault may leave size and second of the file as they were: Python would take the old bytecode.
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._check_imports()

    def _check_imports(self) -> None:
        program = "import qa_arch, baselines; print(qa_arch.__file__, baselines.__file__, sep='\\n')"
        command = [sys.executable, "-c", program]
        found = subprocess.run(
            command, cwd=self.root, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        )
        for path in found.stdout.splitlines():
            if not Path(path).resolve().is_relative_to(self.root.resolve()):
                raise RuntimeError(f"{path} was imported and not the copy in {self.root}")

    def baseline(self, faults: Sequence[Fault] = FAULTS) -> Outcome:
        """The tests of all ``faults`` without any fault: ``survived`` is what it must be."""
        tests = dict.fromkeys(test for fault in faults for test in fault.tests)
        return self._run(tuple(tests), stop=False)

    def outcome(self, fault: Fault) -> Outcome:
        """What the tests of ``fault`` say while it is there. Raises StaleFaultError."""
        with self._planted(fault):
            return self._run(fault.tests, stop=True)

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path = self.root / fault.file
        sound = path.read_text(encoding="utf-8")
        path.write_text(plant(fault, sound), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(sound, encoding="utf-8")

    def _run(self, tests: Sequence[str], *, stop: bool) -> Outcome:
        report = self.scratch.with_suffix(".xml")
        report.unlink(missing_ok=True)
        options = ["-p", "no:cacheprovider", "--hypothesis-seed=0", f"--timeout={TEST_SECONDS}", "--tb=short"]
        options += [f"--basetemp={self.scratch}", f"--junitxml={report}", *(["-x"] if stop else [])]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the ranks that a test may have started
            return Outcome("too slow", (), time.monotonic() - begun, process.communicate()[0])
        return _judged(process.returncode, report, time.monotonic() - begun, output)


def plant(fault: Fault, text: str) -> str:
    """``text`` with the fault in it. Raises StaleFaultError."""
    if (count := text.count(fault.old)) != 1:
        raise StaleFaultError(
            f"{fault.name}: what it replaces stands {count} times in {fault.file}, not once: "
            f"bring tests/faults.py up to date\n{fault.old}"
        )
    return text.replace(fault.old, fault.new)


def _judged(code: int, report: Path, seconds: float, output: str) -> Outcome:
    """By exit status and report: a test that failed, or nothing but errors before and after tests."""
    failed: tuple[str, ...] = ()
    if report.is_file():
        cases = ElementTree.parse(report).iter("testcase")
        failed = tuple(case.attrib["name"] for case in cases if case.find("failure") is not None)
    verdict: Verdict = "survived" if code == 0 else "caught" if code == 1 and failed else "broken"
    return Outcome(verdict, failed, seconds, output)


def chosen(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of these names, all without any. Exits where there is no such fault."""
    by_name = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"no such fault: {', '.join(unknown)}; there are: {', '.join(by_name)}")
    return tuple(by_name[name] for name in names) or FAULTS


def main(names: Sequence[str]) -> int:
    faults = chosen(names)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        checkout = Checkout(Path(folder))
        sound = checkout.baseline(faults)
        if sound.verdict != "survived":
            print(sound.output, "\nwithout any fault the tests must pass", sep="")
            return 1
        print(f"{'without fault':<60} {'passed':<10}{sound.seconds:6.1f} s")
        left = 0
        for fault in faults:
            found = checkout.outcome(fault)
            left += found.verdict != "caught"
            by = found.failed[0] if found.failed else ""
            print(f"{fault.name:<60} {found.verdict:<10}{found.seconds:6.1f} s  {by}", flush=True)
    print(f"{len(faults) - left} of {len(faults)} faults were caught")
    return min(left, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

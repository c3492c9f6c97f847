"""Plants the faults of ``faults/`` one at a time and runs the tests that must catch them.

    pytest -m slow "tests/test_faults.py::test_planted_fault_is_caught[NAME]"
    pytest -m slow -n auto tests/test_faults.py

The first runs one fault, the second all. Faults are planted in a temporary copy of the checkout, never in the
checkout itself. A fault counts as caught only if one of its tests fails; errors in collection or setup prove
nothing.
"""

import ast
import compileall
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Literal
from xml.etree import ElementTree

import pytest
import torch
from planting import PACKAGES, Fault, Sources, StaleFaultError

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    *("qa_arch", "baselines", "conf", "docs", "experiments", "tests"),
    *("pyproject.toml", "README.md", "constraints.txt"),
)
LIBRARIES = ["datasets", "evaluate", "hydra", "pytorch_lightning", "torch", "transformers"]
"""Loaded once, by the process whose forks run pytest: importing them takes longer than most tests."""
TEST_SECONDS = 100
"""Limit for a single test: some faults cause endless loops."""
RUN_SECONDS = 600
BASELINE_SECONDS = 3600
"""Limit for all tests without a fault, which is most of the suite in one process."""
CACHE = ROOT / ".pytest_cache/mutations"
"""The test that last caught each fault, to be run first the next time."""

Verdict = Literal["caught", "survived", "skipped", "broken", "too slow"]


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    failed: tuple[str, ...]
    """Names of the failed tests; only the first if pytest stopped there."""
    seconds: float
    output: str
    """Output of pytest."""


class Checkout:
    """A copy of the checkout in the new ``folder``; its packages take precedence over the installed ones."""

    def __init__(self, folder: Path) -> None:
        self.root, self.scratch = folder / "checkout", folder / "scratch"
        for name in COPIED:
            source, target = ROOT / name, self.root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._check_imports()
        self.sources = Sources(self.root)
        for package in PACKAGES:
            # A fault may leave size and mtime (in seconds) of a file unchanged.
            by_hash = PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(self.root / package, quiet=2, invalidation_mode=by_hash)
        self.processes = get_context("forkserver")
        self.processes.set_forkserver_preload(LIBRARIES)

    def _check_imports(self) -> None:
        program = "import qa_arch, baselines; print(qa_arch.__file__, baselines.__file__, sep='\\n')"
        command = [sys.executable, "-c", program]
        imported = subprocess.run(
            command, cwd=self.root, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        )
        for path in imported.stdout.splitlines():
            if not Path(path).resolve().is_relative_to(self.root.resolve()):
                raise RuntimeError(f"imported {path} instead of the copy in {self.root}")

    def tests(self, faults: Sequence[Fault]) -> tuple[str, ...]:
        """The tests of ``faults``, without duplicates."""
        tests = dict.fromkeys(self.sources.test_id(fault) for fault in faults)
        return tuple(test for test in tests if "::" not in test or test.split("::")[0] not in tests)

    def baseline(self, tests: Sequence[str]) -> Outcome:
        """Run ``tests`` without any fault; the verdict must be ``survived``."""
        return self._run(tests, "-p", "no:cacheprovider", limit=BASELINE_SECONDS)

    def outcome(self, fault: Fault) -> Outcome:
        """Plant ``fault`` and run its test. Raises StaleFaultError."""
        with self._planted(fault):
            cache = CACHE / re.sub(r"\W+", "-", fault.name)
            return self._run([self.sources.test_id(fault)], "-x", "--failed-first", f"-ocache_dir={cache}")

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path, text = self.sources.plant(fault)
        original = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(original, encoding="utf-8")

    def _run(self, tests: Sequence[str], *options: str, limit: int = RUN_SECONDS) -> Outcome:
        report, printed = self.scratch.with_suffix(".xml"), self.scratch.with_suffix(".txt")
        report.unlink(missing_ok=True)
        files = [f"--basetemp={self.scratch}", f"--junitxml={report}"]
        limits = ["--hypothesis-seed=0", f"--timeout={TEST_SECONDS}", "--tb=short", "-m", "not gpu"]
        start = time.monotonic()
        arguments = (self.root, self.environment, printed, [*limits, *files, *options, *tests])
        process = self.processes.Process(target=_pytest, args=arguments)
        process.start()
        try:
            process.join(limit)
        finally:
            ended = not process.is_alive()
            if not ended:  # endless, or interrupted
                os.killpg(process.pid, signal.SIGKILL)  # includes ranks started by tests
        seconds, output = time.monotonic() - start, printed.read_text(encoding="utf-8", errors="replace")
        if not ended:
            return Outcome("too slow", (), seconds, output)
        return _outcome(process.exitcode, report, seconds, output)


def _pytest(root: Path, environment: dict[str, str], printed: Path, arguments: list[str]) -> None:
    """Run pytest in ``root``, in a new session; its exit code is that of the process."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    os.chdir(root)
    with printed.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.path.insert(0, str(root))
    sys.exit(pytest.main(arguments))


def _outcome(code: int | None, report: Path, seconds: float, output: str) -> Outcome:
    """Tell failed tests from errors in collection, setup or teardown, by exit code and JUnit report."""
    failed: tuple[str, ...] = ()
    passed: Verdict = "survived"
    if report.is_file():
        cases = [*ElementTree.parse(report).iter("testcase")]
        failed = tuple(case.attrib["name"] for case in cases if case.find("failure") is not None)
        if cases and all(case.find("skipped") is not None for case in cases):
            passed = "skipped"  # for want of a browser, say: nothing looked for the fault
    verdict: Verdict = passed if code == 0 else "caught" if code == 1 and failed else "broken"
    return Outcome(verdict, failed, seconds, output)


def stale_faults(sources: Sources, faults: Sequence[Fault]) -> list[str]:
    """One message for each of ``faults`` that cannot be planted, changes nothing or has no test."""
    messages = []
    for fault in faults:
        try:
            path, planted = sources.plant(fault)
            if path.suffix == ".py":
                ast.parse(planted)
            if "".join(fault.old.split()) == "".join(fault.new.split()):
                messages.append(f"{fault.name}: changes nothing")
            sources.test_id(fault)
        except SyntaxError as error:
            messages.append(f"{fault.name}: {error}")
        except StaleFaultError as error:
            messages.append(str(error))
    return messages

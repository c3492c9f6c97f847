"""Plants the faults of ``faults/`` one at a time and runs the tests that must notice.

    python tests/mutations.py [NAME...]

A fault is planted in a temporary copy of the checkout, never in the checkout itself. It counts as caught only
where one of its tests fails: a test that cannot be collected or set up proves nothing about it. All of them
side by side: ``pytest -n auto -m slow tests/slow/test_mutations.py``.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
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

from faults import FAULTS
from planting import Fault, Sources, StaleFaultError

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    *("qa_arch", "baselines", "hydra_plugins", "conf", "docs", "experiments", "tests"),
    *("pyproject.toml", "README.md", "constraints.txt"),
)
TEST_SECONDS = 100
"""Limit of a single test: some faults make a loop endless."""
RUN_SECONDS = 600
SOUND_SECONDS = 3600
"""Limit of all tests without a fault, which is most of the suite in one process."""
CACHE = ROOT / ".pytest_cache/mutations"
"""Which test caught each fault last: it runs first the next time."""

Verdict = Literal["caught", "survived", "broken", "too slow"]


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    failed: tuple[str, ...]
    """Names of the tests that failed; the first alone where pytest stopped there."""
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
        self.sources = Sources(self.root)

    def _check_imports(self) -> None:
        program = "import qa_arch, baselines; print(qa_arch.__file__, baselines.__file__, sep='\\n')"
        command = [sys.executable, "-c", program]
        imported = subprocess.run(
            command, cwd=self.root, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        )
        for path in imported.stdout.splitlines():
            if not Path(path).resolve().is_relative_to(self.root.resolve()):
                raise RuntimeError(f"{path} was imported and not the copy in {self.root}")

    def tests(self, faults: Sequence[Fault]) -> tuple[str, ...]:
        """The tests of ``faults``, no test twice."""
        tests = dict.fromkeys(self.sources.test_id(fault) for fault in faults)
        return tuple(test for test in tests if "::" not in test or test.split("::")[0] not in tests)

    def baseline(self, tests: Sequence[str]) -> Outcome:
        """The result of ``tests`` without any fault: ``survived`` is what it must be."""
        return self._run(tests, "-p", "no:cacheprovider", limit=SOUND_SECONDS)

    def outcome(self, fault: Fault) -> Outcome:
        """The result of the test of ``fault`` while it is there. Raises StaleFaultError."""
        with self._planted(fault):
            cache = CACHE / re.sub(r"\W+", "-", fault.name)
            return self._run([self.sources.test_id(fault)], "-x", "--failed-first", f"-ocache_dir={cache}")

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path, text = self.sources.plant(fault)
        sound = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(sound, encoding="utf-8")

    def _run(self, tests: Sequence[str], *options: str, limit: int = RUN_SECONDS) -> Outcome:
        report = self.scratch.with_suffix(".xml")
        report.unlink(missing_ok=True)
        files = [f"--basetemp={self.scratch}", f"--junitxml={report}"]
        limits = ["--hypothesis-seed=0", f"--timeout={TEST_SECONDS}", "--tb=short", "-m", "not gpu"]
        command = [sys.executable, "-m", "pytest", *limits, *files, *options, *tests]
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
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the ranks that a test may have started
            return Outcome("too slow", (), time.monotonic() - begun, process.communicate()[0])
        finally:
            if process.poll() is None:  # interrupted
                os.killpg(process.pid, signal.SIGKILL)
        return _judged(process.returncode, report, time.monotonic() - begun, output)


def _judged(code: int, report: Path, seconds: float, output: str) -> Outcome:
    """By exit status and report: a test that failed, or nothing but errors before and after tests."""
    failed: tuple[str, ...] = ()
    if report.is_file():
        cases = ElementTree.parse(report).iter("testcase")
        failed = tuple(case.attrib["name"] for case in cases if case.find("failure") is not None)
    verdict: Verdict = "survived" if code == 0 else "caught" if code == 1 and failed else "broken"
    return Outcome(verdict, failed, seconds, output)


def chosen(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of these names, all without any. Exits where there is no such fault or it is stale."""
    by_name = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"no such fault: {', '.join(unknown)}; there are: {', '.join(by_name)}")
    faults = tuple(by_name[name] for name in names) or FAULTS
    if stale := stale_faults(Sources(ROOT), faults):
        sys.exit("\n".join([*stale, "bring tests/faults/ up to date"]))
    return faults


def stale_faults(sources: Sources, faults: Sequence[Fault]) -> list[str]:
    """What is the matter with each of ``faults`` that cannot be planted, changes nothing or has no test."""
    messages = []
    for fault in faults:
        try:
            path, planted = sources.plant(fault)
            sound = path.read_text(encoding="utf-8")
            if path.suffix == ".py":
                planted, sound = ast.dump(ast.parse(planted)), ast.dump(ast.parse(sound))
            if planted == sound:
                messages.append(f"{fault.name}: changes nothing")
            sources.test_id(fault)
        except StaleFaultError as error:
            messages.append(str(error))
    return messages


def run(faults: Sequence[Fault], checkout: Checkout) -> int:
    """Plant all ``faults``, one after the other, and print the outcomes as they come. Returns how many were
    not caught, or all where the tests fail without any fault."""
    sound = checkout.baseline(checkout.tests(faults))
    if sound.verdict != "survived":
        print(sound.output, "\nwithout any fault the tests must pass", sep="")
        return len(faults)
    print(f"the tests passed without any fault in {sound.seconds:.1f} s", flush=True)
    begun, missed = time.monotonic(), 0
    for done, fault in enumerate(faults, 1):
        result = checkout.outcome(fault)
        pace = (time.monotonic() - begun) / done
        left = f"{pace:.1f} s each, {pace * (len(faults) - done) / 60:.0f} min left"
        print(f"[{done:>3}/{len(faults)}] {_line(fault, result)}  {left}", flush=True)
        missed += result.verdict != "caught"
    return missed


def _line(fault: Fault, result: Outcome) -> str:
    catcher = " ".join(result.failed[:1])
    return f"{fault.name:<60} {result.verdict:<8} {result.seconds:6.1f} s  {catcher[:60]:<60}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults and run the tests that must notice.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults; all without any")
    faults = chosen(parser.parse_args().names)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        missed = run(faults, Checkout(Path(folder) / "0"))
    print(f"{len(faults) - missed} of {len(faults)} faults were caught")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())

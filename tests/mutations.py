"""Plants the faults of ``faults/`` one at a time and runs the tests that must catch them.

    python tests/mutations.py [NAME...]

Faults are planted in a temporary copy of the checkout, never in the checkout itself. A fault counts as caught
only if one of its tests fails; errors in collection or setup prove nothing. To run all faults in parallel:
``pytest -n auto -m slow tests/slow/test_mutations.py``.
"""

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

from qa_arch.config.check import suggest

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    *("qa_arch", "baselines", "conf", "docs", "experiments", "tests"),
    *("pyproject.toml", "README.md", "constraints.txt"),
)
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
            **{key: value for key, value in os.environ.items() if key != "QA_ARCH_DATA"},
            "PYTHONPATH": str(self.root),
            # A fault may leave size and mtime (in seconds) of a file unchanged: stale bytecode would be used.
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
        report = self.scratch.with_suffix(".xml")
        report.unlink(missing_ok=True)
        files = [f"--basetemp={self.scratch}", f"--junitxml={report}"]
        limits = ["--hypothesis-seed=0", f"--timeout={TEST_SECONDS}", "--tb=short", "-m", "not gpu"]
        command = [sys.executable, "-m", "pytest", *limits, *files, *options, *tests]
        start = time.monotonic()
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
            os.killpg(process.pid, signal.SIGKILL)  # includes ranks started by tests
            return Outcome("too slow", (), time.monotonic() - start, process.communicate()[0])
        finally:
            if process.poll() is None:  # interrupted
                os.killpg(process.pid, signal.SIGKILL)
        return _outcome(process.returncode, report, time.monotonic() - start, output)


def _outcome(code: int, report: Path, seconds: float, output: str) -> Outcome:
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


def select_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """Faults called ``names``, or all if empty. Exits if one is unknown or stale."""
    by_name = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"unknown fault: {unknown[0]}{suggest(unknown[0], by_name, limit=3)}; see tests/faults/")
    faults = tuple(by_name[name] for name in names) or FAULTS
    if stale := stale_faults(Sources(ROOT), faults):
        sys.exit("\n".join([*stale, "update tests/faults/"]))
    return faults


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


def run(faults: Sequence[Fault], checkout: Checkout) -> int:
    """Plant all ``faults`` one by one and print the outcomes. Returns the number of faults not caught: all of
    them if the tests fail without any fault."""
    baseline = checkout.baseline(checkout.tests(faults))
    if baseline.verdict != "survived":
        print(baseline.output, "\nthe tests must pass without any fault", sep="")
        return len(faults)
    print(f"the tests passed without any fault in {baseline.seconds:.1f} s", flush=True)
    start, missed = time.monotonic(), 0
    for done, fault in enumerate(faults, 1):
        result = checkout.outcome(fault)
        average = (time.monotonic() - start) / done
        left = f"{average:.1f} s each, {average * (len(faults) - done) / 60:.0f} min left"
        print(f"[{done:>3}/{len(faults)}] {_line(fault, result)}  {left}", flush=True)
        missed += result.verdict not in ("caught", "skipped")
    return missed


def _line(fault: Fault, result: Outcome) -> str:
    failed = " ".join(result.failed[:1])
    return f"{fault.name:<60} {result.verdict:<8} {result.seconds:6.1f} s  {failed[:60]:<60}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults and run the tests that must catch them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="name of a fault (default: all)")
    faults = select_faults(parser.parse_args().names)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        missed = run(faults, Checkout(Path(folder) / "0"))
    print(f"{len(faults) - missed} of {len(faults)} faults were caught")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())

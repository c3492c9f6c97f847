"""Commands that are killed at random moments leave no half file, and do their work when called again.

Ten kills of each at moments of its whole duration, of which most is imports, and ten more as soon as a file
is being written. ``tests/config/test_killed_writes.py`` goes through every step of one write.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kills import Contents, check_recovery, contents, killed_at_each_step

from qa_arch.cli.main import main
from qa_arch.config.files import is_unfinished, write_json
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate

KILLS, SEED = 10, 2026
QA_ARCH = [sys.executable, "-m", "qa_arch.cli.main"]
CACHE = """
import sys
from qa_arch.data.squad import read
from qa_arch.features import tokenizers
from qa_arch.config.schema import Features
from qa_arch.features.cache import windows_of
questions = read(sys.argv[1])
words = tokenizers.build("wordpiece", [example.context for example in questions.examples[:200]], 300)
windows_of(questions, words, Features(64, 16, 20, cache_dir=sys.argv[2]), segments=True)
"""
COMMANDS = {
    "data synthetic": [*QA_ARCH, "data", "synthetic", "--articles", "300", "--out", "OUT/x.json"],
    "data split": [*QA_ARCH, "data", "split", "--data", "DATA", "--out", "OUT"],
    "report": [*QA_ARCH, "report", "RUNS", "--data", "synthetic:dev", "--out", "OUT/report.html"],
    "predict": [*QA_ARCH, "predict", "RUN", "--data", "DATA", "--out", "OUT"],
    "feature cache": [sys.executable, "-c", CACHE, "DATA", "OUT"],
}
STEPPED = {
    "tables --publish": ["tables", "RUNS", "--publish", "OUT/records"],
    "export": ["export", "RUN", "--to", "onnx", "--out", "OUT/graph"],
}
"""Commands that write folders, by their arguments."""


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    """What the placeholders in ``COMMANDS`` stand for: a set of questions and a trained run."""
    folder = tmp_path_factory.mktemp("places")
    data = write_json(folder / "data.json", write(generate(60, seed=3)))
    settings = ["debug=fast", f"runs_dir={folder / 'runs'}", f"features.cache_dir={folder / 'cache'}"]
    assert main(["train", "model=bert", *settings, "trainer.progress=false"]) == 0
    (run,) = (folder / "runs").glob("*/bert-*")
    return {"DATA": str(data), "RUNS": str(folder / "runs"), "RUN": str(run)}


def without_time(folder: Path) -> Contents:
    """The files of ``folder`` without the time that they were written at, and how long it took."""
    moment = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.+Z]+|\"\w*(?:seconds|_mb|predict)\": [\d.]+")
    return {name: moment.sub(b"", data) for name, data in contents(folder).items()}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_and_called_again_is_the_same_as_undisturbed(tmp_path, places, name):
    folder = tmp_path / "out"
    folder.mkdir()
    words = [places.get(word, word).replace("OUT", str(folder)) for word in COMMANDS[name]]
    rng = random.Random(SEED)

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def work() -> None:
        process = begin()
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()

    def kills() -> Iterator[str]:
        left = 0
        for where in ("anywhere", "in writing"):
            done = 0
            while done < KILLS:
                process = begin()
                wait(process, where)
                process.kill()
                _, errors = process.communicate()
                if process.returncode == 0:
                    continue  # it was faster
                assert process.returncode == -signal.SIGKILL, errors.decode()
                done += 1
                left += any(map(is_unfinished, folder.iterdir()))
                yield f"{done} {where}"
        print(f"{name}: {2 * KILLS} kills over {seconds:.1f} s, {left} of which left temporary files")
        assert left

    def wait(process: subprocess.Popen[bytes], where: str) -> None:
        if where == "anywhere":
            time.sleep(rng.uniform(0, seconds))
            return
        while process.poll() is None and not any(map(is_unfinished, folder.iterdir())):
            time.sleep(0.0005)  # who sleeps is woken in time where others want the cores; who spins waits
        time.sleep(rng.uniform(0, 0.005))

    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    assert check_recovery(kills(), folder, work, read=without_time) == 2 * KILLS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", STEPPED)
def test_killed_at_each_step_on_the_disk(tmp_path, places, name, monkeypatch):
    monkeypatch.chdir(Path(places["DATA"]).parent)  # a record that is published names nothing outside
    folder = tmp_path / "out"
    folder.mkdir()
    words = [places.get(word, word).replace("OUT", str(folder)) for word in STEPPED[name]]
    torch.set_num_threads(1)  # a forked process has none of its parent's threads

    def work() -> None:
        if words[-1].endswith("graph") and Path(words[-1]).exists():
            return  # it was there before the kill, and is compared with a whole one
        assert main(words) == 0

    assert check_recovery(killed_at_each_step(work, folder), folder, work, read=without_time) > 3

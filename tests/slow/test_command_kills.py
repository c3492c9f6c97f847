"""Commands that are killed at any step on the disk leave no half file, and do their work when called again.

``tests/config/test_killed_writes.py`` goes through every step of one write, ``tests/features/test_cache.py``
through those of the feature cache.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from kills import Contents, check_recovery, contents, killed_at_each_step

from qa_arch.cli.main import main
from qa_arch.config.files import write_json
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate

COMMANDS = {
    "data synthetic": ["data", "synthetic", "--articles", "30", "--out", "OUT/x.json"],
    "data split": ["data", "split", "--data", "DATA", "--out", "OUT"],
    "report": ["report", "RUNS", "--data", "synthetic:dev", "--out", "OUT/report.html"],
    "predict": ["predict", "RUN", "--data", "DATA", "--out", "OUT"],
    "tables --publish": ["tables", "RUNS", "--publish", "OUT/records"],
    "export": ["export", "RUN", "--to", "onnx", "--out", "OUT/graph"],
}
"""Commands that write files or folders, by their arguments."""


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    """What the placeholders in ``COMMANDS`` stand for: a set of questions and a trained run."""
    folder = tmp_path_factory.mktemp("places")
    data = write_json(folder / "data.json", write(generate(5, seed=3)))
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
def test_killed_and_called_again_is_the_same_as_undisturbed(tmp_path, places, name, monkeypatch):
    monkeypatch.chdir(Path(places["DATA"]).parent)  # a record that is published names nothing outside
    folder = tmp_path / "out"
    folder.mkdir()
    words = [places.get(word, word).replace("OUT", str(folder)) for word in COMMANDS[name]]
    torch.set_num_threads(1)  # a forked process has none of its parent's threads

    def work() -> None:
        if words[-1].endswith("graph") and Path(words[-1]).exists():
            return  # it was there before the kill, and is compared with a whole one
        assert main(words) == 0

    assert check_recovery(killed_at_each_step(work, folder), folder, work, read=without_time) > 3

"""Commands killed at any file operation leave no partial file, and finish their work when repeated.

``tests/config/test_files.py`` covers every step of one write, ``tests/features/test_cache.py`` the
feature cache.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kills import Contents, check_recovery, contents, killed_at_each_step

from qa_arch.cli.main import main
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import RunError
from qa_arch.files import write_json
from qa_arch.records import read_record, read_scored, write_record

COMMANDS = {
    "data synthetic": ["data", "synthetic", "--articles", "30", "--out", "OUT/x.json"],
    "data split": ["data", "split", "--data", "DATA", "--out", "OUT"],
    "report": ["report", "RUNS", "--data", "synthetic:dev", "--out", "OUT/report.html"],
    "predict": ["predict", "RUN", "--data", "DATA", "--out", "OUT", "--if-exists", "replace"],
    "tables --publish": ["tables", "RUNS", "--publish", "OUT/records"],
    "export": ["export", "RUN", "--to", "onnx", "--out", "OUT/graph"],
    "export --to hf": ["export", "RUN", "--to", "hf", "--out", "OUT/graph"],
    "adopt": ["adopt", "--predictions", "ANSWERS", "--data", "DEV", "--name", "x", "--folder", "OUT/x"],
}
"""Command that writes files or folders -> its arguments."""


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    """Values of the placeholders in ``COMMANDS``: a set of questions and a trained run."""
    folder = tmp_path_factory.mktemp("places")
    data = write_json(folder / "data.json", write(generate(5, seed=3)))
    settings = ["debug=fast", f"runs_dir={folder / 'runs'}", f"features.cache_dir={folder / 'cache'}"]
    assert main(["train", "model=bert", *settings, "trainer.progress=false"]) == 0
    (run,) = (folder / "runs").glob("*/bert-*")
    dev = write_json(folder / "dev.json", write(generate(2, 7, 1, "dev")))
    answers = write_json(folder / "answers.json", {e.id: "" for e in generate(2, 7, 1, "dev").examples})
    suite = write_json(folder / "suite.yaml", {"sets": {"dev": {"data": str(dev)}}})
    files = {"DATA": data, "DEV": dev, "ANSWERS": answers, "SUITE": suite}
    return {name: str(path) for name, path in {**files, "RUNS": folder / "runs", "RUN": run}.items()}


def contents_without_times(folder: Path) -> Contents:
    """Contents of the files of ``folder`` without dates, durations and memory use, and without locks, which
    have no effect once their process was killed."""
    times = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.+Z]+|\"\w*(?:seconds|_mb|predict)\": [\d.]+")
    files = contents(folder).items()
    return {name: times.sub(b"", data) for name, data in files if not name.endswith(".lock")}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_command_finishes_when_repeated(tmp_path, places, name, monkeypatch):
    monkeypatch.chdir(Path(places["DATA"]).parent)  # paths in published records must be relative
    folder = tmp_path / "out"
    folder.mkdir()
    arguments = [places.get(word, word).replace("OUT", str(folder)) for word in COMMANDS[name]]
    torch.set_num_threads(1)  # a forked process has none of its parent's threads

    def work() -> None:
        if arguments[-1].endswith("graph") and Path(arguments[-1]).exists():
            return  # complete before the kill: an existing folder is refused
        assert main(arguments) == 0

    assert check_recovery(killed_at_each_step(work, folder), folder, work, read=contents_without_times) > 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", ["suite SUITE OUT", "evaluate --run OUT"])
def test_killed_scoring_is_refused_or_whole_and_can_be_repeated(tmp_path, places, command):
    """Also where the rows of the set differ from those that the record has: a new null threshold."""
    run = tmp_path / "run"
    places = {**places, "OUT": str(run)}
    torch.set_num_threads(1)

    def restore() -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(places["RUN"], run)
        record = read_record(run)
        write_record(run, replace(record, threshold=replace(record.threshold, value=-99.0)))

    def work() -> None:
        assert main([places.get(word, word) for word in command.split()]) == 0

    restore()
    old = read_scored(run).scores
    work()
    new, outcomes = read_scored(run).scores, []
    assert new != old
    restore()
    for _ in killed_at_each_step(work, run):
        try:
            outcomes.append([old, new].index(read_scored(run).scores))
        except RunError:
            outcomes.append("refused")
        work()
        assert read_scored(run).scores == new
        restore()
    assert {*outcomes} == {0, 1} | ({"refused"} if command.startswith("evaluate") else set())

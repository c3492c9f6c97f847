"""Golden texts: what commands write on the small world of ``world.py``, and the numbers behind every result.

A file ``goldens/*.txt`` lists commands, each with what it wrote when it was last updated. To add one, write a
line ``$ qa-arch ...`` and run ``pytest tests/test_goldens.py --update-goldens``, which rewrites all the rest.
The commands of a file run in this order in a fresh copy of the world, with every extra of this repository.
"""

import csv
import difflib
import io
import json
import logging
import re
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from reports import page_figures, page_parts, page_text

from qa_arch import __version__
from qa_arch.cli.main import COMMANDS, main
from qa_arch.config.find import config_folders, groups
from qa_arch.data.synthetic import generate
from qa_arch.records import RECORD, read_questions, read_record

ROOT = Path(__file__).parents[1]
GOLDENS = Path(__file__).with_name("goldens")
LISTS = sorted(path.stem for path in GOLDENS.glob("*.txt"))
VARYING = {
    re.compile(pattern, re.MULTILINE): text
    for pattern, text in {
        r"\d{4}-\d\d-\d\dT[\d:]+(\.\d+)?(\+00:00|Z)": "DATE",
        r"written \d{4}-\d\d-\d\d": "written DATE",
        r"\d{4}-\d\d-\d\d by qa_arch": "DATE by qa_arch",
        rf"\b{re.escape(__version__)}\b": "VERSION",
        r"\d+\.\d MB": "N MB",
        r'"(code|commit)": (".*"|null)': r'"\1": CODE',
        r"[ \t]+$": "",
    }.items()
}
"""Pattern -> text in its place: what differs between days, versions and machines."""
LONG = re.compile(r"\d+\.\d{10,}(e[+-]\d+)?")
DEMO = """train --models all experiment=demo data=files data.train=synthetic:train data.train_questions=640
    data.calibration=calibration.json data.dev=dev.json features.cache_dir=null logger=csv
    trainer.max_steps=20 trainer.log_every=1 trainer.progress=false"""
SHOWN = 40
"""Maximum lines of a diff."""


@pytest.fixture
def folder(world, tmp_path, monkeypatch):
    """A copy of the world as the working folder, on a terminal of 120 columns."""
    monkeypatch.chdir(shutil.copytree(world, tmp_path / "world"))
    for name, value in {"COLUMNS": "120", "LINES": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    for name in ("QA_ARCH_DATA", "FORCE_COLOR", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def golden(request):
    """``golden(path, text)``: fail unless the file holds the text; ``--update-goldens`` rewrites it."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-goldens"):
            path.write_text(text, encoding="utf-8")
        now, before = text.splitlines(), path.read_text(encoding="utf-8").splitlines()
        diff = list(difflib.unified_diff(before, now, "golden", "now", n=2, lineterm=""))
        diff[SHOWN:] = [f"... and {len(diff) - SHOWN} more lines"] if len(diff) > SHOWN else []
        if diff:
            remedy = "if this change is meant: pytest tests/test_goldens.py --update-goldens"
            pytest.fail("\n".join([f"{path.relative_to(ROOT)} differs", *diff, remedy]), pytrace=False)

    return check


def steady(text: str) -> str:
    """The text without what varies; floats with more digits than processors agree on are rounded."""
    text = text.replace(str(Path.cwd()), "WORLD").replace(str(ROOT), "CHECKOUT")
    for pattern, name in VARYING.items():
        text = pattern.sub(name, text)
    return LONG.sub(lambda match: f"{float(match[0]):.10g}", text)


def qa_arch(*arguments: str) -> tuple:
    """Exit code, standard output, and standard error with log messages."""
    out, err = io.StringIO(), io.StringIO()
    log = patch.object(logging.getLogger(), "handlers", [logging.StreamHandler(err)])
    with log, redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as stop:  # raised by argparse
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]


def outline(value, path: str = "") -> Iterator[str]:
    """A line for each part of a page's data: its path and JSON, of long ones the beginning and a digest."""
    text = steady(json.dumps(value, ensure_ascii=False))
    if len(text) > 80 and path.count(".") < 3 and isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from outline(part, f"{path}.{key}")
    else:
        yield f"{path[1:]} {text if len(text) <= 80 else f'{text[:60]}... {digest(text.encode())}'}"


def report(page: str) -> str:
    """What the page says, its figures, and digests of what it unpacks."""
    value, packs = page_parts(page)
    figures = (
        f"{name} {len(f['data'])} {digest(json.dumps(f).encode())}" for name, f in page_figures(page).items()
    )
    packed = (f"{name} {digest(data)}" for name, data in packs.items() if name != "plotly")
    return steady("\n".join([page_text(page), *figures, *outline(value), *packed]))


def settings(section, path: str = "") -> dict:
    """Dotted key -> value of a composed config."""
    if not (isinstance(section, dict) and section):
        return {path[1:]: section}
    return {k: v for key, value in section.items() for k, v in settings(value, f"{path}.{key}").items()}


def changed(before: str, after: str) -> str:
    """The settings of a config, as YAML, that differ from those of another."""
    old, new = (settings(yaml.safe_load(text)) for text in (before, after))
    missing = [f"{key} is missing" for key in old if key not in new]
    return "\n".join([f"{key}: {value}" for key, value in new.items() if value != old.get(key, {})] + missing)


def openapi() -> str:
    from service import models

    from qa_arch.serving.app import create_app

    return json.dumps(create_app(models()).openapi(), indent=1, ensure_ascii=False)


PROGRAMS = {
    "qa-arch": qa_arch,
    "report": lambda page: (0, report(page), ""),
    "openapi": lambda: (0, openapi(), ""),
    "cat": lambda path: (0, Path(path).read_text(encoding="utf-8"), ""),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.usefixtures("folder")
def test_commands_write_the_golden_text(name, golden):
    if name == "help" and sys.version_info[:2] != (3, 11):
        pytest.skip("help is compared on Python 3.11 alone: argparse lays it out differently in each version")
    path, first, blocks = GOLDENS / f"{name}.txt", "", []
    for line in re.findall(r"^\$ .*", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        command, _, view = line[2:].partition(" | ")
        program, *words = shlex.split(command)
        code, out, err = PROGRAMS[program](*words)
        out, err = (steady(text).strip("\n") for text in (out, err))
        if view == "changed":  # from what the first command of the file printed
            out = changed(first, out)
        first = first or out
        blocks.append("\n".join(filter(None, (line, out, err and f"[stderr]\n{err}", f"[exit {code}]"))))
    golden(path, "\n\n".join(blocks) + "\n")


def test_every_command_and_every_experiment_has_a_golden():
    text = "".join((GOLDENS / f"{name}.txt").read_text(encoding="utf-8") for name in LISTS)
    assert {f"$ qa-arch {name} --help" for name in COMMANDS} <= set(text.splitlines())
    experiments = set(re.findall(r"^\$ qa-arch train experiment=(\S+) .*--dry-run", text, flags=re.MULTILINE))
    assert experiments == set(groups(config_folders())["experiment"])


def test_stored_hashes_of_committed_records(golden):
    """Records keep the hashes that they were written with, whatever the code computes today."""
    hashes = defaultdict(lambda: ([], []))
    for path in sorted((ROOT / "experiments").rglob(RECORD)):
        experiment, run = path.parent.relative_to(ROOT / "experiments").as_posix().split("/", 1)
        record = read_record(path)
        for lines, hash_ in zip(hashes[experiment], (record.run_hash, record.settings_hash), strict=True):
            lines.append(f"{run} {hash_}\n")
    lines = (
        f"{name} {len(runs)} {digest(''.join(runs).encode())} {digest(''.join(settings).encode())}\n"
        for name, (runs, settings) in hashes.items()
    )
    golden(GOLDENS / "stored_hashes", "".join(lines))


def test_features_of_three_tokenizers(golden):
    """Tokens, windows and labels; the same on every processor."""
    from qa_arch.features.tokenizers import build
    from qa_arch.features.windows import array_names, assemble, prepare

    questions, lines = generate(4, 5, 2, "dev"), []
    texts = sorted({text for example in questions.examples for text in (example.question, example.context)})
    lengths = {"max_length": 64, "stride": 16, "max_question": 24}
    for kind in ("wordpiece", "byte_bpe", "unigram"):
        table = prepare(questions, build(kind, texts, 300), segments=True, **lengths)
        window = assemble(table, np.arange(len(table.example)))
        arrays = {name: getattr(table, name) for name in array_names()}
        arrays |= {f"window.{item.name}": getattr(window, item.name) for item in fields(window)}
        for name, values in arrays.items():
            lines.append(f"{kind} {name} {values.dtype}{list(values.shape)} {digest(values.tobytes())}\n")
    golden(GOLDENS / "features", "".join(lines))


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_losses_and_answers_of_the_demo(golden, request):
    """To the last digit: losses of 20 steps of the demo's five models on one thread, and null odds after it.

    They depend on torch and on the processor's instructions, so each kind of machine has its own file.
    """
    import torch

    machine = f"{torch.backends.cpu.get_cpu_capability()}-torch-{torch.__version__.partition('+')[0]}"
    path, lines = GOLDENS / "losses" / machine, []
    if not (path.is_file() or request.config.getoption("--update-goldens")):
        pytest.skip(f"{path.relative_to(ROOT)}: no losses of such a machine yet; --update-goldens adds them")
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(1)
    code, out, err = qa_arch(*shlex.split(DEMO))
    assert code == 0, out + err
    for run in sorted(Path("runs/demo").glob("*-s13-*")):
        with (run / "csv/version_0/metrics.csv").open(encoding="utf-8") as file:
            losses = [loss for row in csv.DictReader(file) if (loss := row["step/loss"])]
        answers, odds = (run / "predictions.json").read_bytes(), map(repr, read_questions(run)["null_odds"])
        lines += [
            read_record(run).model,
            "losses",
            *losses,
            "null odds",
            *odds,
            f"answers {digest(answers)}",
            "",
        ]
    golden(path, "\n".join(lines))

"""``qa-arch completion``: what may stand at the end of a line, and that bash itself completes it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from qa_arch.cli.completion import SHELLS, complete
from qa_arch.cli.main import COMMANDS
from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import Config, Trainer


def test_commands_and_options():
    assert set(COMMANDS) <= set(complete("qa-arch "))
    assert complete("qa-arch pred") == ["predict"]
    assert complete("qa-arch --debug pred") == ["predict"]
    assert "--config-dir" in complete("qa-arch train --con")
    assert complete("qa-arch sweep status --w") == ["--watch"]
    assert complete("qa-arch nothing ") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("qa-arch train --if-exists ", ["fail", "replace", "resume"]),
        ("qa-arch export RUN --to h", ["hf"]),
        ("qa-arch completion f", ["fish"]),
        ("qa-arch list enc", ["encoders", "encoder"]),
        ("qa-arch train model=prop", ["model=proposed"]),
        ("qa-arch train -m model=bert,prop", ["model=bert,proposed"]),
        ("qa-arch train trainer.batch", ["trainer.batch_size="]),
        ("qa-arch train trainer.precision=b", ["trainer.precision=bf16"]),
        ("qa-arch train encoder.freeze=n", ["encoder.freeze=none"]),
        ("qa-arch train model=bert model.hid", []),
        ("qa-arch sweep dry-run model=proposed opti", ["optim=", "optim."]),
        ("qa-arch ask runs/de", []),
    ],
)
def test_words_of_a_line(line, words):
    actual = complete(line)
    assert words is None or actual == words
    assert "special" not in actual


def test_every_choice_and_every_setting_is_offered():
    for group, names in groups(config_folders()).items():
        if group != "special":
            public = [f"{group}={name}" for name in names if not name.startswith("_")]
            assert complete(f"qa-arch train {group}=") == public
    offered = complete("qa-arch train trainer.")
    assert offered == [f"trainer.{name}=" for name in Trainer.__dataclass_fields__]
    sections = complete("qa-arch train ")
    assert {
        f"{name}." for name, field in Config.__dataclass_fields__.items() if name in {"data", "optim"}
    } <= {*sections}


def test_choices_of_the_users_own_folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [proposed]\nname: mine\nknob: 3\n")
    given = f"qa-arch train --config-dir {tmp_path}"
    assert complete(f"{given} model=mi") == ["model=mine"]
    assert complete(f"{given} model=mine model.k") == ["model.knob=", "model.kernel="]
    assert complete(f"qa-arch train --config-dir {tmp_path}/none model=prop") == ["model=proposed"]


@pytest.fixture
def program(tmp_path):
    """The environment of a shell that finds a ``qa-arch`` of this checkout."""
    (tmp_path / "bin").mkdir()
    file = tmp_path / "bin" / "qa-arch"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qa_arch.cli.main "$@"\n')
    file.chmod(0o755)
    return {**os.environ, "PATH": f"{file.parent}{os.pathsep}{os.environ['PATH']}"}


BASH = """
source <(qa-arch completion bash) || exit 3
for COMP_LINE in "$@"; do
    COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _qa_arch 2>/dev/null
    printf '%s|' "${COMPREPLY[@]}"
    echo
done
complete -p qa-arch
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/} COMP_LINE="qa-arch train model=prop" COMP_POINT=24
_qa_arch 2>/dev/null
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(program):
    lines = ["qa-arch pred", "qa-arch train model=prop", "qa-arch train trainer.batch", "qa-arch ask no"]
    done = subprocess.run(["bash", "-c", BASH, "bash", *lines], env=program, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "predict|",
        "proposed|",  # what follows the break at =
        "trainer.batch_size=|",
        "|",
        "complete -o default -F _qa_arch qa-arch",
        "model=proposed",
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_are_those_of_their_shells(qa_arch, shell):
    code, script, _ = qa_arch("completion", shell)
    assert (code, "qa-arch completion --line" in script) == (0, True)
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_nothing_slow_is_imported():
    """A tab is answered within the blink of an eye: no torch, no Hydra, no YAML, no numpy."""
    program = """
import json, sys
from qa_arch.cli.completion import complete
begun = ("", "tr", "train model=", "train trainer.", "train --", "list ")
lines = [f"qa-arch {line}" for line in begun]
for line in lines:
    complete(line)
heavy = ("torch", "transformers", "hydra", "omegaconf", "yaml", "numpy", "pyarrow", "rich", "datasets")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []

"""``qa-arch completion``: the words offered at the end of a line, and completion by bash itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from qa_arch.cli.completion import complete
from qa_arch.cli.main import COMMANDS
from qa_arch.config.find import config_folders, groups


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pred", ["predict"]),
        ("--debug pred", ["predict"]),
        ("nothing ", []),
        ("train --if-exists ", ["fail", "replace", "resume"]),
        ("export RUN --to h", ["hf"]),
        ("sweep st", ["status"]),
        ("train mod", ["model="]),
        ("train -m model=prop", ["model=proposed"]),
        ("ask runs/de", []),
    ],
)
def test_completions_of_a_line(line, words):
    assert complete(f"qa-arch {line}") == words


def test_every_command_and_choice_is_offered():
    assert set(COMMANDS) <= set(complete("qa-arch "))
    for group, names in groups(config_folders()).items():
        assert complete(f"qa-arch train {group}=") == [f"{group}={name}" for name in names]


BASH = """
source <(qa-arch completion bash) || exit 3
for COMP_LINE in "$@"; do
    COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _qa_arch 2>/dev/null
    printf '%s|' "${COMPREPLY[@]}"
    echo
done
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/} COMP_LINE="qa-arch train model=prop" COMP_POINT=24
_qa_arch 2>/dev/null
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path):
    file = tmp_path / "qa-arch"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qa_arch.cli.main "$@"\n')
    file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    lines = ["qa-arch pred", "qa-arch train model=prop", "qa-arch ask no"]
    command = ["bash", "-c", BASH, "bash", *lines]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # By default = breaks words in bash, so that only the part after it is replaced.
    assert done.stdout.splitlines() == ["predict|", "proposed|", "|", "model=proposed"]

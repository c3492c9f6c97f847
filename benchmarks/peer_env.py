"""The peer's own environment: transformers 4.57, the last line with the question-answering pipeline.

Only transformers and what it pins are installed; torch is found in our environment, behind theirs.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from benchmarks.targets import NotMeasuredError

FOLDER = Path(__file__).parents[1] / ".bench-env"
WANTED = "transformers==4.57.6"
STAMP = FOLDER / "installed"


def python() -> Path:
    """Its interpreter, after an installation where there is none yet. Raises NotMeasuredError."""
    found = FOLDER / "bin" / "python"
    if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == WANTED:
        return found
    venv.create(FOLDER, with_pip=True, clear=True)
    pip = [str(found), "-m", "pip", "install", "-q", "--disable-pip-version-check", WANTED]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotMeasuredError(f"{WANTED} cannot be installed: {reason}")
    # A path in a .pth file comes after the environment's own packages.
    theirs = next((FOLDER / "lib").glob("python*/site-packages"))
    (theirs / "torch_of_qa_arch.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    STAMP.write_text(WANTED, encoding="utf-8")
    return found


if __name__ == "__main__":
    print(python(), file=sys.stdout)

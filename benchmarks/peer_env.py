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
REQUIREMENT = "transformers==4.57.6"
STAMP = FOLDER / "installed"


def python() -> Path:
    """Its interpreter, after an installation where there is none yet. Raises NotMeasuredError."""
    interpreter = FOLDER / "bin" / "python"
    if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == REQUIREMENT:
        return interpreter
    venv.create(FOLDER, with_pip=True, clear=True)
    pip = [str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", REQUIREMENT]
    installation = subprocess.run(pip, capture_output=True, text=True)
    if installation.returncode:
        reason = (installation.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotMeasuredError(f"{REQUIREMENT} cannot be installed: {reason}")
    # A path in a .pth file comes after the environment's own packages.
    site_packages = next((FOLDER / "lib").glob("python*/site-packages"))
    (site_packages / "torch_of_qa_arch.pth").write_text(
        sysconfig.get_path("purelib") + "\n", encoding="utf-8"
    )
    STAMP.write_text(REQUIREMENT, encoding="utf-8")
    return interpreter


if __name__ == "__main__":
    print(python(), file=sys.stdout)

"""Virtual environments for peers that need library versions other than ours.

Only the peer and what it pins are installed; torch comes from our environment, appended to theirs.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.targets import NotMeasuredError

FOLDER = Path(__file__).parents[1] / ".bench-env"


@dataclass(frozen=True)
class PeerEnvironment:
    """A virtual environment below ``FOLDER``."""

    name: str
    requirement: str
    without_dependencies: tuple[str, ...] = ()
    """Further packages, whose own dependencies come from our environment."""

    def python(self) -> Path:
        """Its interpreter, installing the environment first if needed; NotMeasuredError if that fails."""
        folder = FOLDER / self.name
        interpreter, stamp = folder / "bin" / "python", folder / "installed"
        requirements = " ".join((self.requirement, *self.without_dependencies))
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == requirements:
            return interpreter
        try:
            venv.create(folder, with_pip=True, clear=True)
        except subprocess.CalledProcessError as error:
            raise NotMeasuredError("no virtual environment: this Python lacks ensurepip") from error
        self._install(interpreter, self.requirement)
        if self.without_dependencies:
            self._install(interpreter, "--no-deps", *self.without_dependencies)
        # Paths from a .pth file come after the environment's own packages.
        site_packages = next((folder / "lib").glob("python*/site-packages"))
        ours = dict.fromkeys([sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1])])
        (site_packages / "torch_of_qa_arch.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
        stamp.write_text(requirements, encoding="utf-8")
        return interpreter

    def _install(self, interpreter: Path, *arguments: str) -> None:
        pip = [str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
        installation = subprocess.run(pip, capture_output=True, text=True)
        if installation.returncode:
            reason = (installation.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotMeasuredError(f"{arguments[-1]} cannot be installed: {reason}")


TRANSFORMERS_4 = PeerEnvironment("transformers", "transformers==4.57.6")
"""The last release line with the question-answering pipeline."""
HAYSTACK = PeerEnvironment(
    "haystack", "haystack-ai==3.3.0", ("transformers-haystack==2.0.0", "accelerate==1.11.0")
)
"""Haystack 3 with its extractive reader, on our transformers."""

if __name__ == "__main__":
    for environment in (TRANSFORMERS_4, HAYSTACK):
        print(environment.python(), file=sys.stdout)

"""What terminals show: escape sequences, and the folder that commands run from."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Escape sequences of colours and cursor movements."""

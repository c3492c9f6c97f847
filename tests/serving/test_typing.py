"""The Python API under a type checker, as its users run it."""

from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api", reason="no mypy: pip install -e '.[dev]'")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_users_see_precise_types():
    sample = Path(__file__).with_name("typed_sample.py")
    output, errors, code = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(sample)])
    assert code == 0, output + errors

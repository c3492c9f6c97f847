"""Fixtures of the commands and results for the tests of answer selection."""

from cli.conftest import feature_cache, read_json, run_folder, trained  # noqa: F401
from results.conftest import make_record  # noqa: F401

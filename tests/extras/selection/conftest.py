"""Fixtures of the commands, training and results for the tests of answer selection."""

from cli.conftest import feature_cache, own_folder, quick, read_json, run_folder, settings, trained  # noqa: F401
from results.conftest import make_record  # noqa: F401
from training.conftest import configure, configure_once, run_training, same  # noqa: F401

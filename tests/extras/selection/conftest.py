"""Fixtures of the commands, of training and of the results, for the tests of answer selection."""

from __future__ import annotations

from cli.conftest import (  # noqa: F401
    feature_cache,
    own_folder,
    qa_arch,
    quick,
    read_json,
    run_folder,
    settings,
    trained,
)
from results.conftest import command, make_record  # noqa: F401
from training.conftest import configure, configure_once, few_questions, run_training, same  # noqa: F401

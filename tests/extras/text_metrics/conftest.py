"""The questions of the official metrics' tests."""

from metrics.conftest import gold_set  # noqa: F401

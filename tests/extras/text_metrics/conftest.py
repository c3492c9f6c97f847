"""The gold sets of the official metrics' tests."""

from metrics.conftest import gold_set  # noqa: F401

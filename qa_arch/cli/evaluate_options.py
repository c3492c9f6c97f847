"""The options of ``qa-arch evaluate --run``, apart from what carries them out: scoring files needs little."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from qa_arch.cli.runs import add_run_options
from qa_arch.errors import ConfigError

OF_FILES = ("predictions", "na_prob", "null_threshold", "protocol", "strict", "text_metrics", "nbest")
"""The options that only go with prediction files."""
OF_RUNS = ("final", "allow_overlap", "decode", "record", "margin", "precision", "device", "trust")
"""The options that only go with a run."""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only go with ``--run``."""
    group = parser.add_argument_group("scoring a trained run")
    group.add_argument(
        "--run",
        dest="run_folder",
        metavar="RUN",
        nargs="+",
        help="a run folder; needs no --predictions. Several are an ensemble",
    )
    group.add_argument("--decode", metavar="NAME", help="read the run out as conf/decode/NAME.yaml says")
    group.add_argument(
        "--record", metavar="DIR", help="where the record of an ensemble or of another --decode is kept"
    )
    group.add_argument(
        "--final",
        action="store_true",
        help="open the dev set that the run's config keeps closed, and log that",
    )
    group.add_argument(
        "--allow-overlap",
        action="store_true",
        help="score a set that shares articles with the run's training data; the scores then say so",
    )
    add_run_options(group)


def refuse_options(args: argparse.Namespace) -> None:
    """ConfigError where an option that only goes with ``--run`` was given without it."""
    if named := first_given(args, OF_RUNS):
        raise ConfigError(f"{named} is for a trained run: give --run RUN with it")


def first_given(args: argparse.Namespace, names: Sequence[str]) -> str | None:
    """The first of the options that was given, as it is written."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value is not False and value not in ("auto", []):  # 0 is a value
            return f"--{name.replace('_', '-')}"
    return None

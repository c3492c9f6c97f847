"""``qa-arch check-model``: what every model must keep to, checked on any model, line by line."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from qa_arch.cli.own_code import explain
from qa_arch.cli.runs import add_config_dir, add_trust, use_config_dir
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.system.garbage import gc_disabled

if TYPE_CHECKING:
    from qa_arch.contract.contenders import Check, Contender

OURS = ("debug=", "data=", "data.")
"""Settings that are the command's: models are checked small, on questions of its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch check-model model=gated --config-dir mine --trust gated"
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="model=NAME, and settings of it")
    parser.add_argument(
        "--without-effect",
        action="append",
        default=[],
        metavar="ENDING",
        help="parameters whose name ends so may have a gradient of zero: a bias that shifts all scores of a"
        " softmax alike",
    )
    add_config_dir(parser)
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    """Print a line for each check; exit code 1 if one failed."""
    logging.getLogger("qa_arch").setLevel(logging.WARNING)
    with TemporaryDirectory(prefix="qa_arch-") as folder:
        contender, checks = _prepare(args, Path(folder))
        failed = _print_checks(contender, checks, args.trust)
    print(f"{len(checks) - failed} of {len(checks)} hold")
    return 1 if failed else 0


def _prepare(args: argparse.Namespace, folder: Path) -> tuple[Contender, Sequence[Check]]:
    """The model, built with a tiny encoder for the questions of its contract, and the checks on it."""
    from qa_arch.cli.compose import compose
    from qa_arch.config.schema import validate
    from qa_arch.config.target import TRUSTED

    if not any(override.startswith("model=") for override in args.overrides):
        raise ConfigError("check-model: name the model, model=NAME; qa-arch list models shows what there is")
    for override in args.overrides:
        if override.startswith(OURS):
            raise ConfigError(f"{override}: size and questions are check-model's own; leave it out")
    config_dir = use_config_dir(args.config_dir, args.trust)
    with gc_disabled():
        from qa_arch.contract.contenders import (
            WITHOUT_EFFECT,
            Contender,
            trained_run_answers_as_scored,
        )
        from qa_arch.contract.contracts import contract_of
        from qa_arch.tasks import task_of

    section = validate(compose(args.overrides, config_dir)).model
    contract, trusted = contract_of(section), (*TRUSTED, *args.trust)
    config = validate(compose([*contract.settings(folder), *args.overrides], config_dir))
    parts = task_of(section).assemble(config, trusted)
    without_effect = (*WITHOUT_EFFECT, *args.without_effect)
    contender = Contender(config, parts, contract, trusted, without_effect)
    return contender, (*contract.checks, trained_run_answers_as_scored)


def _print_checks(contender: Contender, checks: Sequence[Check], trust: Sequence[str]) -> int:
    """Number of checks that failed; where the first does, the others would say the same and are not run."""
    failed = 0
    for number, check in enumerate(checks):
        reason = _reason(check, contender, trust)
        print(f"{'FAIL' if reason else 'ok  '}  {(check.__doc__ or '').splitlines()[0]}", flush=True)
        if reason:
            failed += 1
            print(f"      {reason}", flush=True)
            if not number:
                print(f"{len(checks) - 1} further checks were not made: they need this", flush=True)
                return len(checks)
    return failed


def _reason(check: Check, contender: Contender, trust: Sequence[str]) -> str:
    """Why the contender fails the check; empty where it holds. Errors that are no model's are raised."""
    try:
        check(contender)
    except QaArchError as error:
        return str(error)
    except Exception as error:
        if (place := explain(error, trust)) is None:
            raise
        return place
    return ""

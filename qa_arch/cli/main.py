"""``qa-arch``: the entry point and its subcommands; heavy modules are imported only when needed."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from qa_arch import __version__, terminal
from qa_arch.config.check import refuse_repeated, suggest
from qa_arch.config.find import config_folders, groups
from qa_arch.errors import FULL, ConfigError, FaultyRecordError, QaArchError, one_line, out_of_memory
from qa_arch.files import user_path
from qa_arch.manifest import Command, from_extras, model_changes, packages

GROUPS = {
    "train models": {
        "train": ("train", "train a model, or several, and record the results"),
        "sweep": ("sweep", "show, resume or retry a grid of runs (train -m)"),
        "params": ("train:params", "count a model's parameters by block, without loading weights"),
        "new-model": ("own_models:new_model", "start a model of your own: package, YAML and test"),
        "check-model": (
            "own_models:check_model",
            "check a model against the contract: masks, padding, gradients, saving, learning",
        ),
    },
    "score and compare": {
        "register": (
            "register",
            "pre-register the runs that may be scored on an experiment's held-out dev set",
        ),
        "evaluate": ("evaluate", "score prediction files as the official scripts do, or runs on a data set"),
        "adopt": ("adopt", "make a run of a checkpoint, an ensemble or another system's answers"),
        "tables": ("records:tables", "compare recorded runs, or rebuild the tables of experiments/"),
        "compare": ("records:compare", "test whether one system beats another, over articles and seeds"),
        "suite": ("suite", "score systems on several test sets, with paired tests"),
        "power": (
            "records:power",
            "estimate from recorded runs what an experiment of a planned size would detect",
        ),
        "show": ("records:show", "show a run on one screen"),
        "report": ("records:report", "write a report of runs: one HTML file that opens offline"),
    },
    "answer questions": {
        "ask": ("ask", "answer questions about a text, one or many"),
        "predict": ("predict", "answer every question of a file with a trained run"),
        "serve": ("serve", "answer questions over REST and on a web page"),
        "export": ("export", "write a trained span model as a Hugging Face folder or an ONNX graph"),
    },
    "data, settings, installation": {
        "data": ("data", "write data sets: generated questions, or a set split by article"),
        "stats": ("data:stats", "describe data sets: questions, answerability, articles, lengths"),
        "list": ("list", "list models, experiments, data, encoders and settings, with their documentation"),
        "doctor": ("doctor", "check the installation, data and network, and say how to fix problems"),
    },
}
"""The groups of ``--help``: command -> (module within ``qa_arch.cli``, summary)."""
OWN = {
    name: Command(f"qa_arch.cli.{module}", summary)
    for group in GROUPS.values()
    for name, (module, summary) in group.items()
}
COMMANDS: dict[str, Command] = OWN | from_extras("commands", OWN)
"""All subcommands: our own, which extras cannot override, then those of extras."""
EXIT_CODES = """\
exit codes: 0 success, 1 a run failed or a file cannot be written, 2 wrong usage or settings,
3 questions without a prediction, 4 unusable data, 5 unusable run folder, 6 something needed is
unavailable (an encoder, a package, a device, the hub), 70 a bug in qa-arch, 130 interrupted"""
INTERNAL, INTERRUPTED = 70, 130
RUN_ARGUMENTS = ("run_folder", "config_from", "sources")
"""Arguments that name runs, for which the beginning of a name will do."""
HYDRA_FLAGS = {
    ("--cfg", "-c", "--resolve", "--package", "-p"): "train --dry-run prints the config, resolved",
    ("--config-name", "-cn", "--experimental-rerun"): "choose experiment=NAME, or --config-from RUN",
    ("--config-path", "-cp", "-cd"): "the folder of your own configs is --config-dir DIR",
    ("--info", "-i"): "see qa-arch doctor and qa-arch list",
    ("--hydra-help",): "see qa-arch train --help and qa-arch list",
    ("--shell-completion", "-sc"): 'eval "$(register-python-argcomplete qa-arch)"',
    ("--run", "-r"): "leave it out; -m trains a grid",
}
"""Flags of Hydra's programs -> what does the same here."""


@terminal.guarded()
def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code; argparse exits with 2 for wrong usage.

    An exception is printed on one line, or raised with ``--debug``.
    """
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace(debug="--debug" in arguments)  # before anything can fail
    try:
        code = _run(arguments, args)
        sys.stdout.flush()  # here, where a closed pipe or a full disk is told in one line
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader closed the pipe (`| head`)
        _drop_output()
        return 0
    except Exception as error:
        if args.debug:
            raise
        return _report(error, args)


def _report(error: Exception, args: argparse.Namespace) -> int:
    """Print an error on one line and return its exit code.

    An error in the packages of ``--trust`` and of entry points is not a bug in qa-arch.
    """
    if isinstance(error, QaArchError):
        skip = _skip_option(args) if isinstance(error, FaultyRecordError) else ""
        return _fail(f"{error}{f' ({skip} leaves out faulty records)' if skip else ''}", error.exit_code)
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
        reason = os.strerror(error.errno).lower()
        return _fail(f"{error.filename}: {reason}; --debug shows where", QaArchError.exit_code)
    if isinstance(error, OSError) and (error.errno, error.filename) == (errno.ENOENT, None):  # of getcwd
        return _fail("the working folder was removed; change to another", QaArchError.exit_code)
    if out_of_memory(error):
        return _fail("out of memory; free some, or raise the limit (ulimit -v)", QaArchError.exit_code)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        around = error.object[max(0, error.start - 40) : error.end + 40]
        return _fail(f"{around!r}: a name is not UTF-8; rename it", ConfigError.exit_code)
    if isinstance(error, OSError) and error.errno in FULL:
        _drop_output()
        place = error.filename or "output"
        return _fail(f"{place}: cannot be written ({error.strerror}); free space", QaArchError.exit_code)
    from qa_arch.cli.own_models import explain

    if place := explain(error, (*getattr(args, "trust", ()), *packages())):
        return _fail(f"{place}; --debug shows the traceback", QaArchError.exit_code)
    message = f"unexpected {type(error).__name__}: {one_line(error, 300)}"
    return _fail(f"{message}; --debug shows where, please report it", INTERNAL)


def _skip_option(args: argparse.Namespace) -> str:
    """What makes this command leave out faulty records; empty if nothing does."""
    if hasattr(args, "on_error"):
        return "--on-error skip"
    return "data.on_error=skip" if hasattr(args, "overrides") else ""


def _run(arguments: list[str], args: argparse.Namespace) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        setting = next((name for name in model_changes() if name.startswith(command)), None)
        hint = (
            f"; write: qa-arch train init_from=RUN {setting}=CHOICE"
            if setting
            else suggest(command, COMMANDS)
        )
        return _fail(f"unknown command '{command}'{hint}", 2)
    for before, word in pairwise(["", *arguments]):
        if not word or re.fullmatch(r"--[\w-]+=", word):
            place = word or f"{before} ''".lstrip()
            return _fail(f"{place}: is empty (an unset shell variable?); give a value, or leave it out", 2)
    for number, word in enumerate(arguments):
        if re.match(r"--[\w-]+=~", word):  # which shells expand only at the beginning of a word
            option, _, place = word.partition("=")
            arguments[number] = f"{option}={user_path(place)}"
    parser = _parser(command)
    _, unparsed = parser.parse_known_args(arguments, args)
    if unparsed:
        _take_settings(args, unparsed, parser)
    if args.command is None:
        parser.print_help()
        return 0
    refuse_repeated(getattr(args, "overrides", ()))
    for name in RUN_ARGUMENTS:
        if given := getattr(args, name, None):
            from qa_arch.records import run_named

            setattr(args, name, run_named(given) if isinstance(given, str) else [*map(run_named, given)])
    if not sys.stderr.isatty():  # the hub's clients read these when they are imported
        for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
            os.environ.setdefault(name, "1")
        os.environ.setdefault("DATASETS_VERBOSITY", "error")  # "cached version" at every set
    # stderr shows our own messages from level INFO, and warnings of other libraries.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for package in ("qa_arch", "baselines"):
        logging.getLogger(package).setLevel(logging.INFO)
    return int(args.run(args))


def _drop_output() -> None:
    """Keep Python from printing another error at exit, when it flushes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _HelpFormatter(argparse.HelpFormatter):
    """Keeps examples on one line so that they can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Prints errors on one line, without the usage, and suggests the choice most similar to a wrong one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What begins with a minus and is a value, not an option: argparse knows no exponents.
        self._negative_number_matcher = re.compile(r"-(\d*\.?\d+(e[+-]?\d+)?|inf(inity)?)$", re.IGNORECASE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given: set[argparse.Action] = set()
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse a list that is given twice, of which argparse would drop the first."""
        if isinstance(action, argparse._StoreAction) and action.option_strings and action.nargs == "+":
            if action in self._given:
                raise argparse.ArgumentError(action, "is given twice; write all its values after the first")
            self._given.add(action)
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"qa-arch: {message}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = suggest(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r} is not a choice{hint}")


def _parser(command: str | None) -> argparse.ArgumentParser:
    """Build the argument parser; imports only the module of ``command``."""
    shown = {title: list(group) for title, group in GROUPS.items()}
    shown["extras"] = [name for name in COMMANDS if name not in OWN]
    listed = [
        f"\n{title}:" + "".join(f"\n    {name:<13}{COMMANDS[name].summary}" for name in names)
        for title, names in shown.items()
        if names
    ]
    parser = Parser(
        prog="qa-arch",
        usage="qa-arch [-h] [-V] [--debug] COMMAND ...",
        description="Train, score and compare models for extractive question answering.\n"
        + "\n".join(listed),
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"qa-arch {__version__}")
    debug = "show the traceback of an error"
    parser.add_argument("--debug", action="store_true", help=debug)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    for name, spec in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            prog=f"qa-arch {name}",
            description=f"{spec.summary[0].upper()}{spec.summary[1:]}.",
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        # No default, which would overwrite a --debug in front of the subcommand.
        subparser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug)
        if name == command:
            spec.prepare(subparser)
    return parser


def _complete() -> NoReturn:
    """Print completions of the command line that the shell is at: nothing slow is imported here."""
    from argcomplete import autocomplete

    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()[1:]
    command = next((word for word in words if word in COMMANDS), None)
    parser = _parser(command)
    (subparsers,) = (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for action in subparsers[command]._actions if command else ():
        if action.dest == "overrides":
            action.completer = _settings
    autocomplete(parser, print_suppressed=True)
    raise AssertionError("autocomplete exits")


def _settings(prefix: str, **_: Any) -> list[str]:
    """Config groups, and the choices of the one that ``prefix`` names."""
    group = prefix.partition("=")[0]
    choices = groups(config_folders())
    if "=" in prefix:
        return [f"{group}={name}" for name in choices.get(group, ())]
    return [f"{name}=" for name in choices]


def _take_settings(
    args: argparse.Namespace, unparsed: Sequence[str], parser: argparse.ArgumentParser
) -> None:
    """Append settings that follow an option: argparse does not join them with those before it."""
    has_settings = hasattr(args, "overrides")
    unknown = [word for word in unparsed if not has_settings or not re.match("~|[^-].*=", word)]
    if unknown:
        parser.prog = " ".join(filter(None, ("qa-arch", args.command)))
        flag = unknown[0].partition("=")[0]
        hint = f"; a setting is written {flag.strip('-')}=VALUE" if has_settings else ""
        for flags, equivalent in HYDRA_FLAGS.items() if has_settings else ():
            hint = f" of Hydra; {equivalent}" if flag in flags else hint
        parser.error(f"unrecognized argument {unknown[0]!r}{hint}")
    args.overrides = [*args.overrides, *unparsed]


def _fail(line: str, code: int) -> int:
    print(f"qa-arch: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""``qa-arch new-model`` and ``check-model``: start a model outside the repository, and check it."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import linecache
import logging
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from qa_arch.cli.runs import add_options
from qa_arch.config.find import conf_folder, groups, use_config_dir
from qa_arch.config.schema import recipe_of, validate
from qa_arch.config.target import TRUSTED, require_trusted, shown_path, under
from qa_arch.errors import ConfigError, QaArchError, one_line
from qa_arch.files import replacing_folder, user_path, write_atomic
from qa_arch.process import gc_disabled

if TYPE_CHECKING:
    from qa_arch.contract import Check, Subject

STARTER = Path(__file__).parent / "starter"
NAME, CLASS = "starter_model", "StarterModel"
"""Names of the package and of the class in the starter's files, which the new names replace."""
NOT_TEXT = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"))
"""Words that YAML or Hydra do not read as strings."""
TESTS = "tests"


def add_new_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch new-model gated --into mine"
    parser.add_argument("name", metavar="NAME", help="name of the package and in model=NAME")
    into = "folder for --config-dir; it may already contain other models"
    parser.add_argument("--into", required=True, metavar="DIR", help=into)


def run_new_model(args: argparse.Namespace) -> int:
    """Write the package ``DIR/NAME``, ``DIR/model/NAME.yaml`` and a test, and print the next commands."""
    name, folder = args.name, user_path(args.into)
    _check_name(name)
    if folder.exists() and not folder.is_dir():
        raise QaArchError(f"{folder}: is a file; --into needs a folder")
    for path in write_model(name, folder):
        print(f"wrote {path}")
    options = shlex.join(["--config-dir", str(folder), "--trust", name])
    print(f"next:   qa-arch check-model model={name} {options}")
    print(f"        qa-arch train model={name} experiment=demo debug=fast {options}")
    return 0


def write_model(name: str, folder: Path) -> list[Path]:
    """Write the starter's files under ``name`` and return their paths.

    The YAML is written last: until it exists, no config can choose the model. Raises QaArchError if a path
    already exists or cannot be written.
    """
    package, choice = folder / name, folder / "model" / f"{name}.yaml"
    test = folder / TESTS / f"test_{name}.py"
    for path in (package, test, choice, folder / f"{name}.py"):
        if path.exists():
            raise QaArchError(f"{path}: already exists and was not changed; choose another name or --into")
    with replacing_folder(package) as path:
        write_atomic(path / "__init__.py", "")
        write_atomic(path / "model.py", _renamed("starter_model.py", name))
    write_atomic(test, _renamed("starter_test.py", name))
    write_atomic(choice, _renamed("starter_model.yaml", name))
    return [package / "model.py", choice, test]


def _renamed(source: str, name: str) -> str:
    text = (STARTER / source).read_text(encoding="utf-8")
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_"))  # gated_span -> GatedSpan
    return text.replace(CLASS, class_name).replace(NAME, name)


def _check_name(name: str) -> None:
    """Raise ConfigError for a name that is invalid in Python or YAML, or taken."""
    known = groups([conf_folder()])
    is_word = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)
    if not is_word or keyword.iskeyword(name) or name.lower() in NOT_TEXT:
        problem = "is not a package name; use letters, digits and _, such as gated_span"
    elif name in known["model"]:
        problem = f"model={name} is one of qa_arch's own; choose another name"
    elif name in known or name == TESTS:
        problem = "the folder of that name is for configs or tests; choose another name"
    elif name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        problem = "a package of that name already exists; choose another name"
    else:
        return
    raise ConfigError(f"new-model {name}: {problem}")


FIXED = ("debug=", "data=", "data.")
"""Settings that check-model fixes, as it checks small models on its own questions."""


def add_check_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch check-model model=gated --config-dir mine --trust gated"
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="model=NAME and its settings")
    exempt = "allow zero gradients for parameters whose name ends like this, such as a bias before a softmax"
    parser.add_argument("--without-effect", action="append", default=[], metavar="ENDING", help=exempt)
    add_options(parser, "--config-dir", "--trust")


def run_check_model(args: argparse.Namespace) -> int:
    """Print one line per check; exit code 1 if one failed."""
    from qa_arch.config.compose import compose

    if not any(override.startswith("model=") for override in args.overrides):
        raise ConfigError("check-model: give model=NAME; qa-arch list models shows the models")
    for override in args.overrides:
        if override.startswith(FIXED):
            raise ConfigError(f"{override}: check-model sets size and questions itself; leave it out")
    config_dir, trusted = use_config_dir(args.config_dir, args.trust), (*TRUSTED, *args.trust)
    section = validate(compose(args.overrides, config_dir)).model
    require_trusted(section, trusted, "model")
    logging.getLogger("qa_arch").setLevel(logging.WARNING)
    with gc_disabled():
        from qa_arch import contract
        from qa_arch.qa import task
        from qa_arch.training import jobs

    if recipe_of(section) is not None:
        raise ConfigError(f"check-model: checks span models, and model.task is {section['task']}")
    checks = (*contract.CHECKS, contract.trained_run_answers_as_scored)
    without_effect = (*contract.WITHOUT_EFFECT, *args.without_effect)
    failed = 0
    with TemporaryDirectory(prefix="qa_arch-") as folder:  # for the contract's questions
        settings = [*contract.trial_settings(Path(folder)), *args.overrides]
        config = jobs.plan(settings, config_dir=config_dir, trust=args.trust).config
        parts = task.new_parts(config, trusted)
        subject = contract.Subject(config, parts, trusted, without_effect)
        for number, check in enumerate(checks):
            reason = _reason(check, subject, args.trust)
            print(f"{'FAIL' if reason else 'ok  '}  {(check.__doc__ or '').splitlines()[0]}", flush=True)
            if reason:
                print(f"      {reason}", flush=True)
                failed += 1
            if reason and not number:  # all others would fail for the same reason
                print(f"{len(checks) - 1} further checks were skipped: they depend on this one", flush=True)
                failed = len(checks)
                break
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


def _reason(check: Check, subject: Subject, trust: Sequence[str]) -> str:
    """Why the subject fails the check; empty if it passes. Without ``trust``, bugs are raised."""
    try:
        check(subject)
    except QaArchError as error:
        return str(error)
    except Exception as error:
        if (explanation := explain(error, trust)) is None and not trust:
            raise
        return explanation or f"{type(error).__name__}: {one_line(error, MESSAGE_LENGTH)}"
    return ""


MESSAGE_LENGTH = 300
"""Maximum characters shown of an error's own message."""


def explain(error: BaseException, trusted: Sequence[str]) -> str | None:
    """Where code of the packages ``trusted`` led to an error, with its message; None if it did not.

    The place is the last of their lines in the traceback, else their method whose caller failed, or a missing
    module. Tensors on that line are shown with their shapes, including attributes such as ``batch.ids``.
    """
    places = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__)
        if under(f"{frame.f_globals.get('__name__', '')}.", trusted)
    ]
    message, source, shapes = one_line(error, MESSAGE_LENGTH), "", ""
    if places:
        frame, line = places[-1]
        code = frame.f_code
        source = linecache.getline(code.co_filename, line).partition("  #")[0].strip()
        named = dict.fromkeys(re.findall(r"[^\W\d]\w*(?:\.\w+)?", source))
        shapes = "; ".join(f"{name} is {shape}" for name in named if (shape := _shape(name, frame.f_locals)))
    elif isinstance(error, ImportError) and under(f"{error.name}.", trusted):
        return f"{error.name}: {message}"
    elif (method := _method_in_use(error, trusted)) is not None:
        code, line = method.__code__, method.__code__.co_firstlineno
    else:
        return None
    file = code.co_filename
    parts = [f"{shown_path(file)}:{line}: {code.co_qualname}", source, f"{type(error).__name__}: {message}"]
    return ": ".join(filter(None, parts)) + (f" ({shapes})" if shapes else "")


def _method_in_use(error: BaseException, trusted: Sequence[str]) -> Any:
    """``forward`` or ``__call__`` of the innermost object of a ``trusted`` class that is the ``self`` of a
    failing method or one of its attributes, such as a model's head or the loss; None without one."""
    for frame, _ in reversed([*walk_tb(error.__traceback__)]):
        owner = frame.f_locals.get("self")
        attributes = getattr(owner, "__dict__", {})
        for value in (owner, *attributes.values(), *attributes.get("_modules", {}).values()):
            if under(f"{type(value).__module__}.", trusted):
                method = getattr(type(value), "forward", type(value).__call__)
                return method if hasattr(method, "__code__") else None
    return None


def _shape(name: str, local: Mapping[str, Any]) -> str:
    """Shape of the local tensor ``name``, or of the attribute of a local; empty for everything else."""
    owner, _, attribute = name.partition(".")
    value = local.get(owner)
    if attribute:
        value = vars(value).get(attribute) if hasattr(value, "__dict__") else None
    shape = getattr(value, "shape", None)
    return str(tuple(shape)) if isinstance(shape, tuple) else ""

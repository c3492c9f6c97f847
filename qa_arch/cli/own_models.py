"""``qa-arch new-model`` and ``check-model``: a model outside the repository, and what is wrong with it."""

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

from qa_arch.cli.runs import add_config_dir, add_trust, use_config_dir
from qa_arch.config.files import replacing_folder, write_atomic
from qa_arch.config.find import conf_folder, groups
from qa_arch.config.schema import validate
from qa_arch.config.target import TRUSTED, require_trusted
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.system.garbage import gc_disabled

if TYPE_CHECKING:
    from qa_arch.contract import Check, Subject

STARTER = Path(__file__).parent / "starter"
NAME, CLASS = "starter_model", "StarterModel"
"""The names of the starter's package and choice, and of its class, in its files."""
NOT_TEXT = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"))
"""Names that YAML or Hydra read as something else."""
TESTS = "tests"


def add_new_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch new-model gated --into mine"
    parser.add_argument("name", metavar="NAME", help="name of the package and in model=NAME")
    parser.add_argument(
        "--into",
        required=True,
        metavar="DIR",
        help="the folder for --config-dir; it may already hold other models",
    )


def run_new_model(args: argparse.Namespace) -> int:
    """Write the package ``DIR/NAME``, ``DIR/model/NAME.yaml`` and a test, and print what to do with them."""
    name, folder = args.name, Path(args.into).expanduser()
    _check_name(name)
    if folder.exists() and not folder.is_dir():
        raise QaArchError(f"{folder}: is a file; --into names a folder")
    for path in write_model(name, folder):
        print(f"wrote {path}")
    given = shlex.join(["--config-dir", str(folder), "--trust", name])
    print(f"next:   qa-arch check-model model={name} {given}")
    print(f"        qa-arch train model={name} experiment=demo debug=fast {given}")
    return 0


def write_model(name: str, folder: Path) -> list[Path]:
    """The paths that were written. The YAML is the last: until it is there, no config can choose the model.

    Raises QaArchError where one of them exists already or cannot be written.
    """
    package, choice = folder / name, folder / "model" / f"{name}.yaml"
    test = folder / TESTS / f"test_{name}.py"
    for path in (package, test, choice, folder / f"{name}.py"):
        if path.exists():
            raise QaArchError(f"{path}: exists already and was not changed; take another name or --into")
    with replacing_folder(package) as path:
        write_atomic(path / "__init__.py", "")
        write_atomic(path / "model.py", _filled("starter_model.py", name))
    write_atomic(test, _filled("starter_test.py", name))
    write_atomic(choice, _filled("starter_model.yaml", name))
    return [package / "model.py", choice, test]


def _filled(source: str, name: str) -> str:
    text = (STARTER / source).read_text(encoding="utf-8")
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_"))  # gated_span -> GatedSpan
    return text.replace(CLASS, class_name).replace(NAME, name)


def _check_name(name: str) -> None:
    """Raise ConfigError for a name that Python or YAML cannot have, or that means something already."""
    known = groups([conf_folder()])
    if (
        not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)
        or keyword.iskeyword(name)
        or name.lower() in NOT_TEXT
    ):
        problem = "is not a package name; use letters, digits and _, such as gated_span"
    elif name in known["model"]:
        problem = f"model={name} is one of qa_arch's own; take another name"
    elif name in known or name == TESTS:
        problem = "the folder of that name is for configs or tests; take another name"
    elif name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        problem = "a package of that name can be imported already; take another name"
    else:
        return
    raise ConfigError(f"new-model {name}: {problem}")


OURS = ("debug=", "data=", "data.")
"""Settings that are the command's: models are checked small, on questions of its own."""


def add_check_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch check-model model=gated --config-dir mine --trust gated"
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="model=NAME, and settings of it")
    parser.add_argument(
        "--without-effect",
        action="append",
        default=[],
        metavar="ENDING",
        help="parameters whose name ends like this may have zero gradient, such as a bias that shifts all"
        " scores of a softmax equally",
    )
    add_config_dir(parser)
    add_trust(parser)


def run_check_model(args: argparse.Namespace) -> int:
    """Print a line for each check; exit code 1 if one failed."""
    from qa_arch.cli.compose import compose

    if not any(override.startswith("model=") for override in args.overrides):
        raise ConfigError("check-model: name the model, model=NAME; qa-arch list models shows what there is")
    for override in args.overrides:
        if override.startswith(OURS):
            raise ConfigError(f"{override}: check-model sets size and questions itself; leave it out")
    config_dir, trusted = use_config_dir(args.config_dir, args.trust), (*TRUSTED, *args.trust)
    section = validate(compose(args.overrides, config_dir)).model
    require_trusted(section, trusted, "model")
    logging.getLogger("qa_arch").setLevel(logging.WARNING)
    with gc_disabled():
        from qa_arch import contract
        from qa_arch.tasks import task_of

    own = contract.contract_of(section)
    checks = (*own.checks, contract.trained_run_answers_as_scored)
    without_effect = (*contract.WITHOUT_EFFECT, *args.without_effect)
    failed = 0
    with TemporaryDirectory(prefix="qa_arch-") as folder:  # the questions of the contract lie in it
        config = validate(compose([*own.settings(Path(folder)), *args.overrides], config_dir))
        parts = task_of(section).assemble(config, trusted)
        subject = contract.Subject(config, parts, own, trusted, without_effect)
        for number, check in enumerate(checks):
            reason = _reason(check, subject, args.trust)
            print(f"{'FAIL' if reason else 'ok  '}  {(check.__doc__ or '').splitlines()[0]}", flush=True)
            if reason:
                print(f"      {reason}", flush=True)
                failed += 1
            if reason and not number:  # all others would say the same
                print(f"{len(checks) - 1} further checks were skipped: they depend on this one", flush=True)
                failed = len(checks)
                break
    print(f"{len(checks) - failed} of {len(checks)} hold")
    return 1 if failed else 0


def _reason(check: Check, subject: Subject, trust: Sequence[str]) -> str:
    """Why the subject fails the check; empty where it holds. Errors that are no model's are raised."""
    try:
        check(subject)
    except QaArchError as error:
        return str(error)
    except Exception as error:
        if (place := explain(error, trust)) is None:
            raise
        return place
    return ""


LONGEST = 300
"""Most characters of an error's own message that are shown."""


def explain(error: BaseException, trusted: Sequence[str]) -> str | None:
    """Where in the packages ``trusted`` an error arose, and what it says; None where none of them called what
    failed.

    The packages are the user's (``--trust``), without qa_arch and baselines. Tensors that the failing line
    names are shown with their shapes, ``batch.ids`` as well.
    """
    places = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__)
        if any(
            f"{frame.f_globals.get('__name__', '')}.".startswith(f"{prefix.rstrip('.')}.")
            for prefix in trusted
        )
    ]
    if not places:
        return None
    frame, line = places[-1]
    file = frame.f_code.co_filename
    source = linecache.getline(file, line).partition("  #")[0].strip()
    named = dict.fromkeys(re.findall(r"[^\W\d]\w*(?:\.\w+)?", source))
    shapes = "; ".join(f"{name} is {shape}" for name in named if (shape := _shape(name, frame.f_locals)))
    message = " ".join(str(error).split())[:LONGEST]
    place = Path(file).relative_to(Path.cwd()) if Path(file).is_relative_to(Path.cwd()) else file
    parts = [f"{place}:{line}: {frame.f_code.co_qualname}", source, f"{type(error).__name__}: {message}"]
    return ": ".join(filter(None, parts)) + (f" ({shapes})" if shapes else "")


def _shape(name: str, known: Mapping[str, Any]) -> str:
    """The shape of a local tensor, or of a tensor in a local record; empty for everything else."""
    owner, _, attribute = name.partition(".")
    value = known.get(owner)
    if attribute:
        value = vars(value).get(attribute) if hasattr(value, "__dict__") else None
    shape = getattr(value, "shape", None)
    return str(tuple(shape)) if isinstance(shape, tuple) else ""

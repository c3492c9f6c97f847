"""``qa-arch new-model``: a model outside the repository to begin with, which trains at once."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

from qa_arch.config.files import replacing_folder, write_atomic
from qa_arch.config.find import conf_folder, groups
from qa_arch.errors import ConfigError, QaArchError

STARTER = Path(__file__).parent / "starter"
NAME, CLASS = "starter_model", "StarterModel"
"""What the starter's package, choice and class are called, in its files."""
NOT_TEXT = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"))
"""Names that YAML or Hydra read as something else."""
TESTS = "tests"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch new-model gated --into mine"
    parser.add_argument("name", metavar="NAME", help="of the package and of model=NAME")
    parser.add_argument(
        "--into",
        required=True,
        metavar="DIR",
        help="the folder for --config-dir; it may hold other models of yours already",
    )


def run(args: argparse.Namespace) -> int:
    """Write the package ``DIR/NAME``, ``DIR/model/NAME.yaml`` and a test, and print what to do with them."""
    folder = Path(args.into).expanduser()
    _check_name(args.name)
    _check_free(args.name, folder)
    for path in write_model(args.name, folder):
        print(f"wrote {path}")
    given = shlex.join(["--config-dir", str(folder), "--trust", args.name])
    chosen = f"model={args.name}"
    print(f"next:   qa-arch check-model {chosen} {given}")
    print(f"        qa-arch train {chosen} experiment=demo debug=fast {given}")
    return 0


def write_model(name: str, folder: Path) -> list[Path]:
    """The paths that were written, all of them or, after an error, none.

    The YAML is the last: until it is there, no config can choose the model. Raises QaArchError where a path
    cannot be written.
    """
    package, test, choice = _places(name, folder)
    with ExitStack() as undo:
        with replacing_folder(package) as path:
            undo.callback(_remove_package, package)
            write_atomic(path / "__init__.py", "")
            write_atomic(path / "model.py", _filled("starter_model.py", name))
        for target, source in ((test, "starter_test.py"), (choice, "starter_model.yaml")):
            write_atomic(target, _filled(source, name))
            undo.callback(target.unlink)
        undo.pop_all()
    return [package / "model.py", choice, test]


def _places(name: str, folder: Path) -> tuple[Path, Path, Path]:
    """The package, the test and the YAML."""
    return folder / name, folder / TESTS / f"test_{name}.py", folder / "model" / f"{name}.yaml"


def _filled(source: str, name: str) -> str:
    text = (STARTER / source).read_text(encoding="utf-8")
    return text.replace(CLASS, class_name(name)).replace(NAME, name)


def class_name(name: str) -> str:
    """``gated_span`` -> ``GatedSpan``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _remove_package(package: Path) -> None:
    for path in package.glob("*.py"):
        path.unlink()
    if package.is_dir():
        package.rmdir()


def _check_name(name: str) -> None:
    """Raise ConfigError for a name that Python or YAML cannot have, or that means something already."""
    identifier = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)
    if not identifier or keyword.iskeyword(name) or name.lower() in NOT_TEXT:
        raise ConfigError(
            f"new-model {name}: is no name for a package; take letters, digits and _, such as gated_span"
        )
    known = groups([conf_folder()])
    if name in known["model"]:
        raise ConfigError(f"new-model {name}: model={name} is one of qa_arch's own; take another name")
    if name in known or name == TESTS:
        raise ConfigError(f"new-model {name}: the folder of that name is for configs or tests; take another")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"new-model {name}: a package of that name can be imported already, and the new one would hide it"
            " or be hidden; take another name"
        )


def _check_free(name: str, folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise QaArchError(f"{folder}: is a file; --into names a folder")
    for path in (*_places(name, folder), folder / f"{name}.py"):
        if path.exists():
            raise QaArchError(f"{path}: exists already and was not changed; take another name or --into")

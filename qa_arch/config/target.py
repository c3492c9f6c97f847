"""Resolution of ``_target_``: import a class by its dotted name, from trusted packages only.

Run folders may come from anyone, and an import executes code. So a config may only name targets under
``qa_arch.`` and ``baselines.``, or under a prefix given on the command line (``--trust mypackage``). Optional
packages that a setting needs are found without importing them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

from qa_arch.config.check import convert, suggest
from qa_arch.config.machine import logger_sections
from qa_arch.config.schema import Config
from qa_arch.errors import ConfigError, UnavailableError, install

TRUSTED = ("qa_arch", "baselines")
CALLBACKS = "pytorch_lightning.callbacks"
"""Package whose callbacks a config may name, in addition to the trusted packages."""
DESCRIPTIVE = frozenset({"_target_", "task", "name"})
"""Keys that describe a section and are not arguments of its class."""


def own_options(trusted: Sequence[str], config_dir: str | None) -> list[str]:
    """Command-line options that name the user's own packages and configs."""
    options = ["--config-dir", config_dir] if config_dir else []
    return options + [word for prefix in trusted if prefix not in TRUSTED for word in ("--trust", prefix)]


@dataclass(frozen=True)
class Given:
    """Marks a parameter that is itself a class, selected by the ``_target_`` of a nested section.

    The parameter receives ``partial(class, **settings)``, which is called with the arguments listed here; the
    section may not set them: ``Annotated[Callable[..., Head], Given(("in_dim", "sentinel"))]``.
    """

    arguments: tuple[str, ...]


def require_trusted(section: Any, trusted: Sequence[str], where: str = "") -> None:
    """Raise ConfigError for the first ``_target_`` in ``section`` that ``locate`` would not import."""
    if not isinstance(section, Mapping):
        return
    key = f"{where}._target_" if where else "_target_"
    for name, value in section.items():
        if name != "_target_":
            require_trusted(value, trusted, f"{where}.{name}" if where else name)
        elif value is None:
            raise ConfigError(
                f"{where or 'config'}: has no _target_; name its class in its YAML (_target_: a.b.C)"
            )
        elif not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
            raise ConfigError(f"{key}: {value!r} is not a dotted class name")
        elif not under(value, trusted):
            raise ConfigError(
                f"{key}: '{value}' is outside {', '.join(dict.fromkeys(trusted))} and was not imported;"
                f" if you trust it, add --trust {value.split('.')[0]} (in Python: trust)"
            )


def locate(target: Any, trusted: Sequence[str] = TRUSTED, where: str = "") -> type:
    """Import the class ``target``; raises ConfigError if it is not trusted or does not exist.

    ``where`` is its config section, for messages.
    """
    require_trusted({"_target_": target}, trusted, where)
    key = f"{where}._target_" if where else "_target_"
    module_name, _, name = target.rpartition(".")
    try:
        located = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        if place := _line_in(target.partition(".")[0], error):
            raise ConfigError(
                f"{place}: {error}; correct this line, or install what it imports ({key})"
            ) from error
        absent = isinstance(error, ModuleNotFoundError) and error.name == target.partition(".")[0]
        remedy = "; name the folder that holds it with --config-dir (in Python: add it to sys.path)"
        message = f"{key}: '{target}' cannot be imported ({error}){remedy * absent}"
        raise ConfigError(message) from error
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}"
        raise ConfigError(f"{place}: {error.msg}; correct this file, which {key} imports") from error
    # Names that the module imported from elsewhere are not trusted with it.
    if not isinstance(located, type) or not under(f"{located.__module__}.", trusted):
        raise ConfigError(f"{key}: '{target}' is not a class of that module")
    return located


def _line_in(package: str, error: Exception) -> str:
    """``FILE:LINE`` where a module of ``package`` failed while it was imported; empty if none did."""
    frames = [*walk_tb(error.__traceback__)][1:]  # after the caller of importlib
    places = [
        f"{shown_path(frame.f_code.co_filename)}:{line}"
        for frame, line in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] == package
    ]
    return places[-1] if places else ""


def source_line(function: Any) -> str:
    """``FILE:LINE`` of a function or method; ``?`` if unknown."""
    function = inspect.unwrap(function)  # a decorator's file is not that of the code
    try:
        return f"{shown_path(inspect.getsourcefile(function) or '?')}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return "?"


def shown_path(file: str) -> Path:
    """A path relative to the current folder if it is inside."""
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def under(name: str, prefixes: Sequence[str]) -> bool:
    return any(name.startswith(f"{prefix.rstrip('.')}.") for prefix in prefixes)


def accepts(target: type, argument: str) -> bool:
    """Whether the class takes ``argument`` by name."""
    return argument in _parameters(target)


def _parameters(target: type) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except ValueError:  # some builtin classes have no signature
        return {}


def arguments(
    target: type,
    section: Mapping[str, Any],
    given: Collection[str],
    *,
    where: str = "model",
    trusted: Sequence[str] = TRUSTED,
    descriptive: Collection[str] = DESCRIPTIVE,
    further: Collection[str] | None = None,
) -> dict[str, Any]:
    """Keyword arguments of ``target`` from the config section ``where``, checked against its signature.

    ``given`` are parameters that the caller supplies and a config may not set; ``descriptive`` are keys of
    the section that are not arguments. A parameter marked ``Given`` becomes a partial of the class that its
    nested section names. A class with ``**kwargs`` accepts any other key, or only those in ``further``.
    """
    parameters, hints = _parameters(target), _hints(target)
    open_ended = further is None and any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    settable = [name for name, p in parameters.items() if name not in given and p.kind not in variadic]
    values: dict[str, Any] = {}
    # Nested sections last: if one repeats a plain setting, messages name the plain one.
    for key in sorted(section, key=lambda key: _marker(hints.get(key)) is not None):
        if key in descriptive:
            continue
        known = [*settable, *(further or ())]
        if key in given or (key not in known and not open_ended):
            raise ConfigError(f"unknown setting '{where}.{key}'{suggest(key, known, where)}")
        value, setting = section[key], f"{where}.{key}"
        hint = hints.get(key, Any) if key in settable else Any
        if (marker := _marker(hint)) is not None:
            values[key] = None if value is None else _partial(value, marker, setting, trusted)
        else:
            values[key] = convert(hint, value, setting)
    missing = [n for n in settable if parameters[n].default is inspect.Parameter.empty and n not in values]
    if missing:
        raise ConfigError(f"{where}: {target.__name__} also needs {', '.join(missing)}")
    return values


def _hints(target: type) -> dict[str, Any]:
    """Types of the constructor's parameters; empty if some are imported for type checking only."""
    try:
        return typing.get_type_hints(inspect.unwrap(target.__init__), include_extras=True)  # type: ignore[misc]
    except NameError:
        return {}


def _marker(hint: Any) -> Given | None:
    parts = (hint, *typing.get_args(hint))  # also finds the marker of ``Annotated[...] | None``
    notes = (note for part in parts for note in getattr(part, "__metadata__", ()))
    return next((note for note in notes if isinstance(note, Given)), None)


def _partial(section: Any, marker: Given, where: str, trusted: Sequence[str]) -> partial:
    """Partial of the class that a nested section names, with its settings; nothing is instantiated."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: expected a mapping with a _target_, got {section!r}")
    target = locate(section.get("_target_"), trusted, where)
    if missing := [name for name in marker.arguments if not accepts(target, name)]:
        place = source_line(target.__init__)  # type: ignore[misc]
        raise ConfigError(f"{where}._target_: {target.__name__} does not take {', '.join(missing)} ({place})")
    return partial(target, **arguments(target, section, marker.arguments, where=where, trusted=trusted))


OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "8bit": ("bitsandbytes",),
    "compress": ("torch_pruning",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "optuna": ("optuna",),
    "plots": ("matplotlib",),
    "ray": ("ray",),
    "report": ("plotly",),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "batched"),
    "slurm": ("submitit",),
    "tensorboard": ("tensorboard",),
}
"""Name in ``optional-dependencies`` of pyproject.toml -> modules that it installs."""
LOGGERS: Mapping[str, str] = {"TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}
"""Logger class -> the name in ``OPTIONAL`` of what it needs."""


def require_packages(name: str, what: str, instead: str = "") -> None:
    """Raise UnavailableError if a module of ``OPTIONAL[name]`` is missing.

    ``what`` is the setting or option that needs it; ``instead`` ends the message with an alternative.
    """
    for module in OPTIONAL[name]:
        if importlib.util.find_spec(module) is None:
            raise UnavailableError(f"{what}: {module} is not installed; {install(name)}{instead}")


def require_logger(name: str) -> None:
    """``require_packages`` of the logger class ``name``, if it is in ``LOGGERS``."""
    if name in LOGGERS:
        require_packages(LOGGERS[name], name, ", or logger=none")


def require_packages_of(config: Config) -> None:
    """``require_packages`` that the settings need."""
    for section in logger_sections(config.logger).values():
        require_logger(str(section["_target_"]).rpartition(".")[2])
    if config.trainer.optimizer_bits == 8:
        require_packages("8bit", "trainer.optimizer_bits", ", or use 32")

"""Checks of ``qa-arch doctor``; each imports the packages that it checks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import platform
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from qa_arch.errors import QaArchError

DISTRIBUTION = "qa-arch"
HUB_SECONDS = 3.0
"""Seconds after which the hub counts as unreachable."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check and, if something is wrong, how to fix it."""

    name: str
    status: Literal["ok", "missing", "broken"]
    found: str
    mend: str = ""
    needed: bool = False
    """Whether qa_arch requires it."""


def python() -> Iterator[Check]:
    version = f"{platform.python_version()} at {sys.executable}"
    fits = sys.version_info >= (3, 11)
    yield Check("python", "ok" if fits else "broken", version, "" if fits else "install Python >= 3.11", True)


def dependencies() -> Iterator[Check]:
    """Requirements of the installed package against the installed versions."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        yield Check(DISTRIBUTION, "broken", "not installed", "pip install -e . in the checkout", True)
        return
    for requirement in requirements:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        mend = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Check(requirement.name, "missing", "not installed", mend, True)
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield Check(requirement.name, "ok", version, needed=True)
        else:
            yield Check(requirement.name, "broken", f"{version}, not {requirement.specifier}", mend, True)


def devices() -> Iterator[Check]:
    """Whether torch can be imported, and its devices."""
    try:
        import torch
    except Exception as error:  # a broken installation raises OSError as well as ImportError
        yield Check("import torch", "broken", _line(error), "install torch again: make setup", True)
        return
    yield Check("cpu", "ok", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads; {_cpu_bf16()}")
    if not torch.cuda.is_available():
        mend = "for a GPU: a CUDA build of torch (make setup TORCH=...) and its driver"
        yield Check("cuda", "missing", f"torch {torch.__version__} sees no CUDA device", mend)
        return
    from qa_arch.training.machine import BF16

    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        # Not torch's is_bf16_supported, which is also true where bf16 is only emulated.
        bf16 = "bf16" if (about.major, about.minor) >= BF16 else "no bf16: use trainer.precision=fp16"
        yield Check(f"cuda:{index}", "ok", f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {bf16}")


def configs() -> Iterator[Check]:
    """The config folder, and that no other package shadows ``baselines``."""
    from qa_arch.config.find import conf_folder

    package = Path(__file__).resolve().parents[2]
    try:
        yield Check("conf", "ok", str(conf_folder()), needed=True)
    except QaArchError as error:
        yield Check("conf", "broken", str(error), "pip install -e . again", True)
    spec = importlib.util.find_spec("baselines")
    folder = Path(spec.origin).resolve().parent if spec and spec.origin else None
    if folder is None and spec and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))).resolve()
    if folder is None:
        yield Check("baselines", "missing", "no such package", "pip install -e . again", True)
    elif folder != package / "baselines":
        problem = f"a foreign package at {folder} shadows the one at {package / 'baselines'}"
        owners = metadata.packages_distributions().get("baselines", [])
        foreign = next((name for name in owners if name != DISTRIBUTION), None)
        mend = (
            f"pip uninstall {foreign}"
            if foreign
            else "call qa-arch from another folder, or correct PYTHONPATH"
        )
        yield Check("baselines", "broken", problem, mend, True)
    else:
        yield Check("baselines", "ok", str(folder), needed=True)


def hydra_plugins() -> Iterator[Check]:
    """Hydra plugins: Hydra imports all of them at every start, so a broken one stops everything."""
    try:
        namespace = importlib.import_module("hydra_plugins")
    except ImportError:
        yield Check("hydra plugins", "ok", "none installed")
        return
    modules = [m.name for m in pkgutil.iter_modules(namespace.__path__, "hydra_plugins.")]
    for name in modules:
        try:
            module = importlib.import_module(name)
            for inner in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}."):
                importlib.import_module(inner.name)
        except Exception as error:
            owner = _owner(name)
            mend = f"pip uninstall {owner}" if owner else f"remove {name}"
            yield Check(name, "broken", f"cannot be imported ({_line(error)})", mend, True)
        else:
            yield Check(name, "ok", "imports")


def hub_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}


def hub_reachable() -> bool:
    """Whether the model hub answers within ``HUB_SECONDS``; no request under HF_HUB_OFFLINE."""
    if hub_offline():
        return False
    url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answered: list[bool] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            urllib.request.urlopen(request, timeout=HUB_SECONDS).close()
        except urllib.error.HTTPError:
            pass  # it answered
        except (TimeoutError, OSError, ValueError):
            return
        answered.append(True)

    # In a thread, because name resolution has no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS + 1)
    return bool(answered)


def run_all(groups: list[Callable[[], Iterator[Check]]]) -> list[Check]:
    """All checks of all groups; an exception becomes a broken check and does not stop the others."""
    checks: list[Check] = []
    for group in groups:
        try:
            checks += group()
        except Exception as error:
            checks.append(Check(group.__name__, "broken", f"the check failed ({_line(error)})", needed=True))
    return checks


def _owner(module: str) -> str | None:
    """Installed distribution of a plugin module."""
    folder = module.replace(".", "/")
    for distribution in metadata.distributions():
        if any(str(file).startswith((f"{folder}/", f"{folder}.py")) for file in distribution.files or ()):
            return str(distribution.metadata["Name"])
    return None


def _cpu_bf16() -> str:
    info = Path("/proc/cpuinfo")
    flags: Any = info.read_text(encoding="utf-8", errors="replace").split() if info.is_file() else ()
    fast = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    return f"bf16 in hardware ({', '.join(fast)})" if fast else "bf16 only in software: fp32 is faster"


def _line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:160]}"

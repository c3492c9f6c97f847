"""``qa-arch doctor``: check the installation, data and network, and say how to fix problems."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pkgutil
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from qa_arch import hub
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import recipes
from qa_arch.data.sources import schemes
from qa_arch.errors import UnavailableError, one_line
from qa_arch.manifest import BROKEN

ONCE_ONLINE = "download it once while online"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check and, if it failed, how to fix the problem."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = False
    """Whether qa_arch requires it."""
    is_package: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object: ok, checks")


def run(args: argparse.Namespace) -> int:
    """Print what was found; exit code 6 if something required is missing or broken."""
    checks: list[Check] = []
    for group in (dependencies, devices, packages, hydra_plugins, hub_files):
        try:
            checks += group()
        except Exception as error:  # a broken installation may raise anything; the other checks still run
            name = group.__name__.replace("_", " ")
            checks.append(Check(name, False, _summary(error), "reinstall qa-arch", True))
    problems = sum(check.needed and not check.ok for check in checks)
    if args.json:
        print(json.dumps({"ok": not problems, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks)
    return UnavailableError.exit_code if problems else 0


def _print(checks: Sequence[Check]) -> None:
    """Print what was found, on one line where several checks found the same, and whether qa-arch works."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for check in checks:
        state = "ok" if check.ok else "PROBLEM" if check.needed else "absent"
        fits = check.ok and check.is_package
        name, found = (f"{check.name} {check.found}", "installed") if fits else (check.name, check.found)
        lines.setdefault((state, found, "" if check.ok else check.remedy), []).append(name)
    for (state, found, remedy), names in lines.items():
        print(f"{state:<8} {', '.join(names)}: {found}")
        if remedy:
            print(f"{'':<8} -> {remedy}")
    broken = [check.name for check in checks if check.needed and not check.ok]
    print(
        f"qa-arch does not work here; repair {', '.join(broken)}"
        if broken
        else "qa-arch works here; what is absent is needed only by a run that names it"
    )


def dependencies() -> Iterator[Check]:
    """Check Python, and the installed versions against the requirements of the package."""
    from packaging.requirements import Requirement

    yield Check("python", True, f"{platform.python_version()} at {sys.executable}", needed=True)
    for requirement in map(Requirement, metadata.requires("qa-arch") or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):  # of an extra
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = ""
        fits = bool(version) and requirement.specifier.contains(version, prereleases=True)
        found = version if fits else f"{version or 'not installed'}, not {requirement.specifier}"
        yield Check(requirement.name, fits, found, f"pip install '{requirement}'", True, True)


def devices() -> Iterator[Check]:
    """Check which devices torch has, and by trial which precisions this CPU computes fast."""
    import torch

    from qa_arch.nn.precision import bf16_is_faster
    from qa_arch.training.fit import BF16

    bf16 = "bf16 is faster than fp32" if bf16_is_faster() else "bf16 is only emulated"
    yield Check("cpu", True, f"{os.cpu_count()} cores, {torch.get_num_threads()} threads; {bf16}")
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        # Not torch's is_bf16_supported, which is also true if bf16 is only emulated.
        precision = "bf16" if (gpu.major, gpu.minor) >= BF16 else "no bf16: use trainer.precision=fp16"
        yield Check(f"cuda:{index}", True, f"{gpu.name}, {gpu.total_memory >> 30} GiB, {precision}")
    if not torch.cuda.is_available():
        remedy = "for a GPU: a CUDA build of torch (make setup TORCH=...) and its driver"
        yield Check("cuda", False, f"torch {torch.__version__} sees no CUDA device", remedy)


def packages() -> Iterator[Check]:
    """Check the config folder, that no other package shadows ``baselines``, and the packages of extras."""
    yield Check("conf", True, str(conf_folder()), needed=True)
    own = Path(__file__).resolve().parents[2] / "baselines"
    spec = importlib.util.find_spec("baselines")
    found = [str(Path(folder).resolve()) for folder in (spec and spec.submodule_search_locations) or ()]
    remedy = f"uninstall the package that hides {own}, or correct PYTHONPATH"
    importlib.import_module("qa_arch.results.columns")  # as recipes and schemes, adds to BROKEN
    recipes()
    schemes()
    for problem in BROKEN:
        yield Check("extras", False, problem, "repair or uninstall its package", True)
    yield Check("baselines", found[:1] == [str(own)], ", ".join(found) or "not found", remedy, True)


def hydra_plugins() -> Iterator[Check]:
    """Check the installed plugins: Hydra imports all of them at every start, so a broken one stops it."""
    spec = importlib.util.find_spec("hydra_plugins")
    folders = (spec and spec.submodule_search_locations) or ()
    for plugin in pkgutil.walk_packages(folders, "hydra_plugins.", onerror=lambda name: None):
        remedy = f"pip uninstall {plugin.name.split('.')[1].replace('_', '-')}"
        try:
            importlib.import_module(plugin.name)
        except Exception as error:
            yield Check(plugin.name, False, f"cannot be imported ({_summary(error)})", remedy, True)
    yield Check("hydra plugins", True, "can be imported", needed=True)


def hub_files() -> Iterator[Check]:
    """Check that encoders of ``conf/encoder`` and SQuAD are installed, cached or available from the hub."""
    from qa_arch.nn.encoder_configs import WITHOUT_HUB, resolve

    files = sorted((conf_folder() / "encoder").glob("[!_]*.yaml"))
    for name in filter(None, (yaml.safe_load(file.read_text("utf-8")).get("name") for file in files)):
        remedy = f"{ONCE_ONLINE}, or {WITHOUT_HUB.get(name, 'encoder.name=FOLDER')}"
        source = resolve(name)
        yield _hub_check(f"encoder {name}", hub.on_this_machine(source), remedy)
    for name in ("rajpurkar/squad", "rajpurkar/squad_v2"):
        remedy = f"{ONCE_ONLINE}, or train on files: data=files data.train=FILE data.dev=FILE"
        yield _hub_check(f"data {name}", hub.cached("datasets", name), remedy)


def _hub_check(name: str, is_local: bool, remedy: str) -> Check:
    if is_local:
        return Check(name, True, "on this machine")
    problem = hub.state()
    availability = problem or "the hub is reachable: downloaded at first use"
    return Check(name, not problem, f"not on this machine; {availability}", remedy)


def _summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error, 160)}"

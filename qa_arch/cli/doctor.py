"""``qa-arch doctor``: check the installation, data and network, and say how to fix problems.

Each check imports the packages that it checks.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import netrc
import os
import pkgutil
import platform
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

from qa_arch.errors import QaArchError, UnavailableError

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object: ok, checks")


def run(args: argparse.Namespace) -> int:
    """Print one line per check; exit code 6 if something required is missing or broken."""
    hub_reachable.cache_clear()
    groups = [python, dependencies, devices, arithmetic, configs, hydra_plugins, encoders, data, glove, wandb]
    results = run_all(groups)
    problems = [check for check in results if check.needed and check.status != "ok"]
    if args.json:
        print(json.dumps({"ok": not problems, "checks": [asdict(check) for check in results]}, indent=2))
    else:
        _print(results, len(problems))
    return UnavailableError.exit_code if problems else 0


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
    yield Check("cpu", "ok", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        mend = "for a GPU: a CUDA build of torch (make setup TORCH=...) and its driver"
        yield Check("cuda", "missing", f"torch {torch.__version__} sees no CUDA device", mend)
        return
    from qa_arch.training.devices import BF16

    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        # Not torch's is_bf16_supported, which is also true where bf16 is only emulated.
        bf16 = "bf16" if (about.major, about.minor) >= BF16 else "no bf16: use trainer.precision=fp16"
        yield Check(f"cuda:{index}", "ok", f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {bf16}")


def arithmetic() -> Iterator[Check]:
    """What this processor computes fast and right, by trial."""
    import torch

    from qa_arch.nn import processor

    bf16 = "faster than fp32" if processor.bf16_is_faster() else "only emulated: fp32 is faster"
    lstm = "" if processor.lstm_in_bf16() else ", LSTMs in fp32"
    yield Check("bf16 on the CPU", "ok", f"{bf16}{lstm} ({torch.backends.cpu.get_cpu_capability()})")
    for library in ("torch", *(["onnx"] if importlib.util.find_spec("onnxruntime") else [])):
        try:
            yield Check(f"{library} int8", "ok", processor.engine(library, "int8"))
        except QaArchError as error:
            yield Check(f"{library} int8", "missing", str(error), "read in fp32: --precision fp32")


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
        elsewhere = "call qa-arch from another folder, or correct PYTHONPATH"
        mend = f"pip uninstall {foreign}" if foreign else elsewhere
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


def encoders() -> Iterator[Check]:
    """Encoders of ``conf/encoder``: cached, installed as a package, or available from the hub."""
    import yaml  # type: ignore[import-untyped]

    from qa_arch.config.find import conf_folder
    from qa_arch.nn.encoder_configs import HUB_IDS, WITHOUT_HUB, resolve

    for path in sorted((conf_folder() / "encoder").glob("[!_]*.yaml")):
        name = yaml.safe_load(path.read_text(encoding="utf-8")).get("name")
        if name in HUB_IDS:
            folder = resolve(name)
            if folder == HUB_IDS[name]:
                yield Check(f"encoder {name}", "missing", "not installed", WITHOUT_HUB[name])
            else:
                yield Check(f"encoder {name}", "ok", f"at {folder}")
        elif name is not None:  # words: nothing to download
            yield _of_hub(f"encoder {path.stem}", name)


def _of_hub(label: str, name: str) -> Check:
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "tokenizer_config.json", "model.safetensors")
    if all(isinstance(try_to_load_from_cache(name, file), str) for file in files):
        return Check(label, "ok", f"{name} is cached")
    if hub_reachable():
        return Check(label, "ok", f"{name} is not cached, the hub answers: downloaded at first use")
    status = f"{name} is not cached and {_why_unreachable()}"
    return Check(label, "missing", status, "download it once while online, or encoder.name=FOLDER")


def data() -> Iterator[Check]:
    """The folder of real data, and the SQuAD sets of the hub. The synthetic data needs neither."""
    folder = os.environ.get("QA_ARCH_DATA")
    files = sorted(path.name for path in (Path(folder) / "squad").glob("*.json")) if folder else []
    if files:
        yield Check("QA_ARCH_DATA", "ok", f"{folder}: {', '.join(files)}")
    else:
        status = f"no squad/*.json in {folder}" if folder else "not set"
        mend = "name a folder with squad/*.json, or data=files data.train=FILE data.dev=FILE"
        yield Check("QA_ARCH_DATA", "missing", status, mend)
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cached = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    for name in ("squad", "squad_v2"):
        if any(cached.glob(f"rajpurkar___{name}/*")):
            yield Check(f"hub data {name}", "ok", "cached")
        elif hub_reachable():
            yield Check(f"hub data {name}", "ok", "not cached, the hub answers: downloaded at first use")
        else:
            mend = "download it once while online, or train on files: data=files"
            yield Check(f"hub data {name}", "missing", f"not cached and {_why_unreachable()}", mend)


def glove() -> Iterator[Check]:
    """The word vectors that ``glove=file`` reads; without them ``glove=none``."""
    path = os.environ.get("QA_ARCH_GLOVE")
    mend = "QA_ARCH_GLOVE=FILE or glove.path=FILE (such as glove.840B.300d.txt), make glove, or glove=none"
    if not path:
        yield Check("QA_ARCH_GLOVE", "missing", "not set", mend)
        return
    if Path(path).is_dir():  # as a run keeps them
        from qa_arch.features.vectors import MATRIX, WORDS

        absent = [n for n in (WORDS, MATRIX) if not (Path(path) / n).is_file()]
        status = f"{path}: holds no {' and no '.join(absent)}" if absent else path
        yield Check("QA_ARCH_GLOVE", "broken" if absent else "ok", status, mend if absent else "")
        return
    try:
        with Path(path).open("rb") as file:
            first = file.readline(1 << 20).split(b" ")
        float(first[-1])
    except OSError as error:
        yield Check("QA_ARCH_GLOVE", "broken", f"{path}: {error.strerror}", mend)
    except ValueError:
        yield Check("QA_ARCH_GLOVE", "broken", f"{path}: its first line holds no word vector", mend)
    else:
        yield Check("QA_ARCH_GLOVE", "ok", path)


def wandb() -> Iterator[Check]:
    """Whether runs are logged online, by the rule of ``logger.mode=auto``."""
    if mode := os.environ.get("WANDB_MODE"):
        yield Check("wandb", "ok", f"WANDB_MODE={mode}")
        return
    try:
        entry = netrc.netrc().authenticators("api.wandb.ai")
    except (OSError, netrc.NetrcParseError):
        entry = None
    if os.environ.get("WANDB_API_KEY") or entry:
        yield Check("wandb", "ok", "logged in")
    else:
        yield Check("wandb", "missing", "not logged in: runs are logged offline", "wandb login, to go online")


def _why_unreachable() -> str:
    return "HF_HUB_OFFLINE is set" if hub_offline() else "the hub does not answer"


def _print(results: list[Check], problems: int) -> None:
    for check in results:
        print(f"{check.status:<8} {check.name}: {check.found}")
        if check.mend and check.status != "ok":
            print(f"{'':<8} -> {check.mend}")
    print("everything required works" if not problems else f"{problems} required items are missing or broken")


def hub_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}


@cache
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


def _line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:160]}"

"""``qa-arch doctor``: check the installation, data and network, and say how to fix problems."""

from __future__ import annotations

import argparse
import json
import netrc
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

from qa_arch.cli import checks
from qa_arch.cli.checks import Check
from qa_arch.errors import UnavailableError


@cache
def reachable() -> bool:
    """``checks.hub_reachable``, cached for all encoders and data sets."""
    return checks.hub_reachable()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object: ok, checks")


def run(args: argparse.Namespace) -> int:
    """Print one line per check; exit code 6 if something required is missing or broken."""
    reachable.cache_clear()
    groups: list[Callable[[], Iterator[Check]]] = [
        checks.python,
        checks.dependencies,
        checks.devices,
        checks.configs,
        checks.hydra_plugins,
        encoders,
        data,
        glove,
        wandb,
    ]
    results = checks.run_all(groups)
    problems = [check for check in results if check.needed and check.status != "ok"]
    if args.json:
        print(json.dumps({"ok": not problems, "checks": [asdict(check) for check in results]}, indent=2))
    else:
        _print(results, len(problems))
    return UnavailableError.exit_code if problems else 0


def encoders() -> Iterator[Check]:
    """Encoders of ``conf/encoder``: cached, installed as a package, or available from the hub."""
    import yaml  # type: ignore[import-untyped]

    from qa_arch.config.find import conf_folder
    from qa_arch.nn.encoder_configs import HUB_IDS

    for path in sorted((conf_folder() / "encoder").glob("[!_]*.yaml")):
        name = yaml.safe_load(path.read_text(encoding="utf-8")).get("name")
        if name is None:  # words: nothing to download
            continue
        yield _from_pypi(name) if name in HUB_IDS else _encoder(f"encoder {path.stem}", name)


def _from_pypi(name: str) -> Check:
    from qa_arch.nn.encoder_configs import HUB_IDS, WITHOUT_HUB, resolve

    folder = resolve(name)
    if folder != HUB_IDS[name]:
        return Check(f"encoder {name}", "ok", f"at {folder}")
    return Check(f"encoder {name}", "missing", "not installed", WITHOUT_HUB[name])


def _encoder(label: str, name: str) -> Check:
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "tokenizer_config.json", "model.safetensors")
    if all(isinstance(try_to_load_from_cache(name, file), str) for file in files):
        return Check(label, "ok", f"{name} is cached")
    if reachable():
        return Check(label, "ok", f"{name} is not cached, the hub answers: downloaded at first use")
    status = f"{name} is not cached and {_why_unreachable()}"
    return Check(label, "missing", status, "load it once with the hub in reach, or encoder.name=FOLDER")


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
    cached = Path(os.environ.get("HF_DATASETS_CACHE", _hf_home() / "datasets"))
    for name in ("squad", "squad_v2"):
        if any(cached.glob(f"rajpurkar___{name}/*")):
            yield Check(f"hub data {name}", "ok", "cached")
        elif reachable():
            yield Check(f"hub data {name}", "ok", "not cached, the hub answers: downloaded at first use")
        else:
            mend = "load it once with the hub in reach, or train on files: data=files"
            yield Check(f"hub data {name}", "missing", f"not cached and {_why_unreachable()}", mend)


def glove() -> Iterator[Check]:
    """The word vectors that ``glove=file`` reads; without them ``glove=none``."""
    path = os.environ.get("QA_ARCH_GLOVE")
    mend = "QA_ARCH_GLOVE=FILE or glove.path=FILE (such as glove.840B.300d.txt), make glove, or glove=none"
    if not path:
        yield Check("QA_ARCH_GLOVE", "missing", "not set", mend)
        return
    if Path(path).is_dir():  # as a run keeps them
        from qa_arch.features.glove import MATRIX, WORDS

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
    return "HF_HUB_OFFLINE is set" if checks.hub_offline() else "the hub does not answer"


def _hf_home() -> Path:
    return Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()


def _print(results: list[Check], problems: int) -> None:
    for check in results:
        print(f"{check.status:<8} {check.name}: {check.found}")
        if check.mend and check.status != "ok":
            print(f"{'':<8} -> {check.mend}")
    print("everything required works" if not problems else f"{problems} required items are missing or broken")

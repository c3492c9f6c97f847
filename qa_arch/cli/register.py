"""``qa-arch register``: pre-register the runs that an experiment may score on its held-out dev set."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qa_arch.cli.runs import add_options
from qa_arch.config.check import from_mapping, key_of
from qa_arch.config.find import use_config_dir
from qa_arch.errors import ConfigError, RunError, named
from qa_arch.files import read_yaml, write_json
from qa_arch.provenance import REGISTERED
from qa_arch.terminal import counted

if TYPE_CHECKING:
    from qa_arch.config.schema import Config


@dataclass(frozen=True)
class PlanFile:
    """What the file of a plan holds."""

    arms: dict[str, str]
    """Name -> settings of its runs: ``KEY=VALUE ...``."""
    seeds: list[int]
    tuning: str | None = None
    """What is tried before the arms are fixed; not registered."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch register experiments/ours/plan.yaml"
    plan = "arms: {NAME: KEY=VALUE ...} and seeds: [...]; registered.json is written beside this file"
    parser.add_argument("plan", type=Path, metavar="PLAN.yaml", help=plan)
    add_options(parser, "--config-dir", "--trust")


def run(args: argparse.Namespace) -> int:
    """Write the hashes of all planned runs; an earlier registration is never overwritten."""
    arms, seeds = _read_plan(args.plan)
    from qa_arch import provenance
    from qa_arch.provenance import Registration, read_registration
    from qa_arch.training.inputs import load_sets

    folder = use_config_dir(args.config_dir, args.trust)
    configs = _compose(args.plan, arms, seeds, folder)
    (first, *_) = configs[next(iter(arms))].values()
    sets = load_sets(replace(first, data=replace(first.data, open_dev=True)))  # for its fingerprint
    firsts = {name: asdict(next(iter(arm.values()))) for name, arm in configs.items()}
    packages = {own: it for config in firsts.values() for own, it in provenance.own_packages(config).items()}
    if absent := [name for name, places in packages.items() if not places]:
        remedy = f"name the folder that holds it with --config-dir DIR --trust {absent[0]}"
        raise ConfigError(f"{args.plan}: there is no package {absent[0]}; {remedy}")
    runs = {
        name: {str(seed): provenance.identify(asdict(config)).settings_hash for seed, config in arm.items()}
        for name, arm in configs.items()
    }
    described = {
        split: {"name": questions.name, "questions": len(questions), "fingerprint": questions.fingerprint}
        for split, questions in sets.items()
    }
    first_arms: dict[str, str] = {}
    for name, by_seed in runs.items():
        # One seed suffices: the arms have the same.
        if (other := first_arms.setdefault(by_seed[str(seeds[0])], name)) != name:
            raise ConfigError(f"{args.plan}: arms {other} and {name} have the same settings; leave one out")
    target = args.plan.parent / REGISTERED
    if earlier := read_registration(args.plan.parent):
        if (runs, described) != (earlier.runs, earlier.sets):
            raise RunError(f"{target}: has another plan or data; register a changed plan as a new experiment")
        print(f"{target}: already registered, nothing changed")
        return 0
    commit, dirty = provenance.commit()
    code = provenance.code_hash({})
    registration = Registration(
        date=provenance.now(),
        commit=f"{commit}, changed" if dirty else commit,
        sets=described,
        runs=runs,
        code=code,
        own={name: own for name, config in firsts.items() if (own := provenance.code_hash(config)) != code},
    )
    write_json(target, asdict(registration))
    print(f"{counted(len(arms), 'arm')} of {counted(len(seeds), 'seed')}: {target}")
    return 0


def _compose(
    plan: Path, arms: Mapping[str, str], seeds: Sequence[int], folder: str | None
) -> dict[str, dict[int, Config]]:
    """Config of every arm and seed; ConfigError unless they share name and data, with a held-out dev set."""
    from qa_arch.config.compose import compose
    from qa_arch.config.schema import validate

    configs: dict[str, dict[int, Config]] = {}
    for name, settings in arms.items():
        try:
            words = shlex.split(settings)
            if "seed" in map(key_of, words):
                raise ConfigError("contains seed=...; list seeds in seeds")
            configs[name] = {
                seed: validate(compose([*words, f"seed={seed}"], folder))  # a teacher may be trained later
                for seed in seeds
            }
        except (ConfigError, ValueError) as error:  # ValueError: an open quotation mark
            raise ConfigError(f"{plan}: arm {name}: {error}") from None
    (first, *rest) = [config for by_seed in configs.values() for config in by_seed.values()]
    if any((config.data, config.name) != (first.data, first.name) for config in rest):
        raise ConfigError(f"{plan}: the arms differ in name or data; an experiment has one of each")
    if first.data.open_dev:
        raise ConfigError(
            f"{plan}: the dev set of its runs is not held out; add data.open_dev=false to each arm"
        )
    if first.name != (expected := plan.resolve().parent.name):
        raise ConfigError(
            f"{plan}: its runs belong to experiment {first.name}, so --final looks for the registration"
            f" in experiments/{first.name}; add name={expected} to each arm, or move the plan there"
        )
    return configs


def _read_plan(path: Path) -> tuple[Mapping[str, str], list[int]]:
    """Arms and seeds of the plan; raises ConfigError if it is invalid."""
    content = read_yaml(path)
    with named(str(path)):
        plan = from_mapping(PlanFile, content)
    if not (plan.arms and plan.seeds):
        raise ConfigError(f"{path}: needs arms (NAME: KEY=VALUE ...) and seeds, at least one of each")
    if len(set(plan.seeds)) < len(plan.seeds):
        raise ConfigError(f"{path}: seeds lists a seed twice; leave one out")
    return plan.arms, plan.seeds

"""``qa-arch train``: compose a config, check it, train, and print what came out."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_atomic, write_json
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import Config, require_vectors, validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError

CONFIG = "config.yaml"
CONTENDERS = ("albert", "roberta", "distilbert", "bert", "proposed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch train model=proposed experiment=squad2 glove.path=glove.840B.300d.txt"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as Hydra takes them")
    parser.add_argument(
        "--models",
        metavar="A,B,...",
        help=f"train several side by side and compare; 'all' is {','.join(CONTENDERS)}",
    )
    parser.add_argument(
        "--config-from", metavar="RUN", help="repeat the config of a run (overrides still apply)"
    )
    parser.add_argument(
        "--if-exists",
        choices=("fail", "replace", "resume"),
        default="fail",
        help="when the run folder is there already (default: fail)",
    )
    parser.add_argument(
        "--folder", metavar="DIR", help="the run folder (default: RUNS_DIR/NAME/MODEL-sSEED-HASH)"
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PREFIX",
        help="a package whose classes a config may name",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything that loads no weights, print the config, stop",
    )


def run(args: argparse.Namespace) -> int:
    if args.models and args.folder:
        raise ConfigError("--folder names one run; it does not go with --models")
    trusted = (*TRUSTED, *args.trust)
    configs = [_config(args, model, trusted) for model in _models(args.models)]
    if args.dry_run:
        for _, raw in configs:
            print(_yaml(raw), end="")
        return 0
    folders = [Path(args.folder) if args.folder else _folder(config) for config, _ in configs]
    for folder in folders:
        _make_room(folder, args.if_exists)
    statuses = []
    for (config, raw), folder in zip(configs, folders, strict=True):
        write_atomic(folder / CONFIG, _yaml(raw))
        statuses.append(_train(config, folder, args.if_exists == "resume", trusted))
    _show(folders, compared=bool(args.models))
    return 0 if all(status == "ok" for status in statuses) else 1


def _models(names: str | None) -> list[str | None]:
    if names is None:
        return [None]
    return list(CONTENDERS) if names == "all" else [name.strip() for name in names.split(",") if name.strip()]


def _config(
    args: argparse.Namespace, model: str | None, trusted: Sequence[str]
) -> tuple[Config, dict[str, Any]]:
    """The checked config: a typo in any of several models fails before the first one trains."""
    if args.config_from:
        raw = _repeat(Path(args.config_from), args.overrides)
    else:
        from qa_arch.cli.compose import compose

        raw = compose([*args.overrides, *([f"model={model}"] if model else [])])
    config = validate(raw)
    require_vectors(config)
    from qa_arch.models.assemble import check_model

    check_model(config.model, trusted, with_vectors=config.glove.use)
    return config, raw


def _repeat(run_folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    path = run_folder / CONFIG if run_folder.is_dir() else run_folder
    if not path.is_file():
        raise RunError(f"{path}: no such config; give a run folder or a {CONFIG}")
    from qa_arch.cli.compose import merge

    return merge(path, overrides)


def _folder(config: Config) -> Path:
    name = config.model.get("name", "model")
    return Path(config.runs_dir) / config.name / f"{name}-s{config.seed}-{config_hash(asdict(config))[:8]}"


def _make_room(folder: Path, if_exists: str) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        return
    if if_exists == "fail":
        raise RunError(
            f"{folder}: there already; --if-exists resume goes on with it, --if-exists replace starts anew"
        )
    if if_exists == "replace":
        if not (folder / CONFIG).is_file():
            raise RunError(f"{folder}: holds no {CONFIG}, so it is not a run and was not replaced")
        shutil.rmtree(folder)


def _train(config: Config, folder: Path, resume: bool, trusted: Sequence[str]) -> str:
    from qa_arch.results.record import RECORD, read_record

    if resume and (folder / RECORD).is_file() and (done := read_record(folder)).status == "ok":
        print(f"{folder}: finished before, nothing to do", file=sys.stderr)
        return done.status
    from qa_arch.training.run import train

    return train(config, folder=folder, resume=resume, trusted=trusted).status


def _show(folders: Sequence[Path], *, compared: bool) -> None:
    from qa_arch.results.comparison import comparison
    from qa_arch.results.record import read_record
    from qa_arch.results.render import print_table

    table = comparison([(folder, read_record(folder)) for folder in folders])
    print_table(table)
    if compared:
        path = folders[0].parent / "table.json"
        write_json(path, table.as_dict())
        print(f"records: {folders[0].parent}/*/run.json; this table: {path}")
    else:
        print(f"record: {folders[0]}/run.json")


def _yaml(raw: dict[str, Any]) -> str:
    from qa_arch.cli.compose import to_yaml

    return to_yaml(raw)

"""``qa-arch serve``: trained runs as a web page and over REST."""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from qa_arch.cli.runs import add_device_options, add_engine, open_span_predictor, require_runs
from qa_arch.config import extras
from qa_arch.errors import ConfigError

TOKEN = "QA_ARCH_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_folder", metavar="RUN", nargs="+", help="a run folder; the first answers by default"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: 8000)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which clients may ask for this machine (default: localhost; any with another --host)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with the token that clients must send (default: the variable {TOKEN}; none: no token)",
    )
    parser.add_argument(
        "--max-queue", type=int, default=128, metavar="N", help="queries that wait for a model (default: 128)"
    )
    parser.add_argument(
        "--max-batch", type=int, default=16, metavar="N", help="queries answered together (default: 16)"
    )
    parser.add_argument(
        "--max-characters", type=int, default=200_000, metavar="N", help="of a request (default: 200000)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds for an answer (default: 60)"
    )
    add_device_options(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    """Print the address and serve until SIGTERM or Ctrl-C; requests under way are answered first."""
    extras.require("serve", "the service")
    require_runs(args.run_folder)
    from qa_arch.serving.app import create_app
    from qa_arch.serving.guard import LOOPBACK, ServiceOptions, address, bind, serve
    from qa_arch.serving.reader import Reader

    names = distinct_names(args.run_folder)
    is_local = is_loopback(args.host)
    known = (*LOOPBACK, args.host, *args.allow_host) if is_local or args.allow_host else ()
    options = ServiceOptions(
        max_queue=args.max_queue,
        max_batch=args.max_batch,
        max_characters=args.max_characters,
        request_seconds=args.timeout,
        drain_seconds=args.timeout,
        allowed_hosts=tuple(map(str.lower, known)),
        token=read_token(args.token_file),
    )
    bound = bind(args.host, args.port)  # a port in use is known before the models are loaded
    models = {
        name: Reader(open_span_predictor([folder], args))
        for name, folder in zip(names, args.run_folder, strict=True)
    }
    for name in models:
        print(name)
    if not is_local and options.token is None:
        print(f"anyone who reaches {args.host} can ask: set {TOKEN} or --token-file")
    serve(
        create_app(models, options),
        bound,
        options,
        ready=lambda: print(f"{address(bound)} (the API: {address(bound)}/docs)", flush=True),
    )
    return 0


def distinct_names(folders: Sequence[str]) -> list[str]:
    """The last part of each path, with those before it where that does not tell the runs apart.

    Raises ConfigError for a run that is named twice.
    """
    paths = [Path(folder).resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise ConfigError("a run is named twice")
    parts = [path.parts[1:] for path in paths]
    length = 1
    while len({part[-length:] for part in parts}) < len(parts):
        length += 1
    return ["/".join(part[-length:]) for part in parts]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_token(file: str | None) -> str | None:
    """The token of a file, or of the environment; never an argument, which every process could read."""
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file}: cannot be read ({error})") from error

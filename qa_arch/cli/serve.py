"""``qa-arch serve``: serve trained runs over REST and on a web page."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from pathlib import Path

from qa_arch.cli.runs import DEVICE, RUN_HELP, add_options, open_reader, require_runs
from qa_arch.config.target import require_packages
from qa_arch.errors import ConfigError
from qa_arch.serving import LOOPBACK, ServiceOptions

TOKEN = "QA_ARCH_TOKEN"
LIMITS = {
    "--max-queue": ("max_queue", "queries that may wait for a model"),
    "--max-batch": ("max_batch", "queries answered together"),
    "--max-characters": ("max_characters", "characters of a request"),
    "--timeout": ("request_seconds", "seconds for an answer"),
}
"""Option -> field of ``ServiceOptions`` and help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch serve runs/squad2/bert-s13 --port 8000"
    add = parser.add_argument
    add("run_folder", metavar="RUN", nargs="+", help=f"{RUN_HELP}; the first answers by default")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    add("--port", type=int, default=8000, help="port; 0 picks a free one (default: 8000)")
    hosts = "host name that requests may use (default: localhost; any, with another --host)"
    add("--allow-host", action="append", default=[], metavar="NAME", help=hosts)
    token = f"file with the token that clients must send (default: the variable {TOKEN}, if set)"
    add("--token-file", metavar="FILE", help=token)
    for option, (field, summary) in LIMITS.items():
        default = getattr(ServiceOptions(), field)
        text = f"{summary} (default: {default})"
        add(option, type=type(default), default=default, metavar="N", help=text)
    add_options(parser, "--max-question", *DEVICE)


def run(args: argparse.Namespace) -> int:
    """Print the address and serve until SIGTERM or Ctrl-C; pending requests are still answered."""
    require_packages("serve", "the service")
    require_runs(args.run_folder)
    from qa_arch.serving.app import create_app
    from qa_arch.serving.guard import address, bind, serve

    named = [Path(folder).absolute().name for folder in args.run_folder]  # a link keeps its own name
    if len({Path(folder).resolve() for folder in args.run_folder}) < len(args.run_folder):
        raise ConfigError("RUN: the same run is given twice; give each once")
    for name in args.allow_host:
        if not re.fullmatch(r"\*|(\*\.)?[\w.-]+|[\da-f]*:[\da-f]*:[\da-f:.]*", name, re.IGNORECASE):
            host = re.search(r"[\w-]+(\.[\w-]+)+", name)
            hint = host[0] if host else "a name such as qa.example.org"
            raise ConfigError(f"--allow-host: {name!r} is not a host name; give {hint}")
    try:
        is_local = ipaddress.ip_address(args.host).is_loopback
    except ValueError:
        is_local = args.host.lower() == "localhost"
    options = ServiceOptions(
        max_queue=args.max_queue,
        max_batch=args.max_batch,
        max_characters=args.max_characters,
        request_seconds=args.timeout,
        allowed_hosts=(*LOOPBACK, args.host, *args.allow_host) if is_local or args.allow_host else (),
        token=read_token(args.token_file),
    )
    bound = bind(args.host, args.port)  # fails on a port in use before models are loaded
    models = {
        name if named.count(name) == 1 else folder: open_reader([folder], args)  # names may recur
        for name, folder in zip(named, args.run_folder, strict=True)
    }
    print(*models, sep="\n")
    if not is_local and options.token is None:
        print(f"anyone who can reach {args.host} can use it: set {TOKEN} or --token-file")
    serve(
        create_app(models, options),
        bound,
        options,
        ready=lambda: print(f"{address(bound)} (the API: {address(bound)}/docs)", flush=True),
    )
    return 0


def read_token(file: str | None) -> str | None:
    """Read the token from a file or the environment; never an argument, which any process could read."""
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file}: cannot be read ({error})") from error

"""``qa-arch params``: number of parameters per block, without loading or creating weights."""

from __future__ import annotations

import argparse
import json

from qa_arch.cli.runs import add_config_dir, add_trust, use_config_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch params model=proposed model.hidden=300 glove=none --json"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as for train")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: total, trainable, blocks, word_vectors"
    )
    add_config_dir(parser)
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    """Print the counts; fixed word vectors are not parameters and are listed separately."""
    from qa_arch.cli.compose import compose
    from qa_arch.config.schema import validate
    from qa_arch.config.target import TRUSTED

    config = validate(compose(args.overrides, use_config_dir(args.config_dir, args.trust)))
    from qa_arch.tasks import task_of

    counts = task_of(config.model).count_parameters(config, (*TRUSTED, *args.trust))
    if args.json:
        print(json.dumps(counts, indent=2))
        return 0
    from qa_arch.results.columns import Table, named, text
    from qa_arch.results.render import print_table

    rows = [{"model": name, "parameters": n} for name, n in counts["blocks"].items()]
    rows += [{"model": name, "parameters": counts[name]} for name in ("total", "trainable", "word_vectors")]
    title = f"{config.model.get('name')} on {config.encoder.name or config.encoder.family}"
    print_table(Table(title, [text("model", "block"), *named(["parameters"])], rows))
    return 0

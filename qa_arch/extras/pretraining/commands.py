"""``qa-arch pretrain``: tokenizers trained on a corpus and compared, and masked tokens filled in."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from qa_arch.cli.runs import add_device_options, open_predictor
from qa_arch.cli.watch import watching_file
from qa_arch.config.files import replacing_folder, write_json
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.pretraining.corpus import Corpus, open_corpus
from qa_arch.system.garbage import gc_disabled

CORPUS = "text files or folders (a blank line ends a document), squad:FILE or hub:NAME[:COLUMN]"
RECORD = "trained_on.json"
"""What a tokenizer was trained on, in its folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="pretrain_command", metavar="COMMAND", required=True)
    _add_tokenizer(commands.add_parser("tokenizer", help="train a tokenizer on a corpus"))
    _add_comparison(commands.add_parser("compare-tokenizers", help="how tokenizers divide a corpus"))
    _add_asking(commands.add_parser("ask", help="the most probable tokens of each [MASK] of a text"))


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    return args.action(args)


# Tokenizers -----------------------------------------------------------------------------------------


def _add_tokenizer(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("corpus", nargs="+", metavar="CORPUS", help=CORPUS)
    add(
        "--kind",
        choices=("wordpiece", "bpe", "unigram"),
        default="wordpiece",
        help="as BERT's, RoBERTa's (bytes) or ALBERT's (default: wordpiece)",
    )
    add(
        "--vocabulary", type=int, required=True, metavar="N", help="number of pieces, special tokens included"
    )
    add("--out", required=True, metavar="DIR", help="the folder to write; it must be new")
    add(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        help="default: as the published tokenizer of the kind (all but bpe)",
    )
    add(
        "--characters",
        type=int,
        default=1000,
        metavar="N",
        help="the most frequent characters that are pieces, others are unknown; not for bpe (default: 1000)",
    )
    parser.set_defaults(action=_train)


def _train(args: argparse.Namespace) -> int:
    """Train a tokenizer, write its folder and print what it read."""
    out = Path(args.out)
    if out.exists():
        raise ConfigError(f"--out {out}: exists and was not changed; name a new folder")
    corpus = open_corpus(args.corpus)
    from qa_arch.extras.pretraining.vocabularies import train_tokenizer

    counts: Counter[str] = Counter()
    began = time.monotonic()
    with watching_file("reading", "documents") as watch:
        tokenizer = train_tokenizer(
            args.kind,
            _watched(corpus, watch, counts),
            args.vocabulary,
            lowercase=args.lowercase,
            characters=args.characters,
        )
    seconds = time.monotonic() - began
    with replacing_folder(out) as folder:
        tokenizer.save_pretrained(folder)
        write_json(folder / RECORD, _record(args, corpus, counts))
    print(
        f"{out}: {args.kind}, {len(tokenizer):,} pieces, from {counts['documents']:,} documents"
        f" ({counts['bytes'] / 1e6:,.1f} MB) in {seconds:,.1f} s"
    )
    return 0


def _watched(
    corpus: Corpus, watch: Callable[[int, int | None, int], None], counts: Counter[str]
) -> Iterator[str]:
    """Documents of ``corpus``, counted with their bytes in ``counts``."""
    watch(0, corpus.size, 0)
    for document in corpus.documents():
        yield document
        counts["documents"] += 1
        counts["bytes"] += len(document.encode())
        watch(counts["bytes"], corpus.size, counts["documents"])


def _record(args: argparse.Namespace, corpus: Corpus, counts: Counter[str]) -> dict[str, object]:
    import tokenizers

    return {
        "corpus": corpus.source,
        "fingerprint": corpus.fingerprint,
        **counts,
        "kind": args.kind,
        "vocabulary": args.vocabulary,
        "lowercase": args.lowercase,
        "characters": None if args.kind == "bpe" else args.characters,
        "tokenizers": tokenizers.__version__,
    }


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tokenizers",
        nargs="+",
        metavar="TOKENIZER",
        help="a folder, a hub id, or minilm, whose tokenizer is that of BERT (uncased)",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        default=["squad:synthetic:dev"],
        metavar="CORPUS",
        help=f"what to count on: {CORPUS} (default: the generated passages of squad:synthetic:dev)",
    )
    parser.set_defaults(action=_compare)


def _compare(args: argparse.Namespace) -> int:
    """Print a table with a row for each tokenizer."""
    corpus = open_corpus(args.text)
    from qa_arch.extras.pretraining.vocabularies import figures
    from qa_arch.models.build import load_tokenizer
    from qa_arch.results.tables import Table, number, print_table, text

    tokenizers = {place: load_tokenizer(place, setting="TOKENIZER") for place in args.tokenizers}
    names = [Path(place).name or place for place in tokenizers]
    names = names if len(set(names)) == len(names) else list(tokenizers)
    counted = [figures(tokenizer, corpus.documents()) for tokenizer in tokenizers.values()]
    columns = [
        text("tokenizer", "tokenizer"),
        number("vocabulary", "pieces"),
        number("pieces_per_word", "per word", "{:.2f}".format),
        number("whole", "whole %"),
        number("unknown", "unknown %", "{:.2f}".format),
        number("p50", "p50"),
        number("p95", "p95"),
        number("longest", "max"),
    ]
    rows = [{"tokenizer": name, **asdict(item)} for name, item in zip(names, counted, strict=True)]
    notes = [
        f"{corpus.source}: {counted[0].documents:,} documents, {counted[0].words:,} words",
        "whole: words that are not divided; p50, p95, max: positions of a document",
    ]
    print_table(Table("", columns, rows, notes))
    return 0


# Asking ---------------------------------------------------------------------------------------------


def _add_asking(parser: argparse.ArgumentParser) -> None:
    parser.epilog = 'example: qa-arch pretrain ask RUN "My [MASK] is so cute."'
    parser.add_argument("run_folder", metavar="RUN", help="a run of model=pretrain/mlm or like it")
    parser.add_argument("text", metavar="TEXT", help="with [MASK] where a token is to be predicted")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="tokens to show (default: 5)")
    add_device_options(parser)
    parser.set_defaults(action=_ask)


def _ask(args: argparse.Namespace) -> int:
    """Print the most probable tokens of each mask."""
    if args.top_k < 1:
        raise ConfigError("--top-k: must be at least 1")
    with gc_disabled():
        from qa_arch.extras.pretraining.task import LanguagePredictor

    predictor = open_predictor([args.run_folder], args)
    if not isinstance(predictor, LanguagePredictor):
        raise RunError(
            f"{args.run_folder}: this run was not pre-trained, it answers questions (qa-arch ask); name a run"
            " of model=pretrain/mlm"
        )
    for number, guesses in enumerate(predictor.fill(args.text, args.top_k), 1):
        print(f"[MASK] {number}")
        for token, probability in guesses:
            print(f"  {probability:.3f}  {token}")
    return 0

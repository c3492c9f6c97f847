"""``qa-arch pretrain``: tokenizers trained on a corpus and compared, and what pre-trained models say."""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qa_arch.cli import pretrain_ask
from qa_arch.cli.watch import watching_file
from qa_arch.config.files import replacing_folder, write_atomic, write_json
from qa_arch.errors import ConfigError
from qa_arch.pretraining.corpus import Corpus, open_corpus

if TYPE_CHECKING:
    from qa_arch.pretraining.tokenizer_comparison import Comparison, Piece

CORPUS = "text files or folders (a blank line ends a document), squad:FILE or hub:NAME[:COLUMN]"
RECORD = "trained_on.json"
"""What a tokenizer was trained on, in its folder."""
_WIDTH, _LONGEST_NAME = 80, 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="pretrain_command", metavar="COMMAND", required=True)
    _add_tokenizer(commands.add_parser("tokenizer", help="train a tokenizer on a corpus"))
    _add_comparison(commands.add_parser("compare-tokenizers", help="how tokenizers cut the same text"))
    asking = commands.add_parser("ask", help="what a pre-trained model makes of a text")
    pretrain_ask.add_arguments(asking)
    asking.set_defaults(action=pretrain_ask.run)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    return args.action(args)


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
    from qa_arch.pretraining.tokenizer_training import train_tokenizer

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
        "corpus": corpus.name,
        "fingerprint": corpus.fingerprint,
        **counts,
        "kind": args.kind,
        "vocabulary": args.vocabulary,
        "lowercase": args.lowercase,
        "characters": None if args.kind == "bpe" else args.characters,
        "tokenizers": tokenizers.__version__,
    }


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "tokenizers",
        nargs="+",
        metavar="TOKENIZER",
        help="a folder, a hub id, or minilm, whose tokenizer is that of BERT (uncased)",
    )
    add(
        "--text",
        nargs="+",
        default=["squad:synthetic:dev"],
        metavar="CORPUS",
        help=f"what to count on: {CORPUS} (default: the generated passages of squad:synthetic:dev)",
    )
    add(
        "--sentence",
        action="append",
        metavar="S",
        help="a sentence to show cut into pieces, in place of the built-in ones; may be repeated",
    )
    add("--json", action="store_true", help="print JSON")
    add("--html", metavar="FILE", help="write the comparison as a page, too")
    parser.set_defaults(action=_compare)


def _compare(args: argparse.Namespace) -> int:
    """Print the comparison as tables and examples, or as JSON."""
    corpus = open_corpus(args.text)
    from qa_arch.models.encoders import load_tokenizer
    from qa_arch.pretraining.tokenizer_comparison import SENTENCES, compare

    names = _short_names(args.tokenizers)
    tokenizers = {
        name: load_tokenizer(place, setting="TOKENIZER")
        for name, place in zip(names, args.tokenizers, strict=True)
    }
    comparison = compare(tokenizers, corpus, args.sentence or SENTENCES)
    if args.html:
        from qa_arch.pretraining.comparison_page import page

        write_atomic(args.html, page(comparison))
    if args.json:
        print(json.dumps(comparison.as_dict(), indent=2, ensure_ascii=False))
    else:
        _print_comparison(comparison)
    if args.html and not args.json:
        print(f"\n{args.html}: open it in a browser")
    return 0


def _short_names(places: list[str]) -> list[str]:
    """Last parts of the places, or the places where these are not distinct."""
    names = [Path(place).name or place for place in places]
    names = names if len(set(names)) == len(names) else places
    if len(set(names)) < len(names):
        raise ConfigError("a tokenizer is named twice; name different ones")
    return names


def _print_comparison(comparison: Comparison) -> None:
    from qa_arch.results.columns import Table, number, text
    from qa_arch.results.render import print_table

    rows = [
        {
            "tokenizer": name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
            "vocabulary": figures.vocabulary,
            "per_word": figures.pieces_per_word,
            "whole": 100 * figures.whole,
            "unknown": 100 * figures.unknown,
            "p50": figures.positions.p50,
            "p95": figures.positions.p95,
            "max": figures.positions.max,
            **{str(nth): 100 * share for nth, share in enumerate(shared)},
        }
        for name, figures, shared in zip(comparison.names, comparison.figures, comparison.shared, strict=True)
    ]
    name = text("tokenizer", "tokenizer")
    columns = [
        name,
        number("vocabulary", "pieces"),
        number("per_word", "per word", "{:.2f}".format),
        number("whole", "whole %"),
        number("unknown", "unknown %", "{:.2f}".format),
        number("p50", "p50"),
        number("p95", "p95"),
        number("max", "max"),
    ]
    first = comparison.figures[0]
    notes = [
        f"{comparison.text}: {first.documents:,} documents, {first.words:,} words",
        "whole: words that are not divided; p50, p95, max: positions of a document",
    ]
    print_table(Table("", columns, rows, notes))
    if len(rows) > 1:
        shared = [number(str(nth), str(nth + 1)) for nth in range(len(rows))]
        print()
        print_table(Table("Pieces that others have, %", [name, *shared], rows))
    for sentence, cuts in comparison.examples:
        print(f"\n{textwrap.fill(sentence, _WIDTH)}")
        for label, pieces in zip(comparison.names, cuts, strict=True):
            head = f"  {label} ({len(pieces)}): "
            print(textwrap.fill(head + _shown(pieces), _WIDTH, subsequent_indent="    "))
    print("\n· divides pieces of a word, ·· bytes of a character; ⟨ ⟩ is unknown, ␣ a blank")


def _shown(pieces: tuple[Piece, ...]) -> str:
    """The pieces in a line: a space between words, a dot between pieces of a word."""
    shown = ""
    for piece in pieces:
        between = "" if not shown else " " if piece.begins_word else "·"
        shown += between + (f"⟨{piece.text}⟩" if piece.unknown else piece.text)
    return shown

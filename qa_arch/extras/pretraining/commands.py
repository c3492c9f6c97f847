"""``qa-arch pretrain tokenizer``: a tokenizer trained on a corpus."""

from __future__ import annotations

import argparse
from pathlib import Path

from qa_arch.config.files import replacing_folder, write_json
from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining.corpus import open_corpus

CORPUS = "text files or folders (a blank line ends a document), squad:FILE or hub:NAME[:COLUMN]"
KINDS = {"wordpiece": "wordpiece", "bpe": "byte_bpe", "unigram": "unigram"}
"""As the command names them -> ``features.tokenizers`` does."""
RECORD = "trained_on.json"
"""What a tokenizer was trained on, in its folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="pretrain_command", metavar="COMMAND", required=True)
    add = commands.add_parser("tokenizer", help="train a tokenizer on a corpus").add_argument
    add("corpus", nargs="+", metavar="CORPUS", help=CORPUS)
    add(
        "--kind",
        choices=KINDS,
        default="wordpiece",
        help="as BERT's, RoBERTa's (bytes) or ALBERT's (default: wordpiece)",
    )
    add("--vocabulary", type=int, required=True, metavar="N", help="pieces, special tokens included")
    add("--out", required=True, metavar="DIR", help="the folder to write; it must be new")


def run(args: argparse.Namespace) -> int:
    """Train a tokenizer, write its folder and print what it read."""
    out = Path(args.out)
    if out.exists():
        raise ConfigError(f"--out {out}: exists and was not changed; name a new folder")
    corpus = open_corpus(args.corpus)
    documents = list(corpus.documents())
    from qa_arch.features.tokenizers import build

    tokenizer = build(KINDS[args.kind], documents, args.vocabulary)  # type: ignore[arg-type]
    with replacing_folder(out) as folder:
        tokenizer.save_pretrained(folder)
        record = {"corpus": corpus.source, "fingerprint": corpus.fingerprint, "documents": len(documents)}
        write_json(folder / RECORD, {**record, "kind": args.kind, "vocabulary": len(tokenizer)})
    print(f"{out}: {args.kind}, {len(tokenizer):,} pieces, from {len(documents):,} documents")
    return 0

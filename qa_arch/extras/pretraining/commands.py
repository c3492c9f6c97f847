"""``qa-arch pretrain``: train and compare tokenizers, query and score a pre-trained run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qa_arch import hub
from qa_arch.cli.evaluate import add_evaluate
from qa_arch.cli.runs import DEVICE, add_options, open_predictor
from qa_arch.errors import ConfigError, RunError, UnavailableError
from qa_arch.extras.pretraining.corpus import open_corpus
from qa_arch.extras.pretraining.manifest import EXTRA
from qa_arch.features.words import CHUNK, backend_of, fit, split, tokenize_fn, unlimited, word_of
from qa_arch.files import replacing_folder, write_json
from qa_arch.nn.encoder_configs import resolve
from qa_arch.records import read_record
from qa_arch.results.tables import Column, Table, number, print_table, text, two_decimals

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CORPUS = "text files or folders (a blank line ends a document), squad:FILE or hub:NAME[:COLUMN]"
KINDS = {"wordpiece": "wordpiece", "bpe": "byte_bpe", "unigram": "unigram"}
"""``--kind`` -> name in ``features.tokenizers``."""
RECORD = "trained_on.json"
"""File in a tokenizer's folder that records its training corpus."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="pretrain_command", metavar="COMMAND", required=True)
    tokenizer = commands.add_parser("tokenizer", help="train a tokenizer on a corpus")
    tokenizer.set_defaults(action=_train)
    add = tokenizer.add_argument
    add("corpus", nargs="+", metavar="CORPUS", help=CORPUS)
    add(
        "--kind",
        choices=KINDS,
        default="wordpiece",
        help="the kind BERT, RoBERTa (byte-level) or ALBERT uses (default: wordpiece)",
    )
    add("--vocabulary", type=int, required=True, metavar="N", help="vocabulary size, special tokens included")
    add("--out", required=True, metavar="DIR", help="folder to write; must not exist yet")

    compare = commands.add_parser("compare-tokenizers", help="compare how tokenizers split a corpus")
    compare.set_defaults(action=_compare)
    add = compare.add_argument
    add("tokenizers", nargs="+", metavar="TOKENIZER", help="a folder, a pre-training run or a hub id")
    default = "squad:synthetic:dev"
    add("--text", nargs="+", default=[default], metavar="CORPUS", help=f"{CORPUS} (default: {default})")
    add_options(compare, "--format", "--json")

    ask = commands.add_parser("ask", help="fill in [MASK], or predict what follows a text, or restore it")
    ask.set_defaults(action=_ask)
    ask.epilog = 'example: qa-arch pretrain ask RUN "My [MASK] is so cute."'
    add = ask.add_argument
    add("run_folder", metavar="RUN", help="a run of model=pretrain/...")
    add(
        "text",
        metavar="TEXT",
        help="text with [MASK] for each token to predict, or with pretrain/denoising each span; for"
        " pretrain/causal, text to continue",
    )
    add("--top-k", type=int, default=5, metavar="K", help="tokens to show, or beams (default: 5)")
    add_options(ask, *DEVICE, "--format", "--json")
    add_evaluate(commands, "a run of model=pretrain/...", CORPUS)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    return args.action(args)


def _train(args: argparse.Namespace) -> int:
    """Train a tokenizer, write its folder and print its size."""
    out = Path(args.out)
    if out.exists():
        raise ConfigError(f"--out {out}: exists and was not changed; name a new folder")
    if args.vocabulary < 1:
        raise ConfigError(f"--vocabulary {args.vocabulary}: must be at least 1")
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


def _compare(args: argparse.Namespace) -> int:
    """Print a table with one row per tokenizer."""
    corpus = open_corpus(args.text)
    for place in args.tokenizers:
        source = resolve(place)
        if not hub.on_this_machine(source) and (problem := hub.state()):
            raise UnavailableError(
                f"TOKENIZER {place}: no such folder, not downloaded before, and {problem}; name a folder"
                " with a tokenizer.json, or download it once while online"
            )
    from qa_arch.models.store import open_tokenizer

    tokenizers = {place: open_tokenizer(place, setting="TOKENIZER") for place in args.tokenizers}
    rows = [
        {"tokenizer": place, **figures(tokenizer, corpus.documents())}
        for place, tokenizer in tokenizers.items()
    ]
    columns = [
        text("tokenizer", "tokenizer"),
        number("vocabulary", "vocabulary"),
        number("tokens_per_word", "tokens/word", two_decimals),
        number("unsplit", "unsplit %"),
        number("unknown", "unknown %", two_decimals),
        number("p50", "p50"),
        number("p95", "p95"),
        number("longest", "longest"),
    ]
    notes = [
        f"{corpus.source}: {rows[0]['documents']:,} documents, {rows[0]['words']:,} words",
        "unsplit: words that are a single token; unknown: words with an unknown token",
        "p50, p95, longest: tokens per document, special tokens included (compare features.max_length)",
    ]
    print_table(Table("Tokenizers", columns, rows, notes), form=args.format)
    return 0


def figures(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> dict[str, float]:
    """Statistics over one or more non-blank documents; words are those of ``features.words``.

    ``vocabulary`` includes special tokens, ``tokens`` and ``tokens_per_word`` do not. ``unsplit`` is the
    percentage of words that are a single token or share one with others; ``unknown``, of words with an
    unknown token. ``p50``, ``p95`` and ``longest`` are tokens per document, special tokens included. Raises
    DataError for invalid Unicode, ConfigError for a slow tokenizer.
    """
    lengths = []
    n_words = unsplit = unknown = 0
    stream = iter(documents)
    with unlimited(backend_of(tokenizer)) as backend:
        to_pieces = tokenize_fn(backend)
        while texts := list(islice(stream, CHUNK)):
            words, pieces = split(texts), to_pieces(texts)
            text = np.repeat(np.arange(len(texts)), pieces.count)
            start, end = fit(words.base[text] + pieces.start, words.base[text] + pieces.end, words)
            tokens_of = np.bincount(word_of(start, end, text, words), minlength=len(words.start))
            is_unknown, has_unknown = pieces.ids == tokenizer.unk_token_id, np.zeros(len(words.start), bool)
            first = np.searchsorted(words.end, start[is_unknown], "right")
            stop = np.searchsorted(words.start, end[is_unknown])
            for span in map(slice, first, stop):  # an unknown token may cover several words
                has_unknown[span] = True
            lengths.append(pieces.count)
            n_words += len(words.start)
            unsplit += int((tokens_of <= 1).sum())
            unknown += int(has_unknown.sum())
        length = np.concatenate(lengths)
        tokens, n_special = int(length.sum()), backend.num_special_tokens_to_add(False)
    # Lengths that occur: none is interpolated.
    p50, p95, longest = np.percentile(length + n_special, (50, 95, 100), method="inverted_cdf").tolist()
    return {
        "vocabulary": len(tokenizer),
        "documents": len(length),
        "words": n_words,
        "tokens": tokens,
        "tokens_per_word": tokens / n_words,
        "unsplit": 100 * unsplit / n_words,
        "unknown": 100 * unknown / n_words,
        "p50": p50,
        "p95": p95,
        "longest": longest,
    }


def _ask(args: argparse.Namespace) -> int:
    """Print the most probable tokens at each [MASK], or after the text, or texts without its noise."""
    if args.top_k < 1:
        raise ConfigError(f"--top-k {args.top_k}: must be at least 1")
    if read_record(args.run_folder).setting("model", "task") not in EXTRA.recipes:
        raise RunError(
            f"{args.run_folder}: was not pre-trained on a corpus; name a run of model=pretrain/mlm,"
            " pretrain/causal or pretrain/denoising (qa-arch ask answers questions)"
        )
    predictor = open_predictor([args.run_folder], args)
    if predictor.config.model["task"] == "denoising":
        from qa_arch.extras.pretraining.recipe import perplexity

        (texts,) = predictor.write(predictor.batch(args.text), args.top_k)
        rows = [{"text": predictor.decode(text.ids), "perplexity": perplexity(-text.score)} for text in texts]
        columns = [text("text", "text"), number("perplexity", "perplexity by token", two_decimals)]
        print_table(Table(args.text, columns, rows), form=args.format)
        return 0
    places = predictor.fill(args.text, args.top_k)
    rows = [
        {"place": place, "token": token, "probability": probability}
        for place, guesses in enumerate(places, start=1)
        for token, probability in guesses
    ]
    columns = [
        Column("place", "place"),
        text("token", "token"),
        number("probability", "probability", "{:.3f}".format),
    ]
    print_table(Table(args.text, columns, rows), form=args.format)
    return 0

"""``qa-arch pretrain``: tokenizers trained on a corpus and compared, and what pre-trained models say."""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.cli.runs import add_device_options, open_predictor
from qa_arch.cli.watch import watching_file
from qa_arch.config.files import replacing_folder, write_json
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.pretraining.corpus import Corpus, open_corpus
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint
from qa_arch.nn.encoder_configs import HUB_IDS, resolve
from qa_arch.records import RECORD as RUN_RECORD
from qa_arch.system.garbage import gc_disabled

if TYPE_CHECKING:
    from qa_arch.extras.pretraining.task import LanguagePredictor
    from qa_arch.extras.pretraining.texts import MaskedCheckpoint
    from qa_arch.extras.pretraining.vocabularies import Compared

CORPUS = "text files or folders (a blank line ends a document), squad:FILE or hub:NAME[:COLUMN]"
RECORD = "trained_on.json"
"""What a tokenizer was trained on, in its folder."""
TOP_K, MAX_TOKENS = 5, 30
_WIDTH, _LONGEST_NAME = 80, 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="pretrain_command", metavar="COMMAND", required=True)
    _add_tokenizer(commands.add_parser("tokenizer", help="train a tokenizer on a corpus"))
    _add_comparison(commands.add_parser("compare-tokenizers", help="how tokenizers cut the same text"))
    _add_asking(commands.add_parser("ask", help="what a pre-trained model makes of a text"))


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
    parser.set_defaults(action=_compare)


def _compare(args: argparse.Namespace) -> int:
    """Print the comparison as tables and examples, or as JSON."""
    corpus = open_corpus(args.text)
    from qa_arch.extras.pretraining.vocabularies import SENTENCES, compare
    from qa_arch.models.build import load_tokenizer

    names = _short_names(args.tokenizers)
    tokenizers = {
        name: load_tokenizer(place, setting="TOKENIZER")
        for name, place in zip(names, args.tokenizers, strict=True)
    }
    compared = compare(tokenizers, corpus, args.sentence or SENTENCES)
    if args.json:
        print(json.dumps(_as_json(corpus.source, compared), indent=2, ensure_ascii=False))
    else:
        _print_comparison(corpus.source, compared)
    return 0


def _as_json(text: str, compared: Mapping[str, Compared]) -> dict[str, Any]:
    sentences = next(iter(compared.values())).examples
    return {
        "text": text,
        "tokenizers": {
            name: {**asdict(item.figures), "shared_with": item.shared_with} for name, item in compared.items()
        },
        "examples": [
            {
                "sentence": sentence,
                "pieces": {name: item.examples[sentence].pieces for name, item in compared.items()},
            }
            for sentence in sentences
        ],
    }


def _short_names(places: list[str]) -> list[str]:
    """Last parts of the places, or the places where these are not distinct."""
    names = [Path(place).name or place for place in places]
    names = names if len(set(names)) == len(names) else places
    if len(set(names)) < len(names):
        raise ConfigError("a tokenizer is named twice; name different ones")
    return names


def _print_comparison(source: str, compared: Mapping[str, Compared]) -> None:
    from qa_arch.results.tables import Table, number, print_table, text

    rows = [
        {
            **asdict(item.figures),
            **asdict(item.figures.positions),
            "tokenizer": name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
            "whole": 100 * item.figures.whole,
            "unknown": 100 * item.figures.unknown,
            **{str(nth): 100 * share for nth, share in enumerate(item.shared_with.values(), 1)},
        }
        for name, item in compared.items()
    ]
    name = text("tokenizer", "tokenizer")
    columns = [
        name,
        number("vocabulary", "pieces"),
        number("pieces_per_word", "per word", "{:.2f}".format),
        number("whole", "whole %"),
        number("unknown", "unknown %", "{:.2f}".format),
        number("p50", "p50"),
        number("p95", "p95"),
        number("max", "max"),
    ]
    first = next(iter(compared.values()))
    notes = [
        f"{source}: {first.figures.documents:,} documents, {first.figures.words:,} words",
        "whole: words that are not divided; p50, p95, max: positions of a document",
    ]
    print_table(Table("", columns, rows, notes))
    if len(rows) > 1:
        print()
        shared = [number(str(nth), str(nth)) for nth in range(1, len(rows) + 1)]
        print_table(Table("Pieces that others have, %", [name, *shared], rows))
    for sentence in first.examples:
        print(f"\n{textwrap.fill(sentence, _WIDTH)}")
        for label, item in compared.items():
            divided, pieces = item.examples[sentence]
            line = f"  {label} ({len(pieces)}): {divided}"
            print(textwrap.fill(line, _WIDTH, subsequent_indent="    "))
    print("\n· divides the pieces of a word")


# Asking ---------------------------------------------------------------------------------------------


def _add_asking(parser: argparse.ArgumentParser) -> None:
    parser.epilog = 'example: qa-arch pretrain ask RUN "My [MASK] is so cute."'
    add = parser.add_argument
    add(
        "source",
        metavar="RUN",
        help="a pre-training run; for masked tokens also a masked language model as transformers saves it: a"
        " folder, a hub id",
    )
    add(
        "text",
        metavar="TEXT",
        help="with [MASK] where a token is to be predicted; a causal model goes on with it, a denoising model"
        " repairs it",
    )
    add("--next", metavar="TEXT", help="does this follow TEXT (runs with NSP or SOP)")
    add("--top-k", type=int, default=TOP_K, metavar="K", help=f"tokens to show (default: {TOP_K})")
    add("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"to write (default: {MAX_TOKENS})")
    add("--beams", type=int, default=1, metavar="N", help="of the search for what is written (default: 1)")
    add("--json", action="store_true", help="print one JSON object")
    add_device_options(parser)
    parser.set_defaults(action=_ask)


def _ask(args: argparse.Namespace) -> int:
    """Print the most probable tokens, whether a text follows, or the text that the model writes."""
    for option in ("top_k", "max_tokens", "beams"):
        if getattr(args, option) < 1:
            raise ConfigError(f"--{option.replace('_', '-')}: must be at least 1")
    answer = _answer(_open(args), args)
    if args.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        _print(answer)
    return 0


def _open(args: argparse.Namespace) -> LanguagePredictor | MaskedCheckpoint:
    source = resolve(args.source) if args.source in HUB_IDS else args.source
    if names_checkpoint(source) and not (Path(source) / RUN_RECORD).is_file():
        with gc_disabled():
            from qa_arch.extras.pretraining.texts import load_masked_checkpoint

        return load_masked_checkpoint(open_checkpoint(source))
    with gc_disabled():
        from qa_arch.extras.pretraining.task import LanguagePredictor

    predictor = open_predictor([source], args)
    if not isinstance(predictor, LanguagePredictor):
        raise RunError(
            f"{source}: this run was not pre-trained, it answers questions (qa-arch ask); name a run of"
            " model=pretrain/mlm or another of these"
        )
    return predictor


def _answer(model: LanguagePredictor | MaskedCheckpoint, args: argparse.Namespace) -> dict[str, Any]:
    from qa_arch.extras.pretraining import texts
    from qa_arch.extras.pretraining.models import CausalLM, MaskedLM
    from qa_arch.extras.pretraining.task import LanguagePredictor

    if args.next is not None:
        if not isinstance(model, LanguagePredictor):
            raise ConfigError(f"--next: {args.source} is a checkpoint; only runs with NSP or SOP say that")
        probability = texts.follows(model, args.text, args.next)
        return {"text": args.text, "next": args.next, "follows": probability}
    if not isinstance(model, LanguagePredictor) or isinstance(model.model, MaskedLM):
        masks = texts.fill(model, args.text, args.top_k)
        return {"text": args.text, "masks": [list(map(asdict, guesses)) for guesses in masks]}
    if isinstance(model.model, CausalLM):
        written = texts.continuation(model, args.text, max_tokens=args.max_tokens, beams=args.beams)
        return {"text": args.text, "continuation": asdict(written)}
    return {"text": args.text, "repaired": asdict(texts.repair(model, args.text, beams=args.beams))}


def _print(answer: dict[str, Any]) -> None:
    if "follows" in answer:
        print(f"follows with probability {answer['follows']:.3f}")
    for number, guesses in enumerate(answer.get("masks", ()), 1):
        print(f"[MASK] {number}")
        for guess in guesses:
            print(f"  {guess['probability']:.3f}  {guess['token']}")
    for name in ("continuation", "repaired"):
        if written := answer.get(name):
            print(f"{name}: {written['text']}{'' if written['finished'] else ' ...'}")

"""``qa-arch pretrain ask``: what a pre-trained model makes of a text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.cli.runs import add_device_options, open_predictor
from qa_arch.errors import ConfigError, RunError
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint
from qa_arch.nn.encoder_configs import HUB_IDS, resolve
from qa_arch.results.record import RECORD
from qa_arch.system.garbage import gc_disabled

if TYPE_CHECKING:
    from qa_arch.models.masked_checkpoint import MaskedCheckpoint
    from qa_arch.tasks.language_predictor import LanguagePredictor
    from qa_arch.tasks.language_texts import Guess, Written

TOP_K, MAX_TOKENS = 5, 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> int:
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
    if names_checkpoint(source) and not (Path(source) / RECORD).is_file():
        with gc_disabled():
            from qa_arch.models.masked_checkpoint import load_masked_checkpoint

        return load_masked_checkpoint(open_checkpoint(source))
    with gc_disabled():
        from qa_arch.tasks.language_predictor import LanguagePredictor

    predictor = open_predictor([source], args)
    if not isinstance(predictor, LanguagePredictor):
        raise RunError(
            f"{source}: this run was not pre-trained, it answers questions (qa-arch ask); name a run of"
            " model=pretrain/mlm or another of these"
        )
    return predictor


def _answer(model: LanguagePredictor | MaskedCheckpoint, args: argparse.Namespace) -> dict[str, Any]:
    from qa_arch.models.language_models import CausalLM, MaskedLM
    from qa_arch.tasks import language_texts
    from qa_arch.tasks.language_predictor import LanguagePredictor

    if args.next is not None:
        if not isinstance(model, LanguagePredictor):
            raise ConfigError(f"--next: {args.source} is a checkpoint; only runs with NSP or SOP say that")
        probability = language_texts.follows(model, args.text, args.next)
        return {"text": args.text, "next": args.next, "follows": probability}
    if not isinstance(model, LanguagePredictor) or isinstance(model.model, MaskedLM):
        masks = language_texts.fill(model, args.text, args.top_k)
        return {"text": args.text, "masks": [[_guess(guess) for guess in guesses] for guesses in masks]}
    if isinstance(model.model, CausalLM):
        written = language_texts.continuation(model, args.text, max_tokens=args.max_tokens, beams=args.beams)
        return {"text": args.text, "continuation": _written(written)}
    return {
        "text": args.text,
        "repaired": _written(language_texts.repair(model, args.text, beams=args.beams)),
    }


def _guess(guess: Guess) -> dict[str, Any]:
    return {"token": guess.token, "probability": guess.probability}


def _written(written: Written) -> dict[str, Any]:
    return {"text": written.text, "log_prob": written.log_prob, "finished": written.finished}


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

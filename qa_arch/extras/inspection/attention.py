"""Attention where the core asks for it: kept by ``qa-arch predict``, shown by the service."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from qa_arch.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from qa_arch.results.attention import AttentionMap
    from qa_arch.spans.predictor import SpanPredictor
    from qa_arch.types.text import QuestionSet


def add_options(parser: argparse._ActionsContainer) -> None:
    """``--keep-attention --layer --head`` of ``qa-arch predict``."""
    parser.add_argument(
        "--keep-attention",
        nargs="+",
        metavar="ID",
        help="save the attention over these questions in the run folder (attention.npz): that of the"
        " match-LSTM, or with --layer of the encoder",
    )
    add_head_options(parser)


def add_head_options(parser: argparse._ActionsContainer) -> None:
    """``--layer --head`` of ``layers.select_heads``."""
    parser.add_argument(
        "--layer", metavar="L", help="1 is above the embeddings; all; match is the match-LSTM"
    )
    parser.add_argument(
        "--head",
        metavar="H",
        help="from 1, of the match-LSTM forward or backward; mean (the default), all",
    )


def keeper(
    args: argparse.Namespace, predictor: SpanPredictor, questions: QuestionSet
) -> Callable[..., list[AttentionMap]]:
    """What makes the maps of ``--keep-attention``; fails before a long prediction where it could not."""
    from qa_arch.extras.inspection.layers import MATCH
    from qa_arch.extras.inspection.reading import attention_maps, check_heads, match_lstm

    if args.layer in (None, MATCH):
        if args.head:
            raise ConfigError("--head is for --layer L: the match-LSTM's directions are both saved")
        match_lstm(predictor.model)
        return partial(attention_maps, predictor)
    check_heads(predictor, questions, layer=args.layer, head=args.head)
    return partial(attention_maps, predictor, layer=args.layer, head=args.head)


def shows(model: nn.Module) -> bool:
    """Whether the model has a match-LSTM, whose attention can be shown."""
    from qa_arch.extras.inspection.reading import find_match_lstm

    return find_match_lstm(model) is not None


def attention_of(predictor: SpanPredictor, question: str, context: str) -> AttentionMap:
    """What the match-LSTM looks at, in the window that holds the best span."""
    from qa_arch.extras.inspection.reading import attention_of

    return attention_of(predictor, question, context)

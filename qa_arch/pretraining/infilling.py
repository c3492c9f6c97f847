"""The noise of denoising (Lewis et al. 2020, section 2.2): text infilling and sentence permutation."""

from __future__ import annotations

import numpy as np

from qa_arch.features.table import Longs


def permuted(sentences: list[Longs], draw: np.random.Generator) -> list[Longs]:
    """The sentences of a block in random order."""
    return [sentences[place] for place in draw.permutation(len(sentences))]


def infilled(ids: Longs, mask: int, share: float, mean: float, draw: np.random.Generator) -> Longs:
    """``ids`` with spans of tokens replaced by one ``mask`` each.

    Lengths are drawn from a Poisson distribution of ``mean`` until the spans cover ``share`` of the tokens;
    the last is cut at that. A span of length 0 inserts a mask. There are at most as many spans as tokens they
    cover, the last covering what is left: the result is never longer than ``ids``, which may already fill a
    block. Where the spans lie is uniform over all arrangements in which none overlap.
    """
    budget = round(share * len(ids))
    lengths: list[int] = []
    while (rest := budget - sum(lengths)) > 0:
        length = min(int(draw.poisson(mean)), rest)
        lengths.append(rest if len(lengths) + 1 == budget else length)
    slots = len(ids) - budget + len(lengths)  # tokens that stay, and spans
    is_span = np.zeros(slots, bool)
    is_span[draw.choice(slots, len(lengths), replace=False)] = True
    widths = np.ones(slots, np.int64)
    widths[is_span] = lengths
    first = np.cumsum(widths) - widths
    # A span may begin behind the last token, where there is nothing to read.
    return np.where(is_span, mask, ids[np.minimum(first, len(ids) - 1)]) if slots else ids.copy()

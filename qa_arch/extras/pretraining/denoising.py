"""Denoising (BART, Lewis et al. 2020): noise on a text, the model that restores the text, and how it writes.

Axes: ``B`` texts, ``K`` beams, ``T`` tokens that the encoder reads, ``P`` tokens that the decoder reads.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qa_arch.config.check import Range
from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining.manifest import Denoising
from qa_arch.extras.pretraining.models import LanguageBatch, LanguageLogits, LanguageModel, TiedHead
from qa_arch.extras.pretraining.transformer import Past, TransformerDecoder
from qa_arch.extras.pretraining.transformer_config import QaTransformerConfig
from qa_arch.features.words import Bools, Longs
from qa_arch.nn.encoder import Encoder


def noised(ids: Longs, draw: np.random.Generator, mask: int, settings: Denoising) -> tuple[Longs, Bools]:
    """(noisy ids, which of ``ids`` (n,) are not in them): ``share`` of the tokens, by one of the noises of
    Lewis et al. 2020, section 2.2.

    - ``masking``: "random tokens are sampled and replaced with [MASK]";
    - ``deletion``: "random tokens are deleted from the input";
    - ``infilling``: "text spans are sampled, with span lengths drawn from a Poisson distribution"; each "is
      replaced with a single [MASK] token"; "0-length spans correspond to the insertion of [MASK] tokens".

    Lengths are drawn until the spans cover the share; the last is cut at that. There are at most as many
    spans as tokens they cover, the last covering what is left, so the text never gets longer. Arrangements in
    which no two spans overlap are equally likely.
    """
    if not (count := round(settings.share * len(ids))):
        return ids, np.zeros(len(ids), bool)
    lengths = np.ones(count, np.int64)
    if settings.noise == "infilling":
        # Ends of the spans if they lay side by side; the first to reach ``count`` is the last.
        ends = np.minimum(np.cumsum(draw.poisson(settings.span_length, count)), count)
        ends[-1] = count
        lengths = np.diff(ends[: np.searchsorted(ends, count) + 1], prepend=0)
    slots = len(ids) - count + len(lengths)  # tokens that stay, and spans
    widths, is_span = np.ones(slots, np.int64), np.zeros(slots, bool)
    places = draw.choice(slots, len(lengths), replace=False)
    widths[places], is_span[places] = lengths, True
    first = np.cumsum(widths) - widths  # place in ids of each slot
    plain = first[~is_span]
    if settings.noise == "deletion":
        noisy = ids[plain]
    else:
        noisy = np.full(slots, mask)
        noisy[~is_span] = ids[plain]
    hidden = np.ones(len(ids), bool)
    hidden[plain] = False
    return noisy, hidden


class Denoiser(LanguageModel):
    """Writes the text from one with noise, token by token: an encoder, and a decoder that attends to it.

    Every token is predicted from the noisy text and the tokens before it (Lewis et al. 2020, section 2)::

        loss = -log p(y | noisy) = Σ_p -log p(y_p | y_<p, noisy)

    The decoder has ``layers`` blocks, by default as many as the encoder, of its width, heads and kind.
    """

    head: ClassVar[type[TiedHead]] = TiedHead

    def __init__(
        self,
        encoder: Encoder,
        *,
        layers: Annotated[int | None, Range(1)] = None,
        dropout: Annotated[float, Range(0, 1)] = 0.1,
    ) -> None:
        super().__init__(encoder)
        config, H = encoder.config, encoder.out_dim
        if self.embedding.embedding_dim != H:
            raise ConfigError(
                f"encoder: embeddings of {config.model_type} are narrower than its states, and the decoder"
                " shares them; choose bert, roberta, distilbert or qa_transformer"
            )
        shared = ("positions", "pre_norm", "layer_norm_eps", "initializer_range")
        own = {name: value for name in shared if (value := getattr(config, name, None))}
        settings = QaTransformerConfig(
            hidden_size=H,
            num_hidden_layers=layers or config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=4 * H,
            max_position_embeddings=encoder.max_tokens or QaTransformerConfig.max_position_embeddings,
            type_vocab_size=0,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            **own,
        )
        self.decoder = TransformerDecoder(settings)

    def forward(self, batch: LanguageBatch) -> LanguageLogits:
        assert batch.prefix is not None
        memory = self.encoder(batch.ids, batch.mask, batch.segments)
        return LanguageLogits(self.decode(batch.prefix, memory, batch.mask))

    def decode(
        self,
        prefix: Int[Tensor, "B P"],
        memory: Float[Tensor, "B T H"],
        mask: Bool[Tensor, "B T"],
        past: Past | None = None,
    ) -> Float[Tensor, "B P V"]:
        """Scores of the token after each of ``prefix``, which continues ``past``."""
        return self.scores(self.decoder(prefix, memory, mask, self.embedding.weight, past=past))


class Written(NamedTuple):
    """A text that the decoder wrote."""

    score: float
    """log p / length: the mean of log p by token."""
    ids: list[int]
    """Tokens after the start, with the end, if it was written before the limit."""


@torch.inference_mode()
def write(
    model: Denoiser,
    batch: LanguageBatch,
    *,
    start: int,
    end: int,
    limit: int,
    beams: int = 1,
) -> list[list[Written]]:
    """Up to ``beams`` texts for each of ``batch``, best first, by beam search; one beam is greedy search.

    A step extends each of the K best unfinished texts by each token. Those of the K best extensions that end
    are finished, with score log p / length; the K best that do not end go on. The search stops with K
    finished texts, or at ``limit`` tokens. A step reads only the last token of each text: keys and values of
    those before are kept.
    """
    B, K, V = len(batch), beams, model.encoder.vocab_size
    memory = model.encoder(batch.ids, batch.mask, batch.segments).repeat_interleave(K, 0)
    mask, rows = batch.mask.repeat_interleave(K, 0), torch.arange(B, device=memory.device)[:, None]
    texts, past = rows.new_full((B, K, 1), start), Past()
    total = torch.full((B, K), -torch.inf, device=memory.device)
    total[:, 0] = 0.0  # all beams are still the same
    finished: list[list[Written]] = [[] for _ in range(B)]
    for length in range(1, limit + 1):
        scores = model.decode(texts[..., -1:].flatten(0, 1), memory, mask, past).float()
        extended = total[..., None] + scores.log_softmax(-1).view(B, K, V)
        best, at = extended.flatten(1).topk(2 * K)  # at most K of which end
        token, ends = at % V, at % V == end
        longer = torch.cat([texts[rows, at // V], token[..., None]], -1)
        # As of the step before: all that end in this step compete, and the best K remain.
        open_rows = {row for row in range(B) if len(finished[row]) < K}
        for row, place in (ends[:, :K] | (length == limit)).nonzero().tolist():
            if row in open_rows:
                score = best[row, place].item() / length
                finished[row].append(Written(score, longer[row, place, 1:].tolist()))
        if all(len(texts_of_row) >= K for texts_of_row in finished):
            break
        total, chosen = best.masked_fill(ends, -torch.inf).topk(K)
        texts = longer[rows, chosen]
        origin = (rows * K + (at // V).gather(1, chosen)).flatten()
        past = {attention: (k[origin], v[origin]) for attention, (k, v) in past.items()}
    return [sorted(texts_of_row, reverse=True)[:K] for texts_of_row in finished]

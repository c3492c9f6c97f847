"""Columns of predicted tokens in the tables of runs."""

from __future__ import annotations

from qa_arch.records import SplitFacts
from qa_arch.results.columns import score
from qa_arch.results.tables import two_decimals
from qa_arch.terminal import counted

COLUMNS = (
    score("token_accuracy", "token accuracy", says_status=True),
    score("perplexity", "perplexity", format=two_decimals),
    score("bits_per_byte", "bits/byte", format="{:.3f}".format),
    score("sentence_accuracy", "NSP/SOP accuracy"),
    score("sentence_f1", "NSP/SOP F1"),
    score("restored_tokens", "restored tokens"),
    score("exact_copies", "exact copies"),
    score("bleu_noisy", "BLEU of the noise"),
    score("bleu", "BLEU"),
    score("rouge_l", "ROUGE-L"),
    score("written_perplexity", "perplexity as written", format=two_decimals),
)
EPOCH = {
    "calibration_perplexity": "calibration perplexity",
    "calibration_token_accuracy": "calibration token accuracy",
    "calibration_bits_per_byte": "calibration bits per byte",
}


def described(facts: SplitFacts) -> tuple[str, str]:
    sizes = [f"{facts.details.get(name) or 0:,} {name}" for name in ("documents", "tokens", "bytes")]
    blocks = counted(facts.windows or 0, "block")
    note = (
        f"{sizes[1]} in {blocks}; perplexity by predicted token, bits per byte of the text in UTF-8"
        " (docs/extras/pretraining.md)"
    )
    return ", ".join([*sizes, blocks]), note


PROTOCOLS = dict.fromkeys(("masked_lm", "causal_lm", "denoising"), described)

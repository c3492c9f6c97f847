"""Train the common question-answering script's model and answer each set with it.

    python experiments/systems/common_script.py ENCODER TRAIN.json OUT SET.json...

Writes ``OUT/model`` (once) and, for each set, ``OUT/SET/predictions.json`` with the best spans and
``OUT/SET/null_odds.json``, which ``qa-arch adopt`` reads.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoTokenizer, BertForQuestionAnswering, set_seed

from benchmarks import peers
from benchmarks.common_script import ATTENTION_DROPOUT, SEED, fine_tune, predict
from qa_arch.data.sources import open_passages
from qa_arch.files import write_json


class ShortBatches(BertForQuestionAnswering):
    """Skips columns that are padding in the whole batch, which do not affect the script's results."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, **labels: Any
    ) -> Any:
        width = int(attention_mask.sum(1).max())
        columns = {"attention_mask": attention_mask[:, :width], "token_type_ids": token_type_ids[:, :width]}
        output = super().forward(input_ids[:, :width], **columns, **labels)
        for name in ("start_logits", "end_logits"):
            output[name] = pad(output[name], (0, input_ids.shape[1] - width), value=-1e4)
        return output


def best_span(entries: list[peers.Entry]) -> str:
    """Most probable non-null answer of an n-best list."""
    return next((entry["text"] for entry in entries if entry["text"]), "")


def null_odds(entries: list[peers.Entry]) -> float:
    """Log-odds of "no answer" against the best span of an n-best list."""
    null = next(entry["probability"] for entry in entries if not entry["text"])
    best = next((entry["probability"] for entry in entries if entry["text"]), 0.0)
    return math.log(max(null, 1e-300)) - math.log(max(best, 1e-300))


def main() -> None:
    encoder, train, out, *sets = sys.argv[1:]
    folder = Path(out) / "model"
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    if not folder.exists():
        set_seed(SEED)
        model = ShortBatches.from_pretrained(encoder, attention_probs_dropout_prob=ATTENTION_DROPOUT)
        fine_tune(model, peers.prepare(open_passages(train).examples, tokenizer))
        model.save_pretrained(folder)
    model = ShortBatches.from_pretrained(folder)
    for path in map(Path, sets):
        questions = open_passages(str(path)).examples
        inputs = peers.prepare_to_predict(questions, tokenizer)
        logits = predict(model, inputs)
        contexts = [example.context for example in questions]
        _, lists = peers.post_process(contexts, inputs.windows, inputs.features, *logits)
        ids = [example.id for example in questions]
        target = Path(out) / path.stem
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / "predictions.json", dict(zip(ids, map(best_span, lists), strict=True)))
        write_json(target / "null_odds.json", dict(zip(ids, map(null_odds, lists), strict=True)))
        print(f"{target}: {len(ids)} questions")


if __name__ == "__main__":
    main()

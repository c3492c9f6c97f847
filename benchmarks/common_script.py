"""The common script's recipe as a program: fine-tune, predict, score; fp32, every window padded to 384.

    python -m benchmarks.common_script MODEL TRAIN.json DEV.json OUT.json

Writes the official scores and, for each question, its answer and its best span.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoTokenizer, BertForQuestionAnswering, get_linear_schedule_with_warmup, set_seed

from benchmarks import official, peers
from qa_arch.data.sources import open_passages

SEED, EPOCHS, BATCH = 13, 1, 16
LR, WARMUP, WEIGHT_DECAY, CLIP = 1e-4, 0.1, 0.01, 1.0
ATTENTION_DROPOUT = 0.0
"""Any other value disables torch's fused CPU attention."""


def fine_tune(model: BertForQuestionAnswering, prepared: peers.Prepared) -> None:
    """Train for ``EPOCHS`` over the shuffled windows, with linear warmup and decay."""
    columns = (prepared.ids, prepared.segments, prepared.mask, prepared.start, prepared.end)
    loader = DataLoader(TensorDataset(*map(torch.tensor, columns)), BATCH, shuffle=True)
    steps = EPOCHS * len(loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP * steps), steps)
    model.train()
    for _ in range(EPOCHS):
        for ids, segments, mask, start, end in loader:
            output = model(
                input_ids=ids,
                token_type_ids=segments,
                attention_mask=mask,
                start_positions=start,
                end_positions=end,
            )
            output.loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@torch.inference_mode()
def predict(model: BertForQuestionAnswering, inputs: peers.PredictionInputs) -> tuple[np.ndarray, np.ndarray]:
    """(N, T) start and end logits."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    columns = [torch.tensor(inputs.features[name][:]) for name in names]
    model.eval()
    outputs = [
        model(**dict(zip(names, batch, strict=True))) for batch in DataLoader(TensorDataset(*columns), BATCH)
    ]
    start = torch.cat([output.start_logits for output in outputs])
    end = torch.cat([output.end_logits for output in outputs])
    return start.numpy(), end.numpy()


def main() -> None:
    folder, train, dev, out = sys.argv[1:]
    set_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForQuestionAnswering.from_pretrained(folder, attention_probs_dropout_prob=ATTENTION_DROPOUT)
    fine_tune(model, peers.prepare(open_passages(train).examples, tokenizer))
    questions = open_passages(dev).examples
    inputs = peers.prepare_to_predict(questions, tokenizer)
    logits = predict(model, inputs)
    contexts = [example.context for example in questions]
    texts, lists = peers.post_process(contexts, inputs.windows, inputs.features, *logits)
    spans = [next((entry["text"] for entry in entries if entry["text"]), "") for entries in lists]
    ids = [example.id for example in questions]
    answers = dict(zip(ids, texts, strict=True))
    scores = official.evaluate(json.loads(Path(dev).read_text(encoding="utf-8"))["data"], answers)
    results = {"scores": scores, "answers": answers, "spans": dict(zip(ids, spans, strict=True))}
    Path(out).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()

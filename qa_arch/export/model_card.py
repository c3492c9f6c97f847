"""The model card of an exported folder: what its record knows, and plainly what it does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from qa_arch.config.schema import Config
from qa_arch.data.sources import licence
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.records import RunRecord, SplitFacts

CARD = "README.md"
METRICS = ("exact", "f1", "HasAns_f1", "NoAns_f1")
_PAGE = """\
---
library_name: transformers
pipeline_tag: question-answering
license: unknown
tags: [extractive-question-answering, qa_arch]
---

# {title}

An extractive question-answering model: it answers a question about a text with a span of that text, or with
"no answer". Trained and scored with qa_arch{commit}; seed {seed}.

## Scores

{scores}

The null threshold is **{threshold}** ({fitted}): a window has no answer where the score of "no answer"
(start + end logit of the first token) exceeds that of its best span by more.

## Data

{data}

{data_licence}

## Licence

The licence of these weights is unknown: {weights} Settle it before you pass them on.

## Intended use and limits

- For questions in the language of the training data whose answer stands in a text that is given with them. It
  knows nothing else: it does not search, calculate or combine texts.
- The answer is a span of the text, true or not: what the text says wrongly is answered wrongly.
- It was scored on the sets above alone. On other kinds of text the scores are lower, and the null threshold,
  which was fitted on questions like these, no longer fits: fit it anew on questions of yours.
- Texts are read in windows of {length} tokens that share {stride}; questions are cut at {question} tokens and
  answers are at most {answer} tokens long.

## How to ask it

With qa_arch, which reads texts of any length as the model was scored:

```python
import qa_arch

qa = qa_arch.load("FOLDER")
print(qa("Who wrote it?", "The song was written by Ada Stone in 1971."))
```

With transformers alone, for a text of one window:

```python
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForQuestionAnswering.from_pretrained("FOLDER")
question, text = "Who wrote it?", "The song was written by Ada Stone in 1971."
inputs = tokenizer(question, text, truncation="only_second", max_length={length},
                   return_offsets_mapping=True, return_tensors="pt")
offsets = inputs.pop("offset_mapping")[0]
context = torch.tensor([part == 1 for part in inputs.sequence_ids(0)])
with torch.inference_mode():
    output = model(**inputs)
start, end = output.start_logits[0], output.end_logits[0]
allowed = (context[:, None] & context).triu().tril({answer} - 1)
spans = (start[:, None] + end).masked_fill(~allowed, -torch.inf)
first, last = divmod(int(spans.argmax()), len(start))
null_odds = float(start[0] + end[0] - spans.max())
print(text[offsets[first, 0]:offsets[last, 1]] if null_odds <= {limit} else "no answer")
```
"""


def model_card(predictor: SpanPredictor) -> str:
    """The card of the predictor's folder, in Markdown with the front matter of the hub."""
    record, config, threshold = predictor.record, predictor.config, predictor.null_threshold
    always = math.isinf(threshold)
    return _PAGE.format(
        title=record.model if record else config.model.get("name"),
        commit=f" (commit {record.commit[:10]})" if record and record.commit else "",
        seed=config.seed,
        scores=_table(record),
        threshold="infinite" if always else f"{threshold:.4f}",
        limit='float("inf")' if always else repr(threshold),
        fitted=f"fitted on {record.threshold.fitted_on}" if record and record.threshold else "not fitted",
        data="\n".join(_data(record.data if record else {})) or "The record names no data.",
        data_licence=_data_licence(config),
        weights=_weights(config, record),
        length=config.features.max_length,
        stride=config.features.stride,
        question=config.features.max_question,
        answer=config.decode.max_answer_tokens,
    )


def _table(record: RunRecord | None) -> str:
    """A row for each set and operating point of the record."""
    rows = [
        f"| {split} | {name} | {_number(point.threshold)} | {point.protocol} |"
        + "".join(f" {_number(point.metric(metric))} |" for metric in METRICS)
        for split, points in (record.scores if record else {}).items()
        for name, point in points.items()
    ]
    if not rows:
        return "It was not scored."
    head = (
        "| split | operating point | null threshold | SQuAD protocol | EM | F1 | HasAns F1 | NoAns F1 |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    )
    note = "`oracle` is tuned on the scored questions themselves: a bound, no result."
    return "\n".join([*head, *rows, "", note])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _data(data: Mapping[str, SplitFacts]) -> Iterator[str]:
    for split, facts in data.items():
        counts = f"{facts.questions or 0:,} questions, of them {facts.unanswerable or 0:,} unanswerable"
        hash_ = f", SHA-256 {facts.fingerprint[:12]}" if facts.fingerprint else ""
        yield f"- {split}: {facts.name} (SQuAD {facts.protocol}), {counts}{hash_}"


def _data_licence(config: Config) -> str:
    if known := licence(config.data.train):
        return known
    sources = " ".join(str(source) for source in (config.data.train, config.data.dev) if source)
    squad = "SQuAD 1.1 and 2.0 are published under CC BY-SA 4.0 (Rajpurkar et al. 2016, 2018)"
    if "squad" in sources.lower():
        return f"{squad}."
    return f"The licence of this data is not recorded. {squad}: if the questions are SQuAD's, it applies."


def _weights(config: Config, record: RunRecord | None) -> str:
    encoder = config.encoder
    if record and (teacher := record.teacher):
        return (
            f"they were learned from the teacher `{teacher.name}` (config {teacher.config_hash[:8]}), whose"
            " licence is not recorded here, on the data above."
        )
    if encoder.init == "random":
        return f"they were trained from scratch ({encoder.family or encoder.name}), on the data above."
    return f"they started from the encoder `{encoder.name}`, whose licence is not recorded here."

"""``qa-arch export --to hf``: a folder that plain transformers loads as a question-answering model.

Its model card says what the run's record knows, and plainly what it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    AutoConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from qa_arch.config.files import write_atomic
from qa_arch.config.schema import Config
from qa_arch.data.sources import licence
from qa_arch.errors import ConfigError
from qa_arch.export.onnx_folder import new_folder, sample
from qa_arch.features.windows import probe
from qa_arch.features.words import backend_of, unlimited
from qa_arch.models.span_checkpoint import SpanCheckpoint
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_factory import quiet_loading
from qa_arch.records import RunRecord, SplitFacts
from qa_arch.results.tables import markdown_cell
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.types.tensors import Batch, SpanLogits

LARGEST = 1e-5
"""The library's logits differ from ours by no more than this."""
_INSTEAD = "plain transformers has no class for that; qa-arch export --to onnx takes any span model"


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


def export_hf(predictor: SpanPredictor, out: str | Path) -> None:
    """Write model (safetensors), config, tokenizer and model card; loads with AutoModelForQuestionAnswering.

    The model is an encoder with one linear map to a start and an end score, whose null is the first token's.
    Raises ConfigError for any other, RunError where ``out`` is in the way.
    """
    encoder, head = _parts(predictor)
    model = library_model(encoder, head)
    _require_equal(predictor, model)
    tokenizer = library_tokenizer(predictor, encoder)
    with new_folder(out) as folder, quiet_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_atomic(folder / CARD, model_card(predictor))


def library_tokenizer(predictor: SpanPredictor, encoder: Encoder) -> PreTrainedTokenizerFast:
    """The predictor's tokenizer, which by itself writes the inputs that the encoder was trained on.

    Some give no segment ids, or zeros for question and context alike, where the encoder has two.
    """
    with unlimited(backend_of(predictor.tokenizer)) as limitless:
        backend = Tokenizer.from_str(limitless.to_str())
    segments = encoder.has_segments
    if segments and not any(backend.encode("a", "b").type_ids):
        backend.post_processor = _pairs(predictor, backend)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        model_max_length=encoder.max_tokens or predictor.config.features.max_length,
        **predictor.tokenizer.special_tokens_map,
    )


def _pairs(predictor: SpanPredictor, backend: Tokenizer) -> TemplateProcessing:
    """The special tokens of a pair as they stand, with the segments that our windows have."""
    template = probe(predictor.tokenizer, segments=True)
    before, between, after = (
        [f"{backend.id_to_token(token.id)}:{token.segment}" for token in part]
        for part in (template.before, template.between, template.after)
    )
    names = {id_: backend.id_to_token(id_) for id_ in backend.encode("a", "b").ids}
    return TemplateProcessing(
        single=[*before, "$A:0", *(name.rpartition(":")[0] + ":0" for name in after)],
        pair=[
            *before,
            f"$A:{template.question_segment}",
            *between,
            f"$B:{template.context_segment}",
            *after,
        ],
        special_tokens=[(name, id_) for id_, name in names.items()],
    )


def library_model(encoder: Encoder, head: nn.Linear) -> PreTrainedModel:
    """The library's question-answering class for the encoder's family, with copies of these weights."""
    description = encoder.describe()
    kind = description.pop("model_type")
    config = AutoConfig.for_model(kind, **(description | {"num_labels": 2}))
    qa_class = MODEL_FOR_QUESTION_ANSWERING_MAPPING.get(type(config), None)
    if qa_class is None:
        raise ConfigError(f"{kind}: {_INSTEAD}")
    model = qa_class(config)
    base = getattr(model, model.base_model_prefix, None)
    output = getattr(model, "qa_outputs", None)
    if base is None or not isinstance(output, nn.Linear) or output.weight.shape != head.weight.shape:
        raise ConfigError(f"{kind}: {qa_class.__name__} is no encoder with qa_outputs; {_INSTEAD}")
    try:
        base.load_state_dict(encoder.backbone.state_dict())
        output.load_state_dict(head.state_dict())
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(f"{kind}: {qa_class.__name__} has other weights ({reason}); {_INSTEAD}") from error
    return model.eval()


def _parts(predictor: SpanPredictor) -> tuple[Encoder, nn.Linear]:
    """The encoder, and the linear map that is all the model has beside it."""
    model = predictor.model
    if isinstance(model, SpanCheckpoint):
        raise ConfigError("a downloaded checkpoint is such a folder already; --to onnx makes a graph of it")
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, Encoder):
        raise ConfigError(f"{type(model).__name__}: it has no Hugging Face encoder; {_INSTEAD}")
    if encoder.fewer_heads is not None:
        raise ConfigError(
            f"{encoder.config.model_type}: heads were removed, and the library's classes take as many as fill"
            " the width; --to onnx writes the run as it is"
        )
    inside = {id(parameter) for parameter in encoder.parameters()}
    owners = [
        module
        for module in model.modules()
        if any(id(parameter) not in inside for parameter in module.parameters(recurse=False))
    ]
    head = owners[0] if len(owners) == 1 else None
    if not isinstance(head, nn.Linear) or head.weight.shape != (2, encoder.out_dim) or head.bias is None:
        raise ConfigError(
            f"{type(model).__name__}: it is more than an encoder with a linear span head; {_INSTEAD}"
        )
    return encoder, head


def _require_equal(predictor: SpanPredictor, model: PreTrainedModel) -> None:
    """ConfigError where the model does something else with the same weights."""
    batch = sample(predictor)
    with torch.inference_mode():
        ours, (start, end) = predictor.model(batch), library_logits(model, batch)
    same = isinstance(ours, SpanLogits) and ours.verifier is None
    if same:
        context = batch.context
        pairs = (
            (ours.start[context], start[context]),
            (ours.end[context], end[context]),
            (ours.null, start[:, 0] + end[:, 0]),
        )
        same = all(torch.allclose(a, b, rtol=0, atol=LARGEST) for a, b in pairs)
    if not same:
        raise ConfigError(
            f"{type(predictor.model).__name__}: its scores are not those of an encoder with a linear span"
            f" head; {_INSTEAD}"
        )


def library_logits(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end logits (B, T) of all tokens, from the library's own class."""
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    output = model(input_ids=batch.ids, attention_mask=batch.mask.long(), **segments)
    return output.start_logits, output.end_logits


def model_card(predictor: SpanPredictor) -> str:
    """The card of the predictor's folder, in Markdown with the front matter of the hub."""
    record, config, threshold = predictor.record, predictor.config, predictor.null_threshold
    always = math.isinf(threshold)
    return _PAGE.format(
        title=_inline(record.model if record else config.model.get("name")),
        commit=f" (commit {_inline(record.commit[:10])})" if record and record.commit else "",
        seed=config.seed,
        scores=_table(record),
        threshold="infinite" if always else f"{threshold:.4f}",
        limit='float("inf")' if always else repr(threshold),
        fitted=f"fitted on {_inline(record.threshold.fitted_on)}"
        if record and record.threshold
        else "not fitted",
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
        f"| {_inline(split)} | {_inline(name)} | {_number(point.threshold)} | {_inline(point.protocol)} |"
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


def _inline(text: object) -> str:
    """``text`` of a record or a config within a line or a table's cell: no line ends, no HTML."""
    return escape(markdown_cell(str(text)), quote=False)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _data(data: Mapping[str, SplitFacts]) -> Iterator[str]:
    for split, facts in data.items():
        counts = f"{facts.questions or 0:,} questions, of them {facts.unanswerable or 0:,} unanswerable"
        hash_ = f", SHA-256 {facts.fingerprint[:12]}" if facts.fingerprint else ""
        name, protocol = _inline(facts.name), _inline(facts.protocol)
        yield f"- {_inline(split)}: {name} (SQuAD {protocol}), {counts}{hash_}"


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
            f"they were learned from the teacher `{_inline(teacher.name)}`"
            f" (config {teacher.config_hash[:8]}), whose licence is not recorded here, on the data above."
        )
    if encoder.init == "random":
        return f"they were trained from scratch ({encoder.family or encoder.name}), on the data above."
    return f"they started from the encoder `{_inline(encoder.name)}`, whose licence is not recorded here."

"""``qa-arch export --to hf``: a folder that plain transformers loads as a question-answering model.

Its model card states what the run's record contains, and what is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCardData
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    AutoConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from qa_arch.config.schema import Config
from qa_arch.data.files import as_list
from qa_arch.data.question_sets import passage_title
from qa_arch.data.sources import recorded_format, split_scheme, split_source
from qa_arch.errors import ConfigError, RunError
from qa_arch.export import new_folder, sample
from qa_arch.features.windows import probe
from qa_arch.features.words import backend_of, unlimited
from qa_arch.files import write_atomic, write_json
from qa_arch.models.checkpoint_files import SETTINGS_FILE, ExportedSettings
from qa_arch.models.span_checkpoint import SpanCheckpoint
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_configs import HUB_IDS
from qa_arch.nn.encoder_factory import quiet_loading
from qa_arch.qa.reader import Reader
from qa_arch.records import CALIBRATION, TRAIN, RunRecord, SplitFacts, Threshold, training_data
from qa_arch.results.effects import AT_THRESHOLD, samples_of
from qa_arch.results.errors import POINTS
from qa_arch.results.systems import System
from qa_arch.results.tables import markdown_cell
from qa_arch.tensors import Batch
from qa_arch.terminal import counted

MAX_DIFFERENCE = 1e-5
"""Largest difference allowed between the library's logits and ours."""
_ALTERNATIVE = "plain transformers has no class for that; qa-arch export --to onnx takes any span model"
CARD = "README.md"
METRICS = ("exact", "f1", "HasAns_f1", "NoAns_f1")
_PAGE = """\
---
{front}
---

# {title}

An extractive question-answering model: it answers a question about a text with a span of that text, or with
"no answer". Trained and scored with qa_arch{commit}; seed {seed}.

## Scores

{scores}

Reproduce the scores with `qa-arch evaluate --run FOLDER --data FILE`.

The null threshold is **{threshold}** ({fitted}): a window has no answer where the score of "no answer"
(start + end logit of the first token) exceeds that of its best span by more.

## Data

{data}

## Licence

The licence of these weights is unknown: {weights} Clarify it before you redistribute them.

## Intended use and limits

- For questions in the language of the training data, asked about a given text: the model does not search,
  calculate or combine texts, and repeats mistakes in the text.
- On kinds of text other than those above, scores are lower and the null threshold no longer fits.
- Texts are read in windows of {length} tokens that overlap by {stride}; questions are truncated to {question}
  tokens, and answers are at most {answer} tokens long.

## Usage

With qa_arch, which reads texts of any length, with the settings that the model was scored with:

```python
import qa_arch

qa = qa_arch.load("FOLDER")
print(qa("Which river was Kelldale reached by?", "Kelldale was reached by the river Kemcreek."))
```

With transformers alone, for a text that fits into one window:

```python
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForQuestionAnswering.from_pretrained("FOLDER")
question, text = "Which river was Kelldale reached by?", "Kelldale was reached by the river Kemcreek."
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


def export_hf(predictor: Reader, out: str | Path, run: Path | None = None) -> None:
    """Write model (safetensors), config, tokenizer and model card, for AutoModelForQuestionAnswering.

    ``run`` is the run's folder, whose question rows give the card its confidence intervals. The model must be
    an encoder with one linear map to start and end scores, whose null is the first token.
    Raises ConfigError for any other, RunError if ``out`` exists.
    """
    if isinstance(predictor.model, SpanCheckpoint):
        raise ConfigError("a downloaded checkpoint is such a folder already; --to onnx exports a graph of it")
    encoder = getattr(predictor.model, "encoder", None)
    if not isinstance(encoder, Encoder) or encoder.fewer_heads is not None:
        raise ConfigError(
            f"{type(predictor.model).__name__}: has no Hugging Face encoder, or one with pruned heads;"
            f" {_ALTERNATIVE}"
        )
    model = library_model(predictor, encoder)
    tokenizer = library_tokenizer(predictor, encoder)
    with new_folder(out) as folder, quiet_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / SETTINGS_FILE, _exported_settings(predictor))
        write_atomic(folder / CARD, model_card(predictor, run))


def _exported_settings(predictor: Reader) -> dict[str, Any]:
    """Settings with which ``qa_arch.load`` reads the folder: those that the model was scored with."""
    config, record = predictor.config, predictor.record
    assert record is not None  # as of every loaded reader
    value = None if math.isinf(predictor.null_threshold) else predictor.null_threshold

    def hashed(facts: SplitFacts) -> SplitFacts:
        return replace(facts, titles=tuple(map(passage_title, facts.titles)))

    # No fingerprint says that the set could be opened again, as a run's can.
    data = {split: replace(hashed(f), fingerprint=None) for split, f in training_data([record]).items()}
    return asdict(
        ExportedSettings(
            features=replace(config.features, cache_dir=None),
            decode=config.decode,
            threshold=record.threshold or Threshold(value=value, fitted_on="nothing"),
            confidence=record.confidence,
            data=data,
            held_out=hashed(record.held_out) if record.held_out else None,
        )
    )


def library_tokenizer(predictor: Reader, encoder: Encoder) -> PreTrainedTokenizerFast:
    """The predictor's tokenizer, made to produce the encoder's training inputs on its own.

    Some tokenizers return no segment ids, or all zeros, although the encoder uses two.
    """
    with unlimited(backend_of(predictor.tokenizer)) as limitless:
        backend = Tokenizer.from_str(limitless.to_str())  # a copy, which may change
    segments = encoder.has_segments
    if segments and not any(backend.encode("a", "b").type_ids):  # use the template of our windows
        template = probe(predictor.tokenizer, segments=True)
        before, between, after = (
            [f"{backend.id_to_token(token.id)}:{token.segment}" for token in part]
            for part in (template.before, template.between, template.after)
        )
        names = {id_: backend.id_to_token(id_) for id_ in backend.encode("a", "b").ids}
        question, context = f"$A:{template.question_segment}", f"$B:{template.context_segment}"
        backend.post_processor = TemplateProcessing(
            # A text alone is segment 0 to its end.
            single=[*before, "$A:0", *(name.rpartition(":")[0] + ":0" for name in after)],
            pair=[*before, question, *between, context, *after],
            special_tokens=[(name, id_) for id_, name in names.items()],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        model_max_length=encoder.max_tokens or predictor.config.features.max_length,
        **predictor.tokenizer.special_tokens_map,
    )


def library_model(predictor: Reader, encoder: Encoder) -> PreTrainedModel:
    """The library's question-answering class with copies of the predictor's weights and the same scores.

    Raises ConfigError if no class of the library reproduces them.
    """
    description = encoder.describe()
    kind = description.pop("model_type")
    config = AutoConfig.for_model(kind, **(description | {"num_labels": 2}))
    qa_class = MODEL_FOR_QUESTION_ANSWERING_MAPPING.get(type(config), None)
    encoder_weights = {id(parameter) for parameter in encoder.parameters()}
    # ``weight`` and ``bias`` of a single linear map; those of any other head do not load below.
    head_weights = {
        name.rpartition(".")[2]: parameter
        for name, parameter in predictor.model.named_parameters()
        if id(parameter) not in encoder_weights
    }
    model: Any = qa_class(config).eval() if qa_class else None
    batch = sample(predictor)
    try:
        getattr(model, model.base_model_prefix).load_state_dict(encoder.backbone.state_dict())
        model.qa_outputs.load_state_dict(head_weights)
        with torch.inference_mode():
            ours, (start, end) = predictor.model(batch), library_logits(model, batch)
        pairs = (
            (ours.start[batch.context], start[batch.context]),
            (ours.end[batch.context], end[batch.context]),
            (ours.null, start[:, 0] + end[:, 0]),
        )
        same = ours.verifier is None and all(
            torch.allclose(a, b, rtol=0, atol=MAX_DIFFERENCE) for a, b in pairs
        )
    except (AttributeError, RuntimeError):  # no such class, other weights or outputs
        same = False
    if not same:
        raise ConfigError(
            f"{type(predictor.model).__name__}: is not just an encoder of the library ({kind}) with a"
            f" linear span head; {_ALTERNATIVE}"
        )
    return model


def library_logits(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end logits (B, T) of all tokens, from the library's class."""
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    output = model(input_ids=batch.ids, attention_mask=batch.mask.long(), **segments)
    return output.start_logits, output.end_logits


def model_card(predictor: Reader, run: Path | None = None) -> str:
    """Model card in Markdown, with front matter for the hub."""
    record, config, threshold = predictor.record, predictor.config, predictor.null_threshold
    assert record is not None
    always = math.isinf(threshold)
    return _PAGE.format(
        front=_front_matter(config, record, run).to_yaml(),
        title=_inline(record.model),
        commit=f" (commit {_inline(record.commit[:10])})" if record.commit else "",
        seed=config.seed,
        scores=_score_table(record),
        threshold="infinite" if always else f"{threshold:.4f}",
        limit='float("inf")' if always else repr(threshold),
        fitted=f"fitted on {_inline(record.threshold.fitted_on)}" if record.threshold else "not fitted",
        data="\n".join(_data_lines(config, record.data)),
        weights=_weights_origin(config, record),
        length=config.features.max_length,
        stride=config.features.stride,
        question=config.features.max_question,
        answer=config.decode.max_answer_tokens,
    )


def _front_matter(config: Config, record: RunRecord, run: Path | None) -> ModelCardData:
    """Metadata that the hub reads: base model, data sets, and scores as a ``model-index``."""
    encoder = str(config.encoder.name)
    on_the_hub = config.encoder.init == "pretrained" and not Path(encoder).exists()
    sources = map(split_scheme, as_list(config.data.train))
    datasets = [split_source(source)[0] for scheme, source in sources if scheme == "hub"]
    return ModelCardData(
        model_name=record.model,
        library_name="transformers",
        pipeline_tag="question-answering",
        license="unknown",
        tags=["extractive-question-answering", "qa_arch"],
        base_model=HUB_IDS.get(encoder, encoder) if on_the_hub else None,
        datasets=[dataset for dataset in datasets if not Path(dataset).exists()] or None,
        eval_results=list(_results(record, run)) if record.scores else None,
    )


def _results(record: RunRecord, run: Path | None) -> Iterator[EvalResult]:
    """EM and F1 with 95% intervals on every set not used for training or fitting, at the operating point by
    which runs are compared."""
    for split in record.scores:
        point, facts, samples = record.compared_point(split), record.facts(split), None
        if point is None or split in (TRAIN, CALIBRATION):
            continue
        if run is not None:
            with suppress(RunError):  # no rows: no intervals
                samples = samples_of([System("run", ((run, record),))], split)
        for metric in AT_THRESHOLD:
            arguments: dict[str, Any] = {
                "protocol": f"SQuAD {point.protocol}",
                "null_threshold": point.threshold,
            }
            if samples is not None:
                interval = [round(end, 2) for end in samples.interval("run", metric)]
                arguments |= {"interval_95": interval, "interval_over": f"{samples.unit}s"}
            yield EvalResult(
                task_type="question-answering",
                dataset_type=str(facts.name),
                dataset_name=str(facts.name),
                dataset_split=split,
                dataset_args={"sha256": facts.fingerprint},
                metric_type="exact_match" if metric == "exact" else metric,
                metric_value=point.metric(metric),
                metric_args=arguments,
            )


def _score_table(record: RunRecord) -> str:
    """Markdown table with one row per set and operating point of the record."""
    rows = [
        f"| {_inline(split)} | {_inline(POINTS.get(name, name))} | {_number(point.threshold)} |"
        f" {_inline(point.protocol)} |" + "".join(f" {_number(point.metric(metric))} |" for metric in METRICS)
        for split, points in record.scores.items()
        for name, point in points.items()
    ]
    if not rows:
        return "Not scored."
    head = (
        "| split | operating point | null threshold | SQuAD protocol | EM | F1 | HasAns F1 | NoAns F1 |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    )
    return "\n".join(
        [*head, *rows, "", "The oracle is tuned on the scored questions: an upper bound, not a result."]
    )


def _inline(text: object) -> str:
    """Escape ``text`` of a record or config for a line or table cell: no line breaks, no HTML."""
    return escape(markdown_cell(str(text)), quote=False)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _data_lines(config: Config, data: Mapping[str, SplitFacts]) -> Iterator[str]:
    for split, facts in data.items():
        counts = (
            f"{counted(facts.questions or 0, 'question')}, {facts.unanswerable or 0:,} of them unanswerable"
        )
        hash_ = f", SHA-256 {facts.fingerprint[:12]}" if facts.fingerprint else ""
        name, protocol = _inline(facts.name), _inline(facts.protocol)
        yield f"- {_inline(split)}: {name} (SQuAD {protocol}), {counts}{hash_}"
    squad = (
        "If these are SQuAD's questions: SQuAD is published under CC BY-SA 4.0 (Rajpurkar et al. 2016, 2018)."
    )
    yield f"\n{recorded_format(config.data.train).licence or squad}"


def _weights_origin(config: Config, record: RunRecord) -> str:
    encoder = config.encoder
    if teacher := record.teacher:
        return (
            f"they were distilled from the teacher `{_inline(teacher.name)}`"
            f" (config {teacher.run_hash[:8]}), whose licence is not recorded here, on the data above."
        )
    if encoder.init == "random":
        return f"they were trained from scratch ({encoder.family or encoder.name}), on the data above."
    return f"they started from the encoder `{_inline(encoder.name)}`, whose licence is not recorded here."

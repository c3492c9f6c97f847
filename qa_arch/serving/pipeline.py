"""``pipeline("question-answering")`` of transformers 4.57.6: the same windows, scores and answers."""

from __future__ import annotations

import logging
import math
import warnings
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any

import torch
import transformers.pipelines
from torch.utils.data import Dataset

from qa_arch.errors import ConfigError
from qa_arch.features.windows import has_segment_ids
from qa_arch.models.checkpoint_files import open_checkpoint
from qa_arch.models.span_checkpoint import load_span_checkpoint
from qa_arch.models.store import open_tokenizer
from qa_arch.nn.reading import require_device
from qa_arch.qa.decoding import best_spans
from qa_arch.tensors import SpanLogits

log = logging.getLogger(__name__)
TASK, DEFAULT = "question-answering", "distilbert/distilbert-base-cased-distilled-squad"

FORMS = "give question= and context= (texts, or equally long lists), two texts, or dicts with these keys"
STREAMS = (GeneratorType, Dataset)
"""Inputs of which one item, too, has a list of answers."""
OPTIONS = (
    *("top_k", "max_answer_len", "max_seq_len", "doc_stride"),
    *("handle_impossible_answer", "align_to_words"),
)
"""Arguments of ``QuestionAnsweringPipeline.answer``."""
HARMLESS = ("batch_size", "num_workers", "padding", "max_question_len")
"""Options without which the answers are the same."""


def pipeline(task: str | None = None, *args: Any, others: Any = None, **options: Any) -> Any:
    """``QuestionAnsweringPipeline``, the only task here; ``others`` opens pipelines of other tasks."""
    if task == TASK or (task is None and others is None):
        return QuestionAnsweringPipeline(*args, **options)
    if others is None:
        raise KeyError(f"task {task!r} is not {TASK!r}: use transformers.pipeline for others")
    return others(task, *args, **options)


def patch_transformers() -> None:
    """Put the pipeline back into transformers; call it before importing code that cannot be changed."""
    for owner in (transformers, transformers.pipelines):
        owner.QuestionAnsweringPipeline = QuestionAnsweringPipeline
        owner.pipeline = partial(pipeline, others=owner.pipeline)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The ``options`` of ``answer`` that are not None, the default; warns of others, which have no effect."""
    given = {name: value for name, value in options.items() if value is not None and name not in HARMLESS}
    if "topk" in given:
        given.setdefault("top_k", given.pop("topk"))
    for name in given.keys() - OPTIONS:
        warnings.warn(f"{name}: has no effect here; leave it out", stacklevel=3)
        del given[name]
    return given


class QuestionAnsweringPipeline:
    """Answers questions with a model of transformers, one window at a time."""

    def __init__(self, model: Any = None, tokenizer: Any = None, device: Any = None, **options: Any) -> None:
        """``model`` and ``tokenizer`` are ids of the hub (at ``revision``), folders or objects; the other
        ``options`` are defaults of a call. Only safetensors are read, and no code of a checkpoint is run."""
        if model is None:
            log.warning("no model was given: %s, as in transformers 4", model := DEFAULT)
        if isinstance(model, str | Path):
            revision = None if Path(model).is_dir() else options.pop("revision", None)
            loaded = load_span_checkpoint(open_checkpoint(model, revision))
            model, tokenizer = loaded.model.model, tokenizer or loaded.tokenizer
        if isinstance(tokenizer, str | Path):
            tokenizer = open_tokenizer(str(tokenizer), setting="tokenizer")
        if tokenizer is None or "ForQuestionAnswering" not in type(model).__name__:
            raise ConfigError("a model object must be a ...ForQuestionAnswering, and needs tokenizer=")
        if device is None:
            device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
        if device != -1:
            require_device(device)
        self.model = (model if device == -1 else model.to(device)).eval()  # -1: where it is
        self.tokenizer, self.options = tokenizer, _given(options)
        self.task, self.device = TASK, self.model.device
        self.segments = (getattr(model.config, "type_vocab_size", 0) or 0) > 1 and has_segment_ids(tokenizer)

    def __call__(self, *args: Any, question: Any = None, context: Any = None, **options: Any) -> Any:
        """Answer {"score", "start", "end", "answer"} to a question, or a list of them to several.

        Input is ``question`` and ``context``, each a text or a list of texts (one context can serve all), or
        two texts, or dicts with these keys, also in a list; ``options`` are arguments of ``answer``."""
        args = args or tuple(options.pop(name) for name in ("data", "X") if name in options)
        items = args[0] if len(args) == 1 else args
        if isinstance(items, dict):
            question, context = items["question"], items["context"]
        elif args and isinstance(args[0], str):
            question, context = args if len(args) == 2 else (args[0], None)
        if question is None and args:
            pairs = [(item["question"], item["context"]) for item in items]
        else:
            question = [question] if isinstance(question, str) else question
            try:
                context = [context] * len(question) if isinstance(context, str) else context
                pairs = list(zip(question, context, strict=True))
            except (TypeError, ValueError):
                raise ValueError(FORMS) from None
        options = self.options | _given(options)
        answers = [self.answer(*pair, **options) for pair in pairs]
        return answers[0] if len(answers) == 1 and not isinstance(items, STREAMS) else answers

    def answer(
        self, question: str, context: str, *, top_k: int = 1, max_answer_len: int = 15, max_seq_len=None,
        doc_stride=None, handle_impossible_answer: bool = False, align_to_words: bool = True,
    ) -> Any:  # fmt: skip
        """Best answer, or the list of the ``top_k`` best. A score is the probability within a window, summed
        over spans that are equal up to case; that of "no answer" is the lowest of all windows."""
        if not question or not context or min(top_k, max_answer_len) < 1:
            raise ValueError("question and context must not be empty, top_k and max_answer_len not below 1")
        answers, null = dict[Any, Any](), 1e6  # as in transformers, above any probability
        for window, logits in self._windows(question, context, max_seq_len, doc_stride):
            null = min(null, math.exp(logits.null_start + logits.null_end))
            count = top_k * 2 + 10 if align_to_words else top_k  # several may be widened to the same words
            spans = best_spans(logits, n_best=count, max_answer_tokens=max_answer_len)
            for first, last, score in zip(spans.start[0], spans.end[0], spans.score[0], strict=True):
                begin, end = window.offsets[first][0], window.offsets[last][1]
                words = window.token_to_word(int(first)), window.token_to_word(int(last))
                if align_to_words and None not in words:
                    begin, end = window.word_to_chars(words[0], 1)[0], window.word_to_chars(words[1], 1)[1]
                answer = {"score": 0.0, "start": begin, "end": end, "answer": context[begin:end]}
                answers.setdefault(answer["answer"].lower(), answer)["score"] += math.exp(score)
        if handle_impossible_answer:
            answers[None] = {"score": null, "start": 0, "end": 0, "answer": ""}
        best = sorted(answers.values(), key=lambda answer: -answer["score"])[:top_k]
        return best[0] if len(best) == 1 else best

    @torch.inference_mode()
    def _windows(self, question: str, context: str, length: int | None, stride: int | None) -> Any:
        """Yield windows with the log-probabilities of their tokens and of the first one, for "no answer"."""
        length = length or min(self.tokenizer.model_max_length, 384)  # the defaults of transformers
        stride = min(length // 2, 128) if stride is None else stride
        room = (
            length - self.tokenizer.num_special_tokens_to_add(True) - len(self.tokenizer.tokenize(question))
        )
        if stride >= room and len(self.tokenizer.tokenize(context)) > room:  # tokenizers panics, uncatchably
            raise ValueError(f"doc_stride ({stride}) must be below the {room} tokens left for the text")
        cut = {"truncation": "only_second", "max_length": length, "stride": stride}
        for window in self.tokenizer(question, context, return_overflowing_tokens=True, **cut).encodings:
            rows = {"input_ids": window.ids, "attention_mask": window.attention_mask}
            rows |= {"token_type_ids": window.type_ids} if self.segments else {}
            inputs = {name: torch.tensor([row], device=self.model.device) for name, row in rows.items()}
            output = self.model(**inputs)
            logits = torch.stack([output.start_logits, output.end_logits]).float().cpu()
            outside = torch.tensor([part != 1 for part in window.sequence_ids])
            scores = torch.cat([logits[..., :1], logits.masked_fill(outside, -torch.inf)], -1).log_softmax(-1)
            yield window, SpanLogits(*scores[..., 1:], *scores[..., 0])

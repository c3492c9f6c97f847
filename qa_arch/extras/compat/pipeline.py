"""``pipeline("question-answering")`` of transformers 4: same windows, scores, tie-breaking and outputs.

Source: transformers 4.57.6, pipelines/question_answering.py, with fast tokenizers.

Axes: ``B`` windows, ``T`` tokens of a window.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, fields, replace
from functools import wraps
from itertools import islice, product
from pathlib import Path
from types import GeneratorType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Encoding
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from qa_arch.errors import ConfigError
from qa_arch.extras.compat import squad, squad_metrics
from qa_arch.extras.compat.squad import SquadExample
from qa_arch.models.build import load_tokenizer
from qa_arch.models.checkpoint_files import open_checkpoint
from qa_arch.models.span_checkpoint import load_span_checkpoint
from qa_arch.nn.reading import device_of
from qa_arch.records import RECORD

TASK = "question-answering"
IGNORED = {"framework", "max_question_len", "num_workers", "padding", "use_fast"}
"""Accepted without effect; ``max_question_len`` had none with fast tokenizers either."""
REFUSED = ("config", "device_map", "dtype", "model_kwargs", "torch_dtype", "trust_remote_code")
"""Arguments that raise ValueError: load a model object with them instead."""
WITH_SEGMENTS = ("albert", "funnel", "nystromformer", "rembert", "roformer", "splinter", "xlnet", "yoso")
"""Model types whose tokenizers no longer return segment ids in transformers 5."""
OUTSIDE = np.float32(-10000.0)
"""Logit of tokens outside the text."""
PROCESSORS = (
    "SquadExample",
    "SquadFeatures",
    "SquadV1Processor",
    "SquadV2Processor",
    "squad_convert_examples_to_features",
)
"""Names of the ``squad`` module that transformers 4 also exported itself."""

Answer = dict[str, Any]
Floats = npt.NDArray[np.float32]


def pipeline(
    task: str,
    model: Any,
    config: None = None,
    tokenizer: Any = None,
    *,
    device: int | str | torch.device | None = None,
    revision: str | None = None,
    **options: Any,
) -> QuestionAnsweringPipeline:
    """Same as ``transformers.pipeline(task, model, ...)`` for "question-answering" in version 4.

    ``model`` and ``tokenizer`` are hub ids (OWNER/NAME, at ``revision``), folders or objects; ``config`` must
    be None. ``device`` defaults to the first accelerator, -1 keeps the model where it is. ``options`` are
    defaults of the call. Weights come from safetensors only, and no code of a checkpoint is run.

    Raises KeyError for another task, ValueError for a model object without a tokenizer and for options out of
    range, TypeError for unknown ones; ConfigError for a run of qa_arch and for a model without a span head,
    UnavailableError for a checkpoint that cannot be read.
    """
    if task != TASK:
        raise KeyError(f"task {task!r} is not {TASK!r}: use transformers.pipeline for others")
    if isinstance(model, str | Path):
        if (Path(model) / RECORD).is_file():
            raise ConfigError(f"{model}: is a run of qa_arch; open it with qa_arch.load({str(model)!r})")
        loaded = load_span_checkpoint(open_checkpoint(model, revision))
        model, tokenizer = loaded.model.model, loaded.tokenizer if tokenizer is None else tokenizer
    if tokenizer is None:
        raise ValueError("a model object needs a tokenizer: pass tokenizer=")
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(str(tokenizer), setting="tokenizer")
    return QuestionAnsweringPipeline(model, tokenizer, device, config=config, **options)


def patch_transformers() -> None:
    """Put the removed modules and names back into transformers 5, for code that cannot be changed.

    Call it before the first import of such code.
    """
    import transformers.pipelines  # replaces transformers in sys.modules when it is first imported

    library: Any = transformers
    removed = (("metrics", "squad_metrics", squad_metrics), ("processors", "squad", squad))
    for package, name, module in removed:
        path = f"transformers.data.{package}"
        parent = sys.modules.setdefault(path, ModuleType(path))
        sys.modules[f"{path}.{name}"] = module
        setattr(library.data, package, parent)
        setattr(parent, name, module)
    for owner, name in product((library, library.data.processors), PROCESSORS):
        setattr(owner, name, getattr(squad, name))
    for owner in (library, library.pipelines):
        owner.QuestionAnsweringPipeline = QuestionAnsweringPipeline
        owner.pipeline = _with_question_answering(owner.pipeline)


def _with_question_answering(transformers_pipeline: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(transformers_pipeline)
    def dispatch(task: Any = None, *args: Any, **options: Any) -> Any:
        return (pipeline if task == TASK else transformers_pipeline)(task, *args, **options)

    return dispatch


@dataclass(frozen=True)
class _Options:
    """Arguments of a call; lengths in tokens."""

    top_k: int = 1
    doc_stride: int | None = None
    """Overlap of neighbouring windows; None: half a window, at most 128."""
    max_answer_len: int = 15
    max_seq_len: int | None = None
    """None: 384, or the tokenizer's maximum if smaller."""
    handle_impossible_answer: bool = False
    align_to_words: bool = True
    batch_size: int = 1

    def updated(self, changes: Mapping[str, Any]) -> _Options:
        """Copy with the ``changes`` that are not None."""
        changes = {key: value for key, value in changes.items() if value is not None}
        if (top_k := changes.pop("topk", None)) is not None:
            warnings.warn("topk is deprecated: use top_k", UserWarning, stacklevel=3)
            changes.setdefault("top_k", top_k)
        for key in REFUSED:
            if changes.pop(key, None):
                raise ValueError(f"{key}: is not supported; load the model with it, and pass the object")
        if unknown := changes.keys() - IGNORED - {field.name for field in fields(self)}:
            raise TypeError(f"pipeline has no argument {min(unknown)!r}")
        options = replace(self, **{key: changes[key] for key in changes.keys() - IGNORED})
        for key in ("top_k", "max_answer_len", "batch_size"):
            if (value := getattr(options, key)) < 1:
                raise ValueError(f"{key} parameter should be >= 1 (got {value})")
        return options


class _Window(NamedTuple):
    question: int
    """Index of its question."""
    encoding: Encoding
    allowed: npt.NDArray[np.bool_]
    """Shape (T,): tokens that may be in an answer, those of the text and [CLS]."""


class QuestionAnsweringPipeline:
    """Answers questions about texts; created by ``pipeline``."""

    task = TASK

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        device: int | str | torch.device | None = None,
        **options: Any,
    ) -> None:
        if not any("QuestionAnswering" in base.__name__ for base in type(model).__mro__):
            raise ConfigError(f"{type(model).__name__}: has no span head; give a ...ForQuestionAnswering")
        self._defaults = _Options().updated(options)
        self.tokenizer = tokenizer
        self._columns = {
            "input_ids": ("ids", tokenizer.pad_token_id),
            "attention_mask": ("attention_mask", 0),
            "token_type_ids": ("type_ids", tokenizer.pad_token_type_id),
        }
        device_map = getattr(model, "hf_device_map", None)
        if device_map is None:
            self.device = _device(device, model)
            model = model.to(self.device)
        elif device is None:
            self.device = torch.device(next(iter(device_map.values())))
        else:
            raise ValueError("device: the model was loaded with a device_map; leave device out")
        self.model = model.eval()

    def __call__(self, *args: Any, question: Any = None, context: Any = None, **options: Any) -> Any:
        """Answer questions about texts; an answer is {"score", "start", "end", "answer"}.

        Input is ``question`` and ``context``, each a text or a list of texts (one context can serve all
        questions), or two texts, a dict, a ``SquadExample``, or several of these. Several questions, a
        generator and a torch dataset return a list; ``top_k`` > 1 makes each answer a list of at most that
        many, best first. ``start`` and ``end`` are offsets in characters of the text.

        ``score`` is the probability within a window, summed over all spans with the same answer up to case.
        ``handle_impossible_answer`` adds "" with the lowest probability of "no answer" over windows;
        ``align_to_words`` widens answers to whole words.

        Raises ValueError for invalid input or options out of range, KeyError for a dict without these keys,
        TypeError for unknown options.
        """
        settings = self._defaults.updated(options)
        pairs = [_pair(item) for item in _items(args, question, context)]
        windows = (window for n, pair in enumerate(pairs) for window in self._windows(n, *pair, settings))
        part = int(self._question_first)
        ranked: list[dict[str, Answer]] = [{} for _ in pairs]
        null = [float(squad_metrics.NO_SCORE)] * len(pairs)
        while batch := list(islice(windows, settings.batch_size)):
            for window, logits in zip(batch, self._logits(batch), strict=True):
                row = window.question
                spans, null_score = _best_spans(*logits, window.allowed, settings)
                null[row] = min(null[row], null_score)
                for first, last, score in spans:
                    start, end = _characters(window.encoding, first, last, part, settings.align_to_words)
                    text = pairs[row][1][start:end]
                    empty = {"score": 0.0, "start": start, "end": end, "answer": text}
                    ranked[row].setdefault(text.lower(), empty)["score"] += score
        answers = [_best(texts.values(), score, settings) for texts, score in zip(ranked, null, strict=True)]
        stream = len(args) == 1 and isinstance(args[0], GeneratorType | Dataset)
        return answers[0] if len(answers) == 1 and not stream else answers

    @property
    def _question_first(self) -> bool:
        return self.tokenizer.padding_side == "right"

    def _windows(self, number: int, question: str, context: str, options: _Options) -> Iterator[_Window]:
        default = min(self.tokenizer.model_max_length, 384)
        length = default if options.max_seq_len is None else options.max_seq_len
        stride = min(length // 2, 128) if options.doc_stride is None else options.doc_stride
        if stride > length:
            raise ValueError(f"`doc_stride` ({stride}) is larger than `max_seq_len` ({length})")
        fixed = len(self.tokenizer.tokenize(question)) + self.tokenizer.num_special_tokens_to_add(pair=True)
        room = length - fixed
        # tokenizers would panic, which no "except Exception" catches.
        if stride >= room > 0 and len(self.tokenizer.tokenize(context)) > room:
            raise ValueError(f"`doc_stride` ({stride}) must be below the {room} tokens left for the text")
        encoded = self.tokenizer(
            *((question, context) if self._question_first else (context, question)),
            truncation="only_second" if self._question_first else "only_first",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
        )
        for encoding in encoded.encodings:
            # With padding on the left the old pipeline treated everything as text, even the question.
            allowed = [
                part == 1 or id_ == self.tokenizer.cls_token_id or not self._question_first
                for part, id_ in zip(encoding.sequence_ids, encoding.ids, strict=True)
            ]
            yield _Window(number, encoding, np.array(allowed))

    @torch.inference_mode()
    def _logits(self, windows: Sequence[_Window]) -> Iterator[tuple[Floats, Floats]]:
        """Start and end logits of each window, each of shape (T,) without padding."""
        names = {*self.tokenizer.model_input_names}
        if self.model.config.model_type in WITH_SEGMENTS:
            names.add("token_type_ids")
        names &= inspect.signature(self.model.forward).parameters.keys()
        longest = max(len(window.encoding) for window in windows)
        inputs = {}
        for name, (attribute, fill) in self._columns.items():
            if name in names:
                rows = [getattr(window.encoding, attribute) for window in windows]
                gaps = [[fill] * (longest - len(row)) for row in rows]
                pairs = zip(rows, gaps, strict=True) if self._question_first else zip(gaps, rows, strict=True)
                inputs[name] = torch.tensor([left + right for left, right in pairs], device=self.device)
        largest, size = int(inputs["input_ids"].max()), self.model.get_input_embeddings().weight.shape[0]
        if largest >= size:
            raise ConfigError(
                f"the model has {size} token embeddings, but its tokenizer produces id {largest}: use the"
                " tokenizer that it was trained with"
            )
        output = self.model(**inputs)
        scores = (logits.float().cpu().numpy() for logits in (output.start_logits, output.end_logits))
        for window, *rows in zip(windows, *scores, strict=True):
            length = len(window.encoding)
            start, end = (row[:length] if self._question_first else row[-length:] for row in rows)
            yield start, end


def _items(args: tuple[Any, ...], question: Any, context: Any) -> list[Any]:
    """Questions of a call as a list of dicts or examples."""
    if len(args) == 2 and all(isinstance(text, str) for text in args):
        args, question, context = (), *args
    if args:
        items = args[0] if len(args) == 1 else args
    elif isinstance(question, str) and isinstance(context, str):
        items = [{"question": question, "context": context}]
    elif isinstance(question, list) and isinstance(context, str | list):
        contexts = [context] * len(question) if isinstance(context, str) else context
        if len(contexts) != len(question):
            raise ValueError(f"there are {len(question)} questions and {len(contexts)} contexts")
        pairs = zip(question, contexts, strict=True)
        items = [{"question": text, "context": passage} for text, passage in pairs]
    else:
        raise ValueError("give question= and context=: texts, or lists of texts")
    if isinstance(items, dict | SquadExample):
        return [items]
    if isinstance(items, Dataset) and isinstance(items, Sized):
        return [items[row] for row in range(len(items))]
    if not isinstance(items, Iterable):
        raise ValueError(f"{items!r}: give a dict with question and context, or a list of them")
    return list(items)


def _pair(item: Any) -> tuple[str, str]:
    """Question and context of a dict or an example."""
    if isinstance(item, SquadExample):
        return item.question_text, item.context_text
    if not isinstance(item, Mapping):
        raise ValueError(f"{item!r}: give a dict with question and context, or a SquadExample")
    for key in ("question", "context"):
        if key not in item:
            raise KeyError(f"give a dict with the keys question and context; {key} is missing")
        if not isinstance(item[key], str) or not item[key]:
            raise ValueError(f"{key}: must be a non-empty string, not {item[key]!r}")
    return item["question"], item["context"]


def _best_spans(
    start: Floats, end: Floats, allowed: npt.NDArray[np.bool_], options: _Options
) -> tuple[list[tuple[int, int, float]], float]:
    """Best spans of a window as (first token, last token, probability), best first; and the probability of
    "no answer", its first token. ``start``, ``end`` and ``allowed`` have shape (T,).
    """
    start, end = (_softmax(np.where(allowed, logits, OUTSIDE)) for logits in (start, end))
    null_score = float(start[0] * end[0])
    start[0] = end[0] = 0.0
    products = np.tril(np.triu(np.outer(start, end)), options.max_answer_len - 1)
    scores = products.ravel()
    # Several spans may be widened to the same words.
    count = options.top_k * 2 + 10 if options.align_to_words else options.top_k
    if count == 1:
        best = np.array([scores.argmax()])
    elif count >= len(scores):
        best = np.argsort(-scores)
    else:
        best = np.argpartition(-scores, count)[:count]
        best = best[np.argsort(-scores[best])]
    # The first token counts as text, whatever it is: its spans have probability 0 and come last.
    reachable = {0, *np.flatnonzero(allowed).tolist()}
    pairs = zip(*(axis.tolist() for axis in np.unravel_index(best, products.shape)), strict=True)
    spans = [(s, e, float(products[s, e])) for s, e in pairs if s in reachable and e in reachable]
    return spans, null_score


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def _characters(encoding: Encoding, first: int, last: int, part: int, align: bool) -> tuple[int, int]:
    """Character offsets of tokens ``first`` to ``last`` in the text, sequence ``part`` of the pair."""
    if align:
        words = [encoding.token_to_word(token) for token in (first, last)]
        spans = [None if word is None else encoding.word_to_chars(word, part) for word in words]
        if spans[0] and spans[1]:  # special tokens belong to no word, and some tokenizers have none
            return spans[0][0], spans[1][1]
    return encoding.offsets[first][0], encoding.offsets[last][1]


def _best(answers: Iterable[Answer], null_score: float, options: _Options) -> Any:
    """Best ``top_k`` answers of a question; not a list if there is exactly one."""
    ranked = list(answers)
    if options.handle_impossible_answer:
        ranked.append({"score": null_score, "start": 0, "end": 0, "answer": ""})
    ranked = sorted(ranked, key=lambda answer: answer["score"], reverse=True)[: options.top_k]
    return ranked[0] if len(ranked) == 1 else ranked


def _device(device: int | str | torch.device | None, model: Any) -> torch.device:
    """Resolve ``device``; None is the first accelerator, else the CPU."""
    if isinstance(device, str | torch.device):
        return torch.device(device)
    if device == -1:
        return device_of(model)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if accelerator is None else torch.device(accelerator.type, device or 0)

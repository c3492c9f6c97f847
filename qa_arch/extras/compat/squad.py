"""``transformers.data.processors.squad`` of transformers 4: files to examples, examples to features.

Names, arguments and values are those of 4.57.6 (data/processors/squad.py) with slow tokenizers, the only ones
it supported; here the tokenizers of transformers 5 reproduce them. The end of the question is read from the
tokenizer's own template, so that positions are right for every model with two separators, not only for a
hard-coded list.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from transformers import PreTrainedTokenizerBase, RobertaTokenizer

from qa_arch.features.windows import Special, Template, has_segment_ids, probe

FIRST_UNIQUE_ID = 1000000000
_WORD = re.compile("[^ \t\r\n\u202f]+")
log = logging.getLogger(__name__)


class SquadExample:
    """A question about a text.

    ``doc_tokens`` are the whitespace-separated words of the text; ``char_to_word_offset`` maps each character
    to its word, or to the last word before it (-1 if there is none). ``start_position`` and ``end_position``
    are the first and last word of the answer, 0 without one. Raises IndexError for an answer that starts
    after the end of the text.
    """

    def __init__(
        self,
        qas_id: Any,
        question_text: str,
        context_text: str,
        answer_text: str | None,
        start_position_character: int | None,
        title: str | None,
        answers: Sequence[dict[str, Any]] = (),
        is_impossible: bool = False,
    ) -> None:
        self.qas_id, self.question_text, self.context_text = qas_id, question_text, context_text
        self.answer_text, self.title = answer_text, title
        self.answers, self.is_impossible = list(answers), is_impossible
        words = list(_WORD.finditer(context_text))
        starts = {word.start() for word in words}
        self.doc_tokens = [word[0] for word in words]
        is_start = (offset in starts for offset in range(len(context_text)))
        self.char_to_word_offset = list(accumulate(is_start, initial=-1))[1:]
        self.start_position = self.end_position = 0
        if start_position_character is not None and not is_impossible:
            last = start_position_character + len(answer_text or "") - 1
            self.start_position = self.char_to_word_offset[start_position_character]
            self.end_position = self.char_to_word_offset[min(last, len(self.char_to_word_offset) - 1)]


@dataclass
class SquadFeatures:
    """Question followed by a window of the text; all lists except ``tokens`` are padded."""

    input_ids: list[int]
    attention_mask: list[int]
    token_type_ids: list[int]
    cls_index: int
    p_mask: list[int]
    """0 where the answer can be and at [CLS], else 1."""
    example_index: int
    unique_id: int
    paragraph_len: int
    """Tokens of the text in this window."""
    token_is_max_context: dict[int, bool]
    """Token of the text -> whether no other window gives it more context."""
    tokens: list[str]
    """Without padding."""
    token_to_orig_map: dict[int, int]
    """Token of the text -> its word in ``SquadExample.doc_tokens``."""
    start_position: int
    end_position: int
    """First and last token of the answer, inclusive; ``cls_index`` if the window does not contain it, 0 in
    evaluation and for unanswerable questions."""
    is_impossible: bool
    qas_id: Any = None
    encoding: Any = None


class SquadResult:
    """Start and end logits of the window ``unique_id``, as plain lists."""

    def __init__(
        self,
        unique_id: int,
        start_logits: Sequence[float],
        end_logits: Sequence[float],
        start_top_index: Sequence[int] | None = None,
        end_top_index: Sequence[int] | None = None,
        cls_logits: float | None = None,
    ) -> None:
        self.unique_id, self.start_logits, self.end_logits = unique_id, start_logits, end_logits
        if start_top_index:
            self.start_top_index, self.end_top_index = start_top_index, end_top_index
            self.cls_logits = cls_logits


class SquadProcessor:
    """Reads the official files; ``SquadV1Processor`` and ``SquadV2Processor`` define their names."""

    train_file: str | None = None
    dev_file: str | None = None

    def get_train_examples(self, data_dir: str | None, filename: str | None = None) -> list[SquadExample]:
        """Read the training file; each question is labelled with its first gold answer.

        Raises OSError for a missing file, ValueError for invalid JSON, KeyError for another layout.
        """
        return self._read(data_dir, filename or self.train_file, training=True)

    def get_dev_examples(self, data_dir: str | None, filename: str | None = None) -> list[SquadExample]:
        """Read the dev file with all gold answers; raises like ``get_train_examples``."""
        return self._read(data_dir, filename or self.dev_file, training=False)

    def _read(self, data_dir: str | None, filename: str | None, *, training: bool) -> list[SquadExample]:
        if filename is None:
            raise ValueError("no file name: use SquadV1Processor or SquadV2Processor, or pass filename")
        articles = json.loads((Path(data_dir or "") / filename).read_text(encoding="utf-8"))["data"]
        examples = []
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    impossible = question.get("is_impossible", False)
                    golds = [] if impossible else question["answers"]
                    label = golds[0] if training and not impossible else {}
                    examples.append(
                        SquadExample(
                            question["id"],
                            question["question"],
                            paragraph["context"],
                            label.get("text"),
                            label.get("answer_start"),
                            article["title"],
                            [] if training else golds,
                            impossible,
                        )
                    )
        return examples


class SquadV1Processor(SquadProcessor):
    """SQuAD 1.1."""

    train_file = "train-v1.1.json"
    dev_file = "dev-v1.1.json"


class SquadV2Processor(SquadProcessor):
    """SQuAD 2.0."""

    train_file = "train-v2.0.json"
    dev_file = "dev-v2.0.json"


def squad_convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    padding_strategy: str | bool = "max_length",
    return_dataset: str | bool = False,
    threads: int = 1,
    tqdm_enabled: bool = True,
) -> Any:
    """Cut all examples into windows; with ``return_dataset="pt"`` return them and a ``TensorDataset`` too.

    A window has ``max_seq_length`` tokens, ``doc_stride`` is the step between the windows of a text, and
    questions are truncated to ``max_query_length`` tokens. ``padding_strategy`` pads to ``max_seq_length`` if
    it is "max_length", else not at all. ``threads`` and ``tqdm_enabled`` have no effect.

    Examples with a blank text or, in training, without their answer in it are skipped: they have no windows
    and do not count in ``example_index``. Raises ValueError for another ``return_dataset``, lengths that
    leave no room for the text, and a tokenizer that pads on the left.
    """
    if return_dataset not in (False, "pt"):
        raise ValueError(f"return_dataset={return_dataset!r}: transformers 5 has no TensorFlow; use 'pt'")
    if tokenizer.padding_side != "right":
        raise ValueError("windows must be padded on the right: set tokenizer.padding_side = 'right'")
    windows = _Windows(
        tokenizer=tokenizer,
        template=probe(tokenizer, has_segment_ids(tokenizer)),
        special=frozenset(tokenizer.all_special_ids),
        length=max_seq_length,
        step=doc_stride,
        question_length=max_query_length,
        padded_length=max_seq_length if padding_strategy == "max_length" else 0,
    )
    features: list[SquadFeatures] = []
    number = 0
    for example in examples:
        before = len(features)
        for feature in windows.of(example, is_training):
            feature.example_index, feature.unique_id = number, FIRST_UNIQUE_ID + len(features)
            features.append(feature)
        number += len(features) > before
    return (features, _dataset(features, is_training)) if return_dataset else features


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """Cuts texts into windows; lengths in tokens."""

    tokenizer: PreTrainedTokenizerBase
    template: Template
    special: frozenset[int]
    length: int
    step: int
    question_length: int
    """Maximum number of question tokens."""
    padded_length: int
    """Length to pad to; 0: no padding."""
    pieces_of: dict[str, list[str]] = field(default_factory=dict)
    """Cache, word -> pieces: words recur, and tokenizer calls are slow."""

    def of(self, example: SquadExample, training: bool) -> Iterator[SquadFeatures]:
        """Windows of ``example``; none, and a warning, if its answer is not at its offset."""
        labelled = training and not example.is_impossible
        if labelled and not _contains_answer(example):
            log.warning(
                "%s: the answer %r is not at its offset; example skipped", example.qas_id, example.answer_text
            )
            return
        tokenizer, template = self.tokenizer, self.template
        pieces = [(piece, n) for n, word in enumerate(example.doc_tokens) for piece in self._pieces(word)]
        answer = self._answer(example, pieces) if labelled else None
        ids = tokenizer.convert_tokens_to_ids([piece for piece, _ in pieces])
        question = tokenizer.encode(
            example.question_text, add_special_tokens=False, truncation=True, max_length=self.question_length
        )
        query = [Special(id_, template.question_segment) for id_ in question]
        head = [*template.before, *query, *template.between]
        spans = self._spans(len(ids), len(question))
        for begin, end in spans:
            body = [Special(id_, template.context_segment) for id_ in ids[begin:end]]
            window = [*head, *body, *template.after]
            padding = self.padded_length - len(window)
            input_ids = [token.id for token in window] + [template.pad] * padding
            cls_index = input_ids.index(tokenizer.cls_token_id)
            shift = len(head) - begin
            first, last = (cls_index, cls_index) if labelled else (0, 0)
            if contained := answer is not None and begin <= answer[0] and answer[1] < end:
                first, last = answer[0] + shift, answer[1] + shift
            text = range(begin, end)
            yield SquadFeatures(
                input_ids=input_ids,
                attention_mask=[1] * len(window) + [0] * padding,
                token_type_ids=[token.segment * template.segments for token in window] + [0] * padding,
                cls_index=cls_index,
                p_mask=[
                    int(t != cls_index and (t < len(head) or id_ in self.special))
                    for t, id_ in enumerate(input_ids)
                ],
                example_index=0,
                unique_id=0,
                paragraph_len=end - begin,
                token_is_max_context={n + shift: _max_context(spans, n) == (begin, end) for n in text},
                tokens=tokenizer.convert_ids_to_tokens([token.id for token in window]),
                token_to_orig_map={n + shift: pieces[n][1] for n in text},
                start_position=first,
                end_position=last,
                is_impossible=example.is_impossible or (labelled and not contained),
                qas_id=example.qas_id,
            )

    def _pieces(self, word: str) -> list[str]:
        """Pieces of a word inside a text; RoBERTa's tokenizer needs the space before it."""
        if word not in self.pieces_of:
            needs_space = isinstance(self.tokenizer, RobertaTokenizer) and not word[0].isspace()
            self.pieces_of[word] = self.tokenizer.tokenize(f" {word}" if needs_space else word)
        return self.pieces_of[word]

    def _answer(self, example: SquadExample, pieces: Sequence[tuple[str, int]]) -> tuple[int, int]:
        """First and last piece of the answer: those of its words, narrowed to the answer's own pieces."""
        words = [number for _, number in pieces]
        first = bisect_left(words, example.start_position)
        last = bisect_left(words, example.end_position + 1) - 1
        target = " ".join(self.tokenizer.tokenize(example.answer_text))
        for start in range(first, last + 1):
            for end in range(last, start - 1, -1):
                if " ".join(piece for piece, _ in pieces[start : end + 1]) == target:
                    return start, end
        return first, last

    def _spans(self, text_length: int, question_length: int) -> list[tuple[int, int]]:
        """First and last piece (exclusive) of each window of a text; lengths in pieces."""
        room = self.length - question_length - self.template.specials
        if room < 1 or self.step < 1:
            raise ValueError(
                f"max_seq_length={self.length} and doc_stride={self.step}: no window of the text fits"
            )
        spans = []
        for begin in range(0, text_length, self.step):
            spans.append((begin, min(begin + room, text_length)))
            if begin + room >= text_length:
                break
        return spans


def _contains_answer(example: SquadExample) -> bool:
    """Whether the words at the answer's offset contain its text."""
    words = example.doc_tokens[example.start_position : example.end_position + 1]
    return " ".join((example.answer_text or "").split()) in " ".join(words)


def _max_context(spans: Sequence[tuple[int, int]], token: int) -> tuple[int, int]:
    """The window in which ``token`` has the most context on its poorer side; the first on ties."""
    return max(
        (span for span in spans if span[0] <= token < span[1]),
        key=lambda span: min(token - span[0], span[1] - 1 - token) + 0.01 * (span[1] - span[0]),
    )


def _dataset(features: Sequence[SquadFeatures], training: bool) -> TensorDataset:
    """Tensors of ``N`` windows with ``T`` tokens: (N, T) ids, attention mask and segment ids; (N,) start and
    end positions (training) or row of the window (else); (N,) position of [CLS]; (N, T) mask of tokens that
    cannot be in an answer; in training (N,) whether the window is unanswerable."""

    def column(name: str, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor([getattr(feature, name) for feature in features], dtype=dtype)

    inputs = [column(name) for name in ("input_ids", "attention_mask", "token_type_ids")]
    cls_and_mask = [column("cls_index"), column("p_mask", torch.float)]
    if not training:
        return TensorDataset(*inputs, torch.arange(len(features)), *cls_and_mask)
    labels = [column("start_position"), column("end_position")]
    return TensorDataset(*inputs, *labels, *cls_and_mask, column("is_impossible", torch.float))

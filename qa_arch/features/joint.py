"""Example -> windows of word pieces: ``[CLS] question [SEP] part of the passage [SEP]``.

The windows equal those of ``tokenizer(question, context, truncation="only_second", stride=...,
return_overflowing_tokens=True)``, but each passage is tokenised only once for all its questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from qa_arch.errors import ConfigError
from qa_arch.features.table import Bools, FeatureTable, Ints, Longs
from qa_arch.features.template import backend_of, name_of, probe
from qa_arch.features.texts import TokenColumns, tokenize
from qa_arch.features.windows import assemble
from qa_arch.types.text import Example, QuestionSet

MOST_SPECIALS = 4
"""Special tokens of the longest common template (RoBERTa: ``<s> q </s></s> c </s>``)."""


def check_lengths(max_length: int, stride: int, max_question: int, specials: int = MOST_SPECIALS) -> None:
    """Raise ConfigError if windows of these lengths (tokens) cannot advance through a passage.

    ``stride`` is the overlap of neighbouring windows, as in the fast tokenizers and the common scripts,
    not the step between them.
    """
    if max_question < 1:
        raise ConfigError(f"features.max_question={max_question}: a question needs at least 1 token")
    if stride < 0:
        raise ConfigError(f"features.stride={stride}: the overlap of windows cannot be negative")
    room = max_length - max_question - specials
    if room < 1:
        raise ConfigError(
            f"features.max_length={max_length} leaves no room for the passage beside max_question="
            f"{max_question} and {specials} special tokens: raise max_length or lower max_question"
        )
    if stride >= room:
        raise ConfigError(
            f"features.stride={stride} (the overlap of neighbouring windows) must be below {room} = "
            f"max_length - max_question - special tokens = {max_length} - {max_question} - {specials}"
        )


def prepare(
    questions: QuestionSet,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int = 384,
    stride: int = 128,
    max_question: int = 64,
    segments: bool,
) -> FeatureTable:
    """Tokenise ``questions`` and split every passage into windows of at most ``max_length`` tokens.

    ``stride`` is the overlap of neighbouring windows in tokens. Questions are stripped on the left and cut
    at ``max_question`` tokens; passages are never changed. ``segments``: the encoder has segment ids.
    Raises ConfigError for inconsistent lengths, and for tokenizers without offsets or whose encoding of a
    pair is not composed of its parts.
    """
    template = probe(tokenizer, segments)
    check_lengths(max_length, stride, max_question, template.specials)
    texts, question_text, context_text = _distinct(questions)
    columns = tokenize(texts, backend_of(tokenizer))
    full_length = np.diff(columns.text_offsets)[question_text]
    question_length = np.minimum(full_length, max_question).astype(np.int32)
    room = max_length - template.specials - question_length
    example, token_start, token_end = _windows(columns.text_offsets, context_text, room, stride)
    context_at = (question_length + len(template.before) + len(template.between))[example]
    gold = _gold_tokens(questions, columns, context_text)
    labels = _label(gold, example, token_start, token_end, context_at)
    labelled = np.zeros(len(questions), bool)
    labelled[example[labels.answerable]] = True
    answerable = np.fromiter((e.answerable for e in questions.examples), bool, len(questions))
    table = FeatureTable(
        template=template,
        **{name: getattr(columns, name) for name in TokenColumns.__slots__},
        example=example.astype(np.int32),
        question_text=question_text[example],
        context_text=context_text[example],
        question_length=question_length[example],
        token_start=token_start,
        token_end=token_end,
        label_start=labels.start,
        label_end=labels.end,
        answerable=labels.answerable,
        truncated_questions=int((full_length > max_question).sum()),
        lost_answers=int((answerable & ~labelled).sum()),
    )
    _check_against_tokenizer(tokenizer, questions, table)
    return table


def _distinct(questions: QuestionSet) -> tuple[list[str], Ints, Ints]:
    """Distinct texts, and for every example the index of its question and of its passage."""
    texts: dict[str, int] = {}
    size = len(questions)
    context = [texts.setdefault(e.context, len(texts)) for e in questions.examples]
    question = [texts.setdefault(e.question.lstrip(), len(texts)) for e in questions.examples]
    return list(texts), np.fromiter(question, np.int32, size), np.fromiter(context, np.int32, size)


def _windows(offsets: Longs, context: Ints, room: Ints, stride: int) -> tuple[Longs, Longs, Longs]:
    """(example, token_start, token_end) of all windows: ``room`` tokens each, overlapping by ``stride``."""
    begin, end = offsets[context], offsets[context + 1]
    step = room - stride
    excess = np.maximum(end - begin - room, 0)
    count = 1 + -(-excess // step)
    example = np.repeat(np.arange(len(context)), count)
    nth = np.arange(len(example)) - np.repeat(np.cumsum(count) - count, count)
    token_start = begin[example] + nth * step[example]
    return example, token_start, np.minimum(token_start + room[example], end[example])


def _gold_tokens(questions: QuestionSet, columns: TokenColumns, context: Ints) -> tuple[Longs, Longs]:
    """First and last token (rows of the columns) of each example's first answer; (0, -1) for none.

    Widened to whole tokens: the first token that ends after the answer begins, the last one that begins
    before it ends. Tokens of zero width are ignored.
    """
    first, last = np.zeros(len(context), np.int64), np.full(len(context), -1)
    rows = np.array([i for i, e in enumerate(questions.examples) if e.answers], np.int64)
    if not len(rows):
        return first, last
    golds = [questions.examples[i].answers[0] for i in rows.tolist()]
    start = np.fromiter((gold.start for gold in golds), np.int64, len(golds))
    end = np.fromiter((gold.end for gold in golds), np.int64, len(golds))
    # One character axis for all texts: text x begins at x * span, after the end of text x - 1.
    span = max(int(columns.char_end.max()), int(end.max())) + 1
    begin = context[rows] * np.int64(span)
    owner = np.repeat(np.arange(len(columns.text_offsets) - 1), np.diff(columns.text_offsets)) * span
    visible = np.flatnonzero(columns.char_end > columns.char_start)
    # Running extremes keep both searches exact even where offsets repeat or overlap, as for a character
    # that is split into several byte-level pieces.
    token_end = np.maximum.accumulate(owner[visible] + columns.char_end[visible])
    token_start = np.minimum.accumulate((owner[visible] + columns.char_start[visible])[::-1])[::-1]
    low = np.searchsorted(token_end, begin + start, side="right")
    high = np.searchsorted(token_start, begin + end, side="left") - 1
    inside = low <= high
    first[rows[inside]] = visible[low[inside]]
    last[rows[inside]] = visible[high[inside]]
    return first, last


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    start: Ints
    end: Ints
    answerable: Bools


def _label(
    gold: tuple[Longs, Longs], example: Longs, token_start: Longs, token_end: Longs, context_at: Ints
) -> _Labels:
    """Gold tokens on the axis of each window; a window without the whole gold is unanswerable."""
    first, last = gold[0][example], gold[1][example]
    inside = (first <= last) & (first >= token_start) & (last < token_end)
    start = np.where(inside, first - token_start + context_at, 0)
    end = np.where(inside, last - token_start + context_at, 0)
    return _Labels(start.astype(np.int32), end.astype(np.int32), inside)


def _check_against_tokenizer(
    tokenizer: PreTrainedTokenizerBase, questions: QuestionSet, table: FeatureTable
) -> None:
    """Compare a few examples with the tokenizer's own encoding of the pair; ConfigError if they differ.

    Of the uncut pair: tokenizers before 0.23.3 overlap the parts of a pair by less than the stride.
    """
    counts = np.bincount(table.example, minlength=len(questions))
    chosen = {0, len(questions) - 1, int(counts.argmax())} if len(questions) else set()
    for number in sorted(chosen):
        example: Example = questions.examples[number]
        rows = np.flatnonzero(table.example == number)
        text = table.question_text[rows[0]]
        full_length = int(table.text_offsets[text + 1] - table.text_offsets[text])
        if full_length > table.question_length[rows[0]] or not (example.question.strip() and example.context):
            continue  # the tokenizer does not truncate questions or pair empty texts
        pair = tokenizer(example.question.lstrip(), example.context, truncation=False, verbose=False)
        expected = _cut(pair["input_ids"], table, rows)
        window = assemble(table, rows)
        assembled = [ids[mask].tolist() for ids, mask in zip(window.ids, window.mask, strict=True)]
        if assembled != expected:
            raise ConfigError(
                f"{name_of(tokenizer)} encodes question {example.id!r} with its passage differently from "
                "the two alone, so windows cannot be cut: choose another encoder or report its tokenizer"
            )


def _cut(pair: list[int], table: FeatureTable, rows: Longs) -> list[list[int]]:
    """The windows ``rows`` of an example, cut out of the ids of its whole pair."""
    template, first, text = table.template, rows[0], table.context_text[rows[0]]
    begin = len(template.before) + int(table.question_length[first]) + len(template.between)
    offset = begin - int(table.text_offsets[text])
    after = pair[offset + int(table.text_offsets[text + 1]) :]
    return [
        [
            *pair[:begin],
            *pair[offset + int(table.token_start[row]) : offset + int(table.token_end[row])],
            *after,
        ]
        for row in rows
    ]

"""Example -> windows of word pieces: ``[CLS] question [SEP] part of the passage [SEP]``.

The windows equal those of ``tokenizer(question, context, truncation="only_second", stride=...,
return_overflowing_tokens=True)``, but each passage is tokenised only once for all its questions. They are
stored unpadded, in flat arrays: a window is a row that refers to a question and to a slice of a passage, and
``assemble`` joins the two.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qa_arch.errors import ConfigError
from qa_arch.features.words import Bools, Ints, Longs, TokenColumns, backend_of, name_of, tokenize, unlimited
from qa_arch.metrics.squad import Normalised, best_overlap
from qa_arch.types import QuestionSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Special(NamedTuple):
    """Special token of the template."""

    id: int
    segment: int


@dataclass(frozen=True, slots=True)
class Template:
    """Special tokens around a question and a passage: ``before q between c after``."""

    before: tuple[Special, ...]
    between: tuple[Special, ...]
    after: tuple[Special, ...]
    question_segment: int
    context_segment: int
    pad: int
    segments: bool
    """False for encoders without segment ids (``type_vocab_size <= 1``)."""

    @property
    def specials(self) -> int:
        """Number of special tokens per window."""
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable(TokenColumns):
    """All ``N`` windows of a question set, ordered by example, then by position in the passage."""

    template: Template
    example: Ints
    """(N,) row of the window's question in its set."""
    question_text: Ints
    """(N,) index of the question's text."""
    context_text: Ints
    """(N,) index of the passage's text."""
    question_length: Ints
    """(N,) tokens of the question, at most ``max_question``."""
    token_start: Longs
    """(N,) first context token of the window, an index into the token columns."""
    token_end: Longs
    """(N,) end of the window's context tokens, exclusive."""
    label_start: Ints
    """(N,) first token of the gold answer, as a position in the assembled window; 0 if not answerable."""
    label_end: Ints
    """(N,) last token of the gold answer (inclusive); 0 if not answerable."""
    answerable: Bools
    """(N,) True if the window contains the whole gold answer."""

    truncated_questions: int = 0
    """Number of questions truncated to ``max_question`` tokens."""
    lost_answers: int = 0
    """Number of answerable questions without a window that contains the whole gold answer."""

    def __len__(self) -> int:
        return len(self.example)

    @property
    def context_at(self) -> Ints:
        """(N,) position of the first context token in the assembled window.

        Position ``t`` of window ``n`` is token ``token_start[n] + t - context_at[n]`` of the columns.
        """
        return self.question_length + np.int32(len(self.template.before) + len(self.template.between))

    def long_answers(self, most: int) -> int:
        """Number of questions whose gold answer has more than ``most`` tokens."""
        too_long = self.answerable & (self.label_end - self.label_start >= most)
        return len(np.unique(self.example[too_long]))

    @property
    def question_cut(self) -> Ints:
        """(N,) tokens of the question that the window leaves out."""
        full_length = np.diff(self.text_offsets)[self.question_text]
        return (full_length - self.question_length).astype(np.int32)

    @property
    def lengths(self) -> Ints:
        """(N,) tokens of each assembled window, special tokens included."""
        context = (self.token_end - self.token_start).astype(np.int32)
        return self.question_length + context + np.int32(self.template.specials)

    @property
    def largest_id(self) -> int:
        """Largest token id of all windows, including special tokens and padding."""
        template = self.template
        specials = [token.id for token in (*template.before, *template.between, *template.after)]
        return max(int(self.ids.max()), template.pad, *specials)


def check_ids(table: FeatureTable, vocab_size: int, encoder: str) -> None:
    """Raise ConfigError if a window contains an id without an embedding in ``encoder``.

    Unused ids are ignored: some published tokenizers have a few more than their encoder.
    """
    if table.largest_id >= vocab_size:
        raise ConfigError(
            f"{encoder} has {vocab_size} token embeddings, but its tokenizer"
            f" produces id {table.largest_id}: put the encoder's own tokenizer next to its weights"
        )


def array_names() -> tuple[str, ...]:
    """Array fields of FeatureTable."""
    not_arrays = {"template", "vocabulary", "truncated_questions", "lost_answers"}
    return tuple(f.name for f in fields(FeatureTable) if f.name not in not_arrays)


def check_lengths(max_length: int, stride: int, max_question: int, specials: int) -> None:
    """Raise ConfigError if windows of these lengths (in tokens) cannot advance through a passage.

    As in the fast tokenizers, ``stride`` is the overlap of neighbouring windows, not the step between them.
    """
    room = max_length - max_question - specials
    if max_question < 1 or not 0 <= stride < room:
        raise ConfigError(
            f"features: max_length={max_length} leaves {room} tokens for the passage after max_question="
            f"{max_question} and {specials} special tokens; max_question must be at least 1, stride={stride}"
            f" (the overlap of neighbouring windows) at least 0 and below {room}"
        )


def check_window(max_length: int, limit: int | None, reader: str) -> None:
    """Raise ConfigError if windows are longer than the ``limit`` of ``reader`` (None: it has none)."""
    if limit is not None and max_length > limit:
        raise ConfigError(
            f"features.max_length: {max_length} is more than the {limit} tokens that {reader} can read"
        )


def prepare(
    questions: QuestionSet,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int = 384,
    stride: int = 128,
    max_question: int = 64,
    segments: bool,
    longest_question: int = 0,
    longest_window: int = 0,
) -> FeatureTable:
    """Tokenise ``questions`` and split every passage into windows of at most ``max_length`` tokens.

    ``stride`` is the overlap of neighbouring windows in tokens. Questions are stripped on the left and
    truncated to ``max_question`` tokens; passages are never changed. ``segments``: the encoder has segment
    ids. ``longest_question`` is a higher limit of questions, whose windows grow by what they exceed
    ``max_question``, up to ``longest_window`` tokens; other windows stay the same.

    Raises ConfigError for inconsistent lengths, and for tokenizers without offsets or that do not encode
    a pair as the concatenation of its texts.
    """
    template = probe(tokenizer, segments)
    check_lengths(max_length, stride, max_question, template.specials)
    texts, context_text, question_text = _distinct(questions)
    columns = tokenize(texts, backend_of(tokenizer))
    full_length = np.diff(columns.text_offsets)[question_text]
    question_length = np.minimum(full_length, max(max_question, longest_question)).astype(np.int32)
    # A question above the limit takes no room from its passage: its windows grow instead.
    grown = np.minimum(max_length + np.maximum(question_length - max_question, 0), longest_window)
    room = np.maximum(grown, max_length).astype(np.int32) - template.specials - question_length
    example, token_start, token_end = _windows(columns.text_offsets, context_text, room, stride)
    context_at = (question_length + len(template.before) + len(template.between))[example]
    gold = _gold_tokens(questions, columns, context_text)
    label_start, label_end, has_answer = _label(gold, example, token_start, token_end, context_at)
    labelled = np.zeros(len(questions), bool)
    labelled[example[has_answer]] = True
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
        label_start=label_start,
        label_end=label_end,
        answerable=has_answer,
        truncated_questions=int((full_length > question_length).sum()),
        lost_answers=int((answerable & ~labelled).sum()),
    )
    _check_against_tokenizer(tokenizer, questions, table)
    return table


def _distinct(questions: QuestionSet) -> tuple[list[str], Ints, Ints]:
    """Distinct texts of a set, to be tokenised once each (some five questions share a paragraph), and the
    number of each question's passage and of its own text, stripped on the left."""
    number: dict[str, int] = {}
    contexts = [number.setdefault(e.context, len(number)) for e in questions.examples]
    # As in run_qa: white space before a question, which some of SQuAD have, takes room from the passage.
    own = [number.setdefault(e.question.lstrip(), len(number)) for e in questions.examples]
    return list(number), np.array(contexts, np.int32), np.array(own, np.int32)


def _windows(offsets: Longs, context: Ints, room: Ints, stride: int) -> tuple[Longs, Longs, Longs]:
    """(example, token_start, token_end) of all windows: ``room`` tokens each, overlapping by ``stride``."""
    begin, end = offsets[context], offsets[context + 1]
    step = room - stride
    excess = np.maximum(end - begin - room, 0)
    count = 1 + -(-excess // step)
    example = np.repeat(np.arange(len(context)), count)
    nth = np.arange(len(example)) - np.repeat(np.cumsum(count) - count, count)  # 0, 1, ... for each example
    token_start = begin[example] + nth * step[example]
    return example, token_start, np.minimum(token_start + room[example], end[example])


def _gold_tokens(questions: QuestionSet, columns: TokenColumns, context: Ints) -> tuple[Longs, Longs]:
    """First and last token (rows of the columns) of each example's first located answer; (0, -1) without one.

    Answers are widened to whole tokens: from the first token that ends after the answer begins to the last
    one that begins before it ends. Zero-width tokens are ignored.
    """
    first, last = np.zeros(len(context), np.int64), np.full(len(context), -1)
    located = {i: gold for i, e in enumerate(questions.examples) if (gold := e.located)}
    if not located:
        return first, last
    rows, golds = np.array([*located], np.int64), located.values()
    start = np.fromiter((gold.start for gold in golds), np.int64, len(golds))
    end = np.fromiter((gold.end for gold in golds), np.int64, len(golds))
    # One character axis for all texts: text x begins at x * span, after the end of text x - 1.
    span = max(int(columns.char_end.max()), int(end.max())) + 1
    begin = context[rows] * np.int64(span)
    owner = np.repeat(np.arange(len(columns.text_offsets) - 1), np.diff(columns.text_offsets)) * span
    visible = np.flatnonzero(columns.char_end > columns.char_start)
    # Running extremes keep both searches exact even if offsets repeat or overlap, as for a character that
    # is split into several byte-level pieces.
    token_end = np.maximum.accumulate(owner[visible] + columns.char_end[visible])
    token_start = np.minimum.accumulate((owner[visible] + columns.char_start[visible])[::-1])[::-1]
    low = np.searchsorted(token_end, begin + start, side="right")
    high = np.searchsorted(token_start, begin + end, side="left") - 1
    inside = low <= high
    first[rows[inside]] = visible[low[inside]]
    last[rows[inside]] = visible[high[inside]]
    return first, last


def _label(
    gold: tuple[Longs, Longs], example: Longs, token_start: Longs, token_end: Longs, context_at: Ints
) -> tuple[Ints, Ints, Bools]:
    """(start, end, answerable) per window: gold positions, 0 if it lacks any part of the gold answer."""
    first, last = gold[0][example], gold[1][example]
    inside = (first <= last) & (first >= token_start) & (last < token_end)
    start = np.where(inside, first - token_start + context_at, 0)
    end = np.where(inside, last - token_start + context_at, 0)
    return start.astype(np.int32), end.astype(np.int32), inside


def _check_against_tokenizer(
    tokenizer: PreTrainedTokenizerBase, questions: QuestionSet, table: FeatureTable
) -> None:
    """Raise ConfigError if windows of a few examples differ from the tokenizer's own encoding of the pair.

    The pair is encoded untruncated, as tokenizers before 0.23.3 overlap windows by less than the stride.
    """
    counts = np.bincount(table.example, minlength=len(questions))
    for number in {0, len(questions) - 1, int(counts.argmax())} if len(questions) else ():
        example, rows = questions.examples[number], np.flatnonzero(table.example == number)
        first, text = rows[0], table.question_text[rows[0]]
        if np.diff(table.text_offsets)[text] > table.question_length[first] or not (
            example.question.strip() and example.context
        ):
            continue  # the tokenizer does not truncate questions or pair empty texts
        pair = tokenizer(example.question.lstrip(), example.context, truncation=False, verbose=False)
        ids, begin = pair["input_ids"], int(table.context_at[first])
        at = begin - int(table.text_offsets[table.context_text[first]])
        after = ids[at + int(table.text_offsets[table.context_text[first] + 1]) :]
        bounds = zip(table.token_start[rows].tolist(), table.token_end[rows].tolist(), strict=True)
        expected = [[*ids[:begin], *ids[at + start : at + end], *after] for start, end in bounds]
        window = assemble(table, rows)
        if [row[mask].tolist() for row, mask in zip(window.ids, window.mask, strict=True)] != expected:
            raise ConfigError(
                f"{name_of(tokenizer)} encodes question {example.id!r} and its passage differently as a pair"
                " than separately, so windows cannot be built: choose another encoder or report its tokenizer"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Padded windows of a table. Axes: ``B`` windows, ``T`` tokens; see ``Batch``."""

    ids: Longs
    mask: Bools
    segments: Longs | None
    question: Bools
    context: Bools
    source: Longs
    """(B, T) row of each token in the table's token columns; -1 for special tokens and padding."""


def assemble(table: FeatureTable, rows: Longs, width: int | None = None) -> Window:
    """Assemble windows ``rows``, right-padded to ``width`` (default: the longest of them)."""
    template = table.template
    lengths = table.lengths[rows][:, None]
    position = np.arange(int(lengths.max()) if width is None else width)[None, :]
    context_at, question_length = table.context_at[rows][:, None], table.question_length[rows][:, None]
    context_length = (table.token_end - table.token_start)[rows][:, None]

    in_question = position - len(template.before)
    in_context = position - context_at
    question = (in_question >= 0) & (in_question < question_length)
    context = (in_context >= 0) & (in_context < context_length)
    # A question begins at its text's first token, a window anywhere in the passage.
    first = table.text_offsets[table.question_text[rows]][:, None]
    source = np.where(question, first + in_question, -1)
    source = np.where(context, table.token_start[rows][:, None] + in_context, source)

    # Source -1 reads an arbitrary token here, which the padding replaces.
    ids = np.where(source >= 0, table.ids[source], template.pad).astype(np.int64)
    segments = np.where(context, template.context_segment, np.where(question, template.question_segment, 0))
    special_groups = (
        (template.before, np.zeros_like(question_length)),
        (template.between, len(template.before) + question_length),
        (template.after, context_at + context_length),
    )
    for specials, begin in special_groups:
        for nth, special in enumerate(specials):
            np.put_along_axis(ids, begin + nth, special.id, axis=1)
            np.put_along_axis(segments, begin + nth, special.segment, axis=1)
    visible = table.char_end[source] > table.char_start[source]  # not the null row, at -1
    return Window(
        ids=ids,
        mask=position < lengths,
        segments=segments if template.segments else None,
        question=question,
        context=context & visible,
        source=source,
    )


def has_segment_ids(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether ``tokenizer`` itself produces segment ids for the context (RoBERTa's are all zero)."""
    with unlimited(backend_of(tokenizer)) as backend:
        return any(backend.encode("a", "b").type_ids)


def probe(tokenizer: PreTrainedTokenizerBase, segments: bool) -> Template:
    """Read the (question, context) template of ``tokenizer`` from an encoded pair.

    ``segments``: whether the encoder has segment ids (``type_vocab_size > 1``). They are the tokenizer's own,
    or 0 up to the separator and 1 after it if the tokenizer produces only zeros.
    Raises ConfigError for a slow tokenizer, one without a padding token, or another order of the pair.
    """
    with unlimited(backend_of(tokenizer)) as backend:
        pair = backend.encode("a", "b")
    parts = pair.sequence_ids
    if 0 not in parts or 1 not in parts or parts.index(0) > parts.index(1):
        raise ConfigError(f"{name_of(tokenizer)} does not encode a pair as question, then context")
    if tokenizer.pad_token_id is None:
        raise ConfigError(f"{name_of(tokenizer)} has no padding token: set tokenizer.pad_token")
    question, context = parts.index(0), parts.index(1)
    after_question = len(parts) - parts[::-1].index(0)
    after_context = len(parts) - parts[::-1].index(1)
    types = pair.type_ids
    if not any(types):
        types = [int(position >= context) for position in range(len(parts))]
    tokens = [Special(*token) for token in zip(pair.ids, types, strict=True)]
    return Template(
        before=tuple(tokens[:question]),
        between=tuple(tokens[after_question:context]),
        after=tuple(tokens[after_context:]),
        question_segment=types[question],
        context_segment=types[context],
        pad=tokenizer.pad_token_id,
        segments=segments,
    )


def position_of_cls(source: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """Index of [CLS] in every window. Raises ConfigError unless it precedes the question."""
    cls = tokenizer.cls_token_id
    before = [] if cls is None else [special.id for special in probe(tokenizer, segments=False).before]
    if cls not in before:
        raise ConfigError(
            f'{source}: its windows do not begin with a [CLS] token, whose score is that of "no answer"'
            f" ({name_of(tokenizer)}: cls_token is {tokenizer.cls_token!r}); models with [CLS] after the"
            " text (XLNet) or without it (decoders) cannot be read"
        )
    return before.index(cls)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Best possible scores with a tokenizer and a limit of answers: mean over the answerable questions, in
    percent."""

    exact: float
    f1: float
    lost: tuple[str, ...]
    """Ids of questions without a window that contains the whole gold; scored with an empty answer."""
    inexact: tuple[str, ...]
    """Ids of questions whose gold, widened to whole tokens and cut to the longest answer, is not an exact
    match."""


def ceiling(questions: QuestionSet, table: FeatureTable, max_answer_tokens: int | None = None) -> Ceiling:
    """Score the first gold answers as predictions: widened to the tokens labelled in ``table``, of which
    decoding finds at most the first ``max_answer_tokens``; None: all."""
    window = np.full(len(questions), -1)
    rows = np.flatnonzero(table.answerable)
    window[table.example[rows]] = rows  # any window will do: all hold the same gold tokens
    lost, inexact, exact, f1, normal = [], [], 0, 0.0, Normalised(questions.language)
    answerable = [number for number, example in enumerate(questions.examples) if example.answerable]
    for number in answerable:
        example, row = questions.examples[number], int(window[number])
        if row < 0:
            lost.append(example.id)
            continue
        golds = [normal[gold.text] for gold in example.answers]
        text = labelled_text(table, row, example.context, max_answer_tokens)
        best = best_overlap(normal[text], golds, "2.0")
        exact, f1 = exact + best.exact, f1 + best.f1
        if not best.exact:
            inexact.append(example.id)
    count = len(answerable) or 1
    return Ceiling(100 * exact / count, 100 * f1 / count, tuple(lost), tuple(inexact))


def labelled_text(table: FeatureTable, row: int, context: str, most: int | None = None) -> str:
    """Text of the tokens, or the first ``most``, labelled as the answer of the answerable window ``row``."""
    shift = int(table.token_start[row]) - int(table.context_at[row])
    first, last = shift + int(table.label_start[row]), shift + int(table.label_end[row])
    last = last if most is None else min(last, first + most - 1)
    return context[table.char_start[first] : table.char_end[last]]

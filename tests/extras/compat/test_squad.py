"""Examples and features: values recorded from transformers 4.57.6."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoints import make_tokenizer

from qa_arch.extras.compat import squad
from qa_arch.extras.compat.squad import SquadExample, squad_convert_examples_to_features
from qa_arch.features import tokenizers

TEXT = "Mira  paints\tred boats\u202fin Velmora."


def example(
    text: str = TEXT, answer: str | None = "red boats", start: int | None = 13, **more
) -> SquadExample:
    return SquadExample("q0", "who paints", text, answer, start, "t", **more)


def convert(examples, tokenizer=None, *, training=True, **options):
    pieces = ["mira", "paint", "##s", "red", "boat", "in", "vel", "##mora", ".", "who"]
    settings = {"max_seq_length": 12, "doc_stride": 4, "max_query_length": 8, **options}
    return squad_convert_examples_to_features(
        examples, tokenizer or tokenizers.wordpiece(pieces), is_training=training, **settings
    )


def test_words_of_an_example():
    words = example()
    assert words.doc_tokens == ["Mira", "paints", "red", "boats", "in", "Velmora."]
    assert words.char_to_word_offset[:8] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert (words.start_position, words.end_position) == (2, 3)
    assert SquadExample("q", "?", "\n x", None, None, "t").char_to_word_offset == [-1, -1, 0]
    assert (
        example(is_impossible=True).start_position,
        example(answer="Velmora.", start=26).end_position,
    ) == (0, 5)
    with pytest.raises(IndexError):
        example(start=99)


def test_windows_of_wordpiece():
    # mira paint ##s red boat ##s in vel ##mora . are ten pieces; 12 - 3 - 3 make room for six.
    first, second = convert([example()])
    assert " ".join(first.tokens) == "[CLS] who paint ##s [SEP] mira paint ##s red boat ##s [SEP]"
    assert " ".join(second.tokens) == "[CLS] who paint ##s [SEP] boat ##s in vel ##mora . [SEP]"
    assert first.token_type_ids == [0] * 5 + [1] * 7
    assert first.p_mask == [0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    assert first.token_to_orig_map == {5: 0, 6: 1, 7: 1, 8: 2, 9: 3, 10: 3}
    # "boat" has more context in the first window, the piece after it in the second.
    assert first.token_is_max_context == {5: True, 6: True, 7: True, 8: True, 9: True, 10: False}
    assert second.token_is_max_context == {5: False, 6: True, 7: True, 8: True, 9: True, 10: True}
    assert (first.start_position, first.end_position, first.is_impossible) == (8, 10, False)
    assert (second.start_position, second.end_position, second.is_impossible) == (0, 0, True)
    assert [(f.example_index, f.unique_id, f.paragraph_len) for f in (first, second)] == [
        (0, 1000000000, 6),
        (0, 1000000001, 6),
    ]


def test_answer_within_a_word_is_narrowed_to_its_pieces():
    [feature, *_] = convert([example(answer="boat", start=17)])
    assert (feature.start_position, feature.end_position) == (9, 9)


@pytest.mark.parametrize(("family", "separators"), [("bert", 1), ("roberta", 2), ("albert", 1), ("mpnet", 2)])
def test_context_starts_after_the_separators(family, separators):
    tokenizer = make_tokenizer(family, [TEXT, "who paints"])
    features = convert([example()], tokenizer, training=False, max_seq_length=64)
    assert len(features) == 1
    question = len(tokenizer.encode("who paints", add_special_tokens=False))
    first = min(features[0].token_to_orig_map)
    assert first == 1 + question + separators
    pieces = features[0].tokens[first:-1]
    assert (
        "".join(tokenizer.convert_tokens_to_string(pieces).split()).lower() == "".join(TEXT.split()).lower()
    )
    assert len(features[0].input_ids) == len(features[0].p_mask) == 64
    assert features[0].input_ids[-1] == tokenizer.pad_token_id
    if family == "roberta":
        assert pieces[0].startswith("Ġ")
        assert not any(features[0].token_type_ids)


def test_examples_without_windows_are_not_numbered():
    examples = [
        example(text=" \n", answer=None, start=None, is_impossible=True),
        example(answer="blue"),
        example(),
    ]
    features = convert(examples)
    assert {feature.example_index for feature in features} == {0}
    assert {feature.qas_id for feature in features} == {"q0"}


def test_tensor_dataset():
    features, data = convert([example(), example(is_impossible=True)], return_dataset="pt")
    assert [tuple(tensor.shape) for tensor in data.tensors] == [(4, 12)] * 3 + [(4,)] * 3 + [(4, 12), (4,)]
    assert data.tensors[3].tolist() == [8, 0, 0, 0]
    assert data.tensors[7].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert data.tensors[6].dtype == torch.float
    _, data = convert([example()], training=False, return_dataset="pt", threads=4, tqdm_enabled=False)
    assert len(data.tensors) == 6
    assert data.tensors[3].tolist() == [0, 1]
    assert len(features) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_dataset": "tf"}, "no TensorFlow"),
        ({"max_seq_length": 6}, "no window"),
        ({"doc_stride": 0}, "no window"),
    ],
)
def test_invalid_conversion_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        convert([example()], **options)


def test_padding():
    assert [len(feature.input_ids) for feature in convert([example()], max_seq_length=40)] == [40]
    assert [len(f.input_ids) for f in convert([example()], max_seq_length=40, padding_strategy=False)] == [16]
    tokenizer = make_tokenizer("bert", [TEXT])
    tokenizer.padding_side = "left"
    with pytest.raises(ValueError, match="padding_side = 'right'"):
        convert([example()], tokenizer)


def test_processors(tmp_path):
    golds = [{"text": "red", "answer_start": 13}, {"text": "red boats", "answer_start": 13}]
    questions = [
        {"id": "q0", "question": "What?", "answers": golds},
        {"id": "q1", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    data = {"data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": questions}]}]}
    for name in ("train-v2.0.json", "dev-v2.0.json", "own.json"):
        (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    processor = squad.SquadV2Processor()
    train, dev = processor.get_train_examples(tmp_path), processor.get_dev_examples(str(tmp_path))
    assert [(e.answer_text, e.start_position, e.answers, e.is_impossible) for e in train] == [
        ("red", 2, [], False),
        (None, 0, [], True),
    ]
    assert [(e.answer_text, e.answers) for e in dev] == [(None, golds), (None, [])]
    assert len(squad.SquadV1Processor().get_dev_examples(tmp_path, "own.json")) == 2
    with pytest.raises(FileNotFoundError):
        squad.SquadV1Processor().get_dev_examples(tmp_path)
    with pytest.raises(ValueError, match="use SquadV1Processor or"):
        squad.SquadProcessor().get_dev_examples(tmp_path)

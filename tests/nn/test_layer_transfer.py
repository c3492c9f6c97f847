"""Students initialised with layers of their teacher."""

import pytest
import torch
from families import EXTRA_FAMILIES, new_encoder

from qa_arch.errors import ConfigError
from qa_arch.nn.distillation import copy_layers

FAMILIES = ["bert", "roberta", "distilbert", "electra", *EXTRA_FAMILIES]


def tiny(family="bert", seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"layers": 4, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 20, "pad_token_id": 1}
    return new_encoder(family=family, **sizes | options).eval()


def layer_of(encoder, number):
    return dict(encoder.layers()[number].named_parameters())


def rest_of(encoder):
    inside = {id(parameter) for parameter in encoder.layers().parameters()}
    return {name: value for name, value in encoder.named_parameters() if id(value) not in inside}


def same(actual, expected):
    return all(torch.equal(value[: len(own)], own) for own, value in zip(actual, expected, strict=True))


@pytest.mark.parametrize(
    ("family", "which", "layers", "chosen"),
    [
        *((family, "every_other", 2, [0, 2]) for family in FAMILIES),
        ("bert", "first", 2, [0, 1]),
        ("bert", "every_other", 3, [0, 1, 2]),
    ],
)
def test_layers_and_embeddings_are_copied_from_the_teacher(family, which, layers, chosen):
    """The student has shorter windows and a smaller vocabulary: it takes the first rows of both tables."""
    teacher, student = tiny(family, 1), tiny(family, 2, layers=layers, max_positions=12, vocab_size=40)
    copy_layers(teacher, student, which)
    for own, theirs in enumerate(chosen):
        assert same(layer_of(student, own).values(), layer_of(teacher, theirs).values())
    assert same(rest_of(student).values(), rest_of(teacher).values())


def test_copying_only_embeddings_or_nothing():
    teacher, student, before = tiny(seed=1), tiny(seed=2, layers=2), tiny(seed=2, layers=2)
    copy_layers(teacher, student, "none")
    copy_layers(None, student, "none")
    assert same(student.parameters(), before.parameters())
    copy_layers(teacher, student, "embeddings")
    assert same(rest_of(student).values(), rest_of(teacher).values())
    assert same(student.layers().parameters(), before.layers().parameters())


def test_copying_all_layers_reproduces_the_teacher():
    teacher, student = tiny("albert", 1), tiny("albert", 2)
    copy_layers(teacher, student, "every_other")
    ids = torch.tensor([[2, 5, 6, 3]])
    args = (ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    torch.testing.assert_close(student(*args), teacher(*args))


def test_copied_layers_are_trainable_and_independent_of_the_teacher():
    teacher, student = tiny(seed=1).requires_grad_(False), tiny(seed=2, layers=2)
    copy_layers(teacher, student, "every_other")
    assert all(parameter.requires_grad for parameter in student.parameters())
    with torch.no_grad():
        before = next(teacher.parameters()).clone()
        next(student.parameters()).zero_()
    assert torch.equal(next(teacher.parameters()), before)


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"width": 8}, "the teacher's hidden_size is 16, the student's 8; set distillation.layers=none"),
        ({"family": "electra"}, "the teacher's model_type is bert, the student's electra"),
        ({"layers": 5}, "the teacher has 4 layers and the student 5"),
        ({"max_positions": 30}, r"position_embeddings.weight has shape \(30, 16\), .* shape \(20, 16\)"),
        ({"family": "words", "layers": None, "heads": None}, "needs two transformer encoders"),
    ],
)
def test_mismatched_student_is_refused(student, message):
    with pytest.raises(ConfigError, match=message):
        copy_layers(tiny(), tiny(**student), "every_other")

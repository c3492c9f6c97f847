"""Questions with classes: TREC's file format, what is held out, and the generated questions."""

from __future__ import annotations

import pytest

from qa_arch.data.sources import open_source
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.selection import wordings as typed
from qa_arch.extras.selection.sets import CLASSES, MAIN, class_set, hold_out_questions

LINES = "NUM:date When was the mill built ?\n\nHUM:ind Who sold it ?\r\nLOC:other Where is Espa\u00f1a ?\n"


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "train_5500.label"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return path

    return write


def test_the_taxonomy_is_that_of_li_and_roth():
    assert len(MAIN) == 6
    assert len(CLASSES) == len(set(CLASSES)) == 50
    assert {main: len(subs.split()) for main, subs in MAIN.items()} == {
        "ABBR": 2,
        "DESC": 4,
        "ENTY": 22,
        "HUM": 4,
        "LOC": 5,
        "NUM": 13,
    }


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_a_file_as_it_is_published(write, coding):
    task = open_source(f"types:{write(LINES.encode(coding))}")
    assert task.name == "train_5500"
    assert [question.question for question in task.questions] == [
        ("When", "was", "the", "mill", "built", "?"),
        ("Who", "sold", "it", "?"),
        ("Where", "is", "Espa\u00f1a", "?"),
    ]
    assert [[task.answers[row] for row in question.right] for question in task.questions] == [
        [("NUM:date",)],
        [("HUM:ind",)],
        [("LOC:other",)],
    ]
    assert all(question.candidates == range(50) for question in task.questions)
    assert task.answers == tuple((label,) for label in CLASSES)
    assert len({question.id for question in task.questions}) == 3
    mains = [list(MAIN)[main] for main in task.main]
    assert mains == [label.partition(":")[0] for label in CLASSES]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NUM:date When ?\nNUM:day What day ?\n", r"label: line 2: 'NUM:day' is not a class.*MAIN:sub"),
        ("When was it ?\n", "line 1: 'When' is not a class"),
        ("\n\nNUM:date   \n", "line 3: no question follows NUM:date"),
        ("", "no question is left"),
    ],
)
def test_faults_are_named_by_file_and_line(write, text, message):
    with pytest.raises(DataError, match=message):
        open_source(f"types:{write(text)}")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"none.label: no such file; name train_5500.label"):
        open_source(f"types:{tmp_path}/none.label")


def test_equal_questions_are_held_out_together():
    rows = [(CLASSES[n % 50], f"Is it {n % 30} ?") for n in range(60)]
    parts = hold_out_questions(class_set("all", rows), 0.3, seed=1)
    train, held = ({question.question for question in parts[s].questions} for s in ("train", "calibration"))
    assert not train & held
    assert (len(parts["train"]), len(parts["calibration"])) == (42, 18)
    assert parts["calibration"].main == parts["train"].main != ()
    other = hold_out_questions(class_set("all", rows), 0.3, seed=2)["calibration"]
    assert {question.question for question in other.questions} != held


@pytest.mark.parametrize(("share", "lacks"), [(0.1, "calibrate"), (0.9, "train")])
def test_a_share_that_leaves_a_side_empty_is_refused(share, lacks):
    rows = [(CLASSES[0], f"Is it {n} ?") for n in range(3)]
    with pytest.raises(ConfigError, match=f"data.hold_out_share: {share} of the 3 .* none to {lacks} on"):
        hold_out_questions(class_set("few", rows), share, seed=1)


def test_generated_questions_are_of_every_class_and_their_names_of_one_split():
    sets = {split: typed.questions(200, 5, split) for split in ("train", "calibration", "dev")}
    assert all({label for label, _ in made} == set(CLASSES) for made in sets.values())
    assert typed.questions(200, 5, "train") == sets["train"] != typed.questions(200, 6, "train")
    common = {word for wordings in typed.WORDINGS.values() for w in wordings for word in w.split()}
    names = {
        split: {w.strip("?.") for _, text in made for w in text.split() if w[0].isupper() and w not in common}
        for split, made in sets.items()
    }
    assert min(map(len, names.values())) > 30
    invented = {split: {w for w in words if w.lower() != w and len(w) > 3} for split, words in names.items()}
    assert not invented["train"] & invented["dev"]
    assert not invented["train"] & invented["calibration"]


def test_the_last_wording_of_a_class_is_not_trained_on():
    def begins(split: str) -> set[str]:
        made = typed.questions(1000, 5, split)
        return {text.split(" ")[0] + text.split(" ")[1] for label, text in made if label == "HUM:ind"}

    last = "".join(typed.WORDINGS["HUM:ind"][-1].split(" ")[:2])
    assert last in begins("dev")
    assert last not in begins("train")


@pytest.mark.parametrize("call", [lambda: typed.named("test"), lambda: typed.questions(0, 1, "dev")])
def test_what_cannot_be_generated(call):
    with pytest.raises(ConfigError, match=r"unknown|at least 1"):
        call()

"""Questions with classes: TREC's file format, hold-out, and generated questions."""

import pytest

from qa_arch.data.sources import open_source
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.selection.sets import (
    CLASSES,
    MAIN,
    class_set,
    generated_questions,
    hold_out_questions,
    wordings,
)

LINES = "NUM:date When was the mill built ?\n\nHUM:ind Who sold it ?\r\nLOC:other Where is Espa\u00f1a ?\n"


def test_taxonomy_of_li_and_roth():
    assert len(CLASSES) == len(set(CLASSES)) == 50
    sizes = {"ABBR": 2, "DESC": 4, "ENTY": 22, "HUM": 4, "LOC": 5, "NUM": 13}
    assert {main: len(subs.split()) for main, subs in MAIN.items()} == sizes


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "latin-1"])
def test_trec_file_is_read_in_either_encoding(tmp_path, coding):
    (tmp_path / "train_5500.label").write_bytes(LINES.encode(coding))
    task = open_source(f"types:{tmp_path}/train_5500.label")
    assert task.name == "train_5500"
    assert [question.question for question in task.questions] == [
        ("When", "was", "the", "mill", "built", "?"),
        ("Who", "sold", "it", "?"),
        ("Where", "is", "Espa\u00f1a", "?"),
    ]
    right = [task.answers[row] for question in task.questions for row in question.right]
    assert right == [("NUM:date",), ("HUM:ind",), ("LOC:other",)]
    assert all(question.candidates == range(50) for question in task.questions)
    assert task.answers == tuple((label,) for label in CLASSES)
    assert [list(MAIN)[main] for main in task.main] == [label.partition(":")[0] for label in CLASSES]


def test_fingerprint_does_not_depend_on_the_names_of_set_and_file(tmp_path):
    """A held-out set is recognised by it, wherever it is."""
    for name in ("dev.label", "copy.label"):
        (tmp_path / name).write_text(LINES)
    dev = open_source(f"types:{tmp_path}/dev.label", name="dev")
    assert dev.fingerprint == open_source(f"types:{tmp_path}/copy.label").fingerprint
    assert open_source("types:synthetic:dev", name="x").fingerprint.startswith("0f0f2ae8"), "as recorded"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NUM:date When ?\nNUM:day What day ?\n", r"label: line 2: 'NUM:day' is not a class.*MAIN:sub"),
        ("\n\nNUM:date   \n", "line 3: 'NUM:date' is not a class with a question"),
        ("", "no question is left"),
        (None, r"train_5500.label: cannot be read \(No such file"),
    ],
)
def test_trec_errors_name_file_and_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "train_5500.label").write_text(text)
    with pytest.raises(DataError, match=message):
        open_source(f"types:{tmp_path}/train_5500.label")


def test_equal_questions_are_held_out_together():
    rows = [(CLASSES[n % 50], f"Is it {n % 30} ?") for n in range(60)]
    parts = hold_out_questions(class_set("all", rows), 0.3, seed=1)
    train, held = ({question.question for question in parts[s].questions} for s in ("train", "calibration"))
    assert not train & held
    assert (len(parts["train"]), len(parts["calibration"])) == (42, 18)
    assert parts["calibration"].main == parts["train"].main != ()
    other = hold_out_questions(class_set("all", rows), 0.3, seed=2)["calibration"]
    assert {question.question for question in other.questions} != held
    for share, lacks in ((0.01, "calibrate"), (0.99, "train")):
        with pytest.raises(
            ConfigError, match=f"data.hold_out_share: {share} of the 30 .* none to {lacks} on"
        ):
            hold_out_questions(class_set("few", rows), share, seed=1)


def test_generated_questions_cover_every_class_with_names_of_their_split():
    sets = {split: generated_questions(200, 5, split) for split in ("train", "calibration", "dev")}
    assert all({label for label, _ in questions} == set(CLASSES) for questions in sets.values())
    assert generated_questions(200, 5, "train") == sets["train"] != generated_questions(200, 6, "train")
    common = {word for templates in wordings().values() for wording in templates for word in wording.split()}
    names = {
        split: {
            w.strip("?.") for _, text in questions for w in text.split() if w[0].isupper() and w not in common
        }
        for split, questions in sets.items()
    }
    assert min(map(len, names.values())) > 30
    invented = {split: {w for w in words if w.lower() != w and len(w) > 3} for split, words in names.items()}
    assert not invented["train"] & (invented["dev"] | invented["calibration"])
    with pytest.raises(ConfigError, match="types:synthetic:test is unknown"):
        open_source("types:synthetic:test")


def test_last_wording_of_a_class_is_not_in_train():
    def beginnings(split: str) -> set[str]:
        generated = generated_questions(1000, 5, split)
        return {text.split(" ")[0] + text.split(" ")[1] for label, text in generated if label == "HUM:ind"}

    last = "".join(wordings()["HUM:ind"][-1].split(" ")[:2])
    assert last in beginnings("dev")
    assert last not in beginnings("train")

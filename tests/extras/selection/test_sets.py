"""Sets of candidates, of classes and of pairs: what is read from every source, identity, hold-out, errors."""

from collections import Counter
from dataclasses import replace

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.question_sets import question_set
from qa_arch.data.sentences import sentence_spans
from qa_arch.data.sources import identity, open_source
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.selection.sets import (
    CLASSES,
    INSURANCEQA,
    MAIN,
    Pair,
    SelectionQuestion,
    class_set,
    generated_questions,
    hold_out_questions,
    load_splits,
    read_pairs,
    selection_set,
    sentence_selection,
    wordings,
    words,
)
from qa_arch.types import Example, Gold

TEXT = "Dr. Mira Lom paints. She owns 3.5 boats! Old J. Tarn keeps bees (nine of them.) Who knows?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Lom paints. She owns 3.5 boats! Who?", ["Dr. Lom paints.", "She owns 3.5 boats!", "Who?"]),
        ("Old J. Tarn has bees (nine.) No?", ["Old J. Tarn has bees (nine.)", "No?"]),
        ("One here.[4] Two there.", ["One here.[4]", "Two there."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("It costs 4 c. of salt. 20 came.", ["It costs 4 c. of salt.", "20 came."]),
        ("A line\nanother line", ["A line", "another line"]),
        ("The U.S. Army came. Éva left.", ["The U.S. Army came.", "Éva left."]),
        ("  padded.  ", ["padded."]),
        (" \n ", []),
    ],
)
def test_sentence_spans(text, expected):
    assert [text[start:end] for start, end in sentence_spans(text)] == expected


def example(id_: str, *answers: str, context: str = TEXT, title: str = "t") -> Example:
    golds = tuple(Gold(text, context.index(text)) for text in answers)
    return Example(id_, "Who paints?", context, title, golds)


def test_sentences_where_an_answer_begins_are_right():
    assert words("Mira's 3.5 boats, où?") == ("Mira", "'", "s", "3", ".", "5", "boats", ",", "où", "?")
    assert words("cafe\u0301 हिन्दी।") == ("cafe\u0301", "हिन्दी", "।")
    unknown_place = Gold("Miro", -1)  # to score by its text: where it is is unknown
    several = example("b", "bees", "boats! Old")
    examples = [
        example("a", "Mira"),
        replace(several, answers=(*several.answers, unknown_place)),
        example("c", " Old"),
        Example("unanswerable", "Who?", TEXT, "t"),
        example("one sentence", "alone", context="One sentence alone."),
        Example("of unknown place", "Who?", TEXT, "t", (unknown_place,)),
        example("d", "pours", context="It rains. It pours.", title="u"),
    ]
    task = sentence_selection(question_set("set", examples, "2.0"))
    assert ([question.id for question in task.questions], task.left_out) == (["a", "b", "c", "d"], 3)
    first, second, spaced, last = task.questions
    assert task.answers[0] == ("Dr", ".", "Mira", "Lom", "paints", ".")
    assert first.candidates == second.candidates == range(4)
    assert (first.right, second.right, spaced.right) == ((0,), (1, 2), (2,))
    assert (first.title, first.question) == ("t", ("Who", "paints", "?"))
    assert [task.answers[row] for row in last.candidates] == [("It", "rains", "."), ("It", "pours", ".")]
    assert task.answers[last.right[0]] == ("It", "pours", ".")
    with pytest.raises(DataError, match="no question is left"):
        sentence_selection(question_set("set", examples[3:4], "2.0"))


def test_fingerprint_covers_everything_that_is_scored():
    question, answers = SelectionQuestion("1", ("who",), (0, 1), (1,)), [("x",), ("y",)]
    changes = ({"right": (0,)}, {"candidates": (1, 0)}, {"question": ("what",)}, {"id": "2"})
    others = [selection_set("a", answers, [replace(question, **change)]) for change in changes]
    others.append(selection_set("a", [("x",), ("z",)], [question]))
    plain = selection_set("a", answers, [question])
    assert len({plain.fingerprint, *(other.fingerprint for other in others)}) == 6
    assert selection_set("b", answers, [question]).fingerprint == plain.fingerprint


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["." * 300_000, "x" * 300_000 + ". A", "A. " * 30_000, ".[" * 100_000])
def test_degenerate_text_takes_linear_time(text):
    parts = (text[start:end] for start, end in sentence_spans(text))
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


# InsuranceQA

TRAIN, DEV = "question.train.token_idx.label", "question.dev.label.token_idx.pool"
FILES = {
    "vocabulary": "idx_1\twhat\nidx_2\tis\nidx_3\tterm\nidx_4\tlife\nidx_5\tbasic\n",
    "answers.label.token_idx": "7\tidx_3 idx_4\n8\tidx_5\n9\tidx_4\n",
    TRAIN: "idx_1 idx_2 idx_3\t7 8\nidx_1 idx_5\t9\n",
    DEV: "8\tidx_1 idx_2\t9 8 9 7\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_insuranceqa_files_are_read(folder):
    train = open_source(f"insuranceqa:{folder}:train")
    assert train.answers == (("term", "life"), ("basic",), ("life",))
    assert [q.question for q in train.questions] == [("what", "is", "term"), ("what", "basic")]
    assert [q.right for q in train.questions] == [(0, 1), (2,)]
    assert all(q.candidates == range(3) for q in train.questions)
    (question,) = open_source(f"insuranceqa:{folder}:dev").questions
    assert (question.id, question.question, question.right) == ("dev-1", ("what", "is"), (1,))
    assert question.candidates == (2, 1, 0)
    (folder / DEV).write_text(f"8\tidx_1\t9 7\n8\tidx_1\t8 8\n{FILES[DEV]}")  # no right answer, one candidate
    dev = open_source(f"insuranceqa:{folder}:dev")
    assert ([question.id for question in dev.questions], dev.left_out) == (["dev-3"], 2)
    (folder / "answers.label.token_idx").unlink()  # not needed for counting
    assert INSURANCEQA.counts(f"{folder}:train") == {"questions": 2, "answers": 3, "question_words": 5}


def test_insuranceqa_errors_name_file_line_and_field(folder):
    for file, text, message in (
        (TRAIN, "idx_1\t7\nidx_1 7\n", "line 2: 1 tab-separated fields, not 2"),
        (TRAIN, "\t7\n", "line 1: question: is empty"),
        (DEV, "8\tidx_1\t9 55\n", "line 1: pool: '55' is unknown"),
    ):
        (folder / file).write_text(text)
        with pytest.raises(DataError, match=f"{file}: {message}"):
            open_source(f"insuranceqa:{folder}:{'train' if file == TRAIN else 'dev'}")
    with pytest.raises(DataError, match=r"write insuranceqa:FOLDER:SPLIT.*train, dev, test1, test2"):
        open_source(f"insuranceqa:{folder}:valid")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "expected"), [("train", (12_887, 18_540, 92_095)), ("dev", (1_000, 1_454, 7_158))]
)
def test_insuranceqa_counts_match_the_published_ones(real_data, name, expected):
    assert tuple(INSURANCEQA.counts(f"{real_data}/insuranceqa:{name}").values()) == expected


LINES = "NUM:date When was the mill built ?\n\nHUM:ind Who sold it ?\r\nLOC:other Where is Espa\u00f1a ?\n"


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
    sizes = {"ABBR": 2, "DESC": 4, "ENTY": 22, "HUM": 4, "LOC": 5, "NUM": 13}  # Li and Roth 2002
    assert Counter(label.partition(":")[0] for label in set(CLASSES)) == sizes


def test_trec_errors_name_file_and_line(tmp_path):
    for text, message in (
        ("NUM:date When ?\nNUM:day What day ?\n", r"label: line 2: 'NUM:day' is not a class.*MAIN:sub"),
        ("", "no question is left"),
    ):
        (tmp_path / "train_5500.label").write_text(text)
        with pytest.raises(DataError, match=message):
            open_source(f"types:{tmp_path}/train_5500.label")


def test_fingerprint_does_not_depend_on_the_names_of_set_and_file(tmp_path):
    """A held-out set is recognised by it, wherever it is."""
    for name in ("dev.label", "copy.label"):
        (tmp_path / name).write_text(LINES)
    dev = open_source(f"types:{tmp_path}/dev.label", name="dev")
    assert dev.fingerprint == open_source(f"types:{tmp_path}/copy.label").fingerprint
    assert open_source("types:synthetic:dev", name="x").fingerprint.startswith("0f0f2ae8"), "as recorded"


def test_equal_questions_are_held_out_together():
    rows = [(CLASSES[n % 50], f"Is it {n % 30} ?") for n in range(60)]
    parts = hold_out_questions(class_set("all", rows), 0.3, seed=1)
    train, held = ({question.question for question in parts[s].questions} for s in ("train", "calibration"))
    assert not train & held
    assert (len(parts["train"]), len(parts["calibration"])) == (42, 18)
    other = hold_out_questions(class_set("all", rows), 0.3, seed=2)["calibration"]
    assert {question.question for question in other.questions} != held
    with pytest.raises(ConfigError, match=r"data.hold_out_share: 0.01 of the 30 .* none to calibrate on"):
        hold_out_questions(class_set("few", rows), 0.01, seed=1)


def test_last_wording_of_a_class_is_not_in_train():
    last = wordings()["HUM:ind"][-1].split(" ")[:2]
    for split in ("train", "calibration", "dev"):
        questions = generated_questions(1000, 5, split)
        assert {label for label, _ in questions} == set(CLASSES)
        beginnings = [text.split(" ")[:2] for label, text in questions if label == "HUM:ind"]
        assert (last in beginnings) == (split != "train")


def test_read_pairs_with_and_without_labels(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Who is it?\tWho was it?\t1\n\nWhere?\t When? \t0\n")
    assert read_pairs(path) == [Pair("Who is it?", "Who was it?", True), Pair("Where?", "When?", False)]
    path.write_text("\ufeffWho is it?\tWho was it?\n", encoding="utf-8")
    assert read_pairs(path) == [Pair("Who is it?", "Who was it?", None)]
    odd = "Who\u2028is\x85it\x0b, or\x0cnot?"  # only a line feed ends a pair
    path.write_bytes(f"{odd}\tWho was it?\t1\r\n".encode())
    assert read_pairs(path) == [Pair(odd, "Who was it?", True)]


def test_invalid_pairs_are_refused_by_line(tmp_path):
    path = tmp_path / "pairs.tsv"
    for content, message in (
        (b"a\tb\nc\n", "line 2: write two questions"),
        (b"a\tb\t2\n", "line 1: write two questions, and optionally 0 or 1"),
        (b"a\tb\t1\nc\td\n", "line 2: only some lines have a label"),
        (b"\n", "has no pair"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_pairs(path)


def test_identity_depends_on_file_contents_not_paths(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder / "t.label").write_text("NUM:date When ?\n")
    files = {"types:{}/t.label": ["t.label"], "insuranceqa:{}:dev": [name for name in FILES if name != TRAIN]}
    for source, read in files.items():
        before = identity(source.format(folder.name))
        assert folder.name not in str(before)
        assert identity(source.format(folder)) == before
        for path in (folder / name for name in read):
            text = path.read_text()
            path.write_text(text + "\n")
            assert identity(source.format(folder.name)) != before, path
            path.write_text(text)
    others = ["types:synthetic:train", "types:synthetic:dev", f"insuranceqa:{folder}:train"]
    sources = [*(source.format(folder) for source in files), *others]
    assert len({str(identity(source)) for source in sources}) == len(sources)
    for missing in ("types:none", f"insuranceqa:{folder}:test1"):
        with pytest.raises(DataError):
            identity(missing)


@pytest.mark.parametrize("again", ["data.calibration", "data.dev"])
def test_questions_that_are_trained_on_are_not_scored(tmp_path, again):
    for name in ("t.label", "copy.label"):
        (tmp_path / name).write_text("NUM:date When ?\n")
    sources = [f"data.train=types:{tmp_path}/t.label", f"{again}=types:{tmp_path}/copy.label"]
    config = validate(compose(["model=question_types", "data=files", *sources, "data.open_dev=false"]))
    with pytest.raises(
        DataError, match=rf"^{again}: types:.*copy.label is the set of data.train; name other"
    ):
        load_splits(config)

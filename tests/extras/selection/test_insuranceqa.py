"""InsuranceQA in both versions: what is read, what is counted, what is wrong with a file."""

from __future__ import annotations

import gzip

import pytest

from qa_arch.data.sources import open_source
from qa_arch.errors import DataError
from qa_arch.extras.selection import insuranceqa

VOCABULARY = "idx_1\twhat\nidx_2\tis\nidx_3\tterm\nidx_4\tlife\nidx_5\tbasic\n"
ANSWERS = "7\tidx_3 idx_4\n8\tidx_5\n9\tidx_4\n"
TRAIN = "idx_1 idx_2 idx_3\t7 8\nidx_1 idx_5\t9\n"
DEV = "8\tidx_1 idx_2\t9 8 7\n"


def version_one(folder, **changed):
    files = {
        "vocabulary": VOCABULARY,
        "answers.label.token_idx": ANSWERS,
        "question.train.token_idx.label": TRAIN,
        "question.dev.label.token_idx.pool": DEV,
    } | changed
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def version_two(folder, pool=500):
    (folder / "vocabulary").write_text(VOCABULARY)
    stem = f"InsuranceQA.question.anslabel.token.{pool}.pool.solr"
    files = {
        "InsuranceQA.label2answer.token.encoded.gz": ANSWERS,
        f"{stem}.train.encoded.gz": "life\tidx_1 idx_2\t7 8\t8 9\n",
        f"{stem}.valid.encoded.gz": "auto\tidx_5\t9\t7 8\n",
    }
    for name, text in files.items():
        (folder / name).write_bytes(gzip.compress(text.encode()))
    return folder


def test_version_one(tmp_path):
    folder = version_one(tmp_path)
    train = open_source(f"insuranceqa:{folder}:train")
    assert train.answers == (("term", "life"), ("basic",), ("life",))
    assert [q.question for q in train.questions] == [("what", "is", "term"), ("what", "basic")]
    assert [q.right for q in train.questions] == [(0, 1), (2,)]
    assert all(q.candidates == range(3) for q in train.questions)
    (question,) = open_source(f"insuranceqa:{folder}:dev").questions
    assert (question.id, question.question, question.right) == ("dev-1", ("what", "is"), (1,))
    assert question.candidates == (2, 1, 0)


@pytest.mark.parametrize(("pool", "suffix"), [(500, ""), (100, "@100")])
def test_version_two(tmp_path, pool, suffix):
    folder = version_two(tmp_path, pool)
    assert open_source(f"insuranceqa:{folder}:valid{suffix}").name == f"valid{suffix}"
    (question,) = open_source(f"insuranceqa:{folder}:train{suffix}").questions
    assert (question.question, question.right, question.candidates) == (("what", "is"), (0, 1), (1, 2))
    (question,) = open_source(f"insuranceqa:{folder}:valid{suffix}").questions
    assert question.right == (2,), "a right answer that was not retrieved stays right"
    assert question.candidates == (0, 1)


def test_statistics_count_an_answer_for_each_question_that_names_it(tmp_path):
    split = insuranceqa.parse(f"{version_one(tmp_path)}:train")
    counts = insuranceqa.statistics(insuranceqa.read(split))
    assert counts.as_dict() == {"questions": 2, "answers": 3, "question_words": 5}


TRAIN_FILE, DEV_FILE = "question.train.token_idx.label", "question.dev.label.token_idx.pool"


@pytest.mark.parametrize(
    ("file", "text", "split", "parts"),
    [
        (TRAIN_FILE, "idx_1\t7\nidx_1 7\n", "train", ["line 2", "1 fields between tabs, not 2"]),
        (
            TRAIN_FILE,
            "idx_1\t7\nidx_9 idx_1\t7\n",
            "train",
            ["line 2: question", "'idx_9' is not in the vocabulary"],
        ),
        (TRAIN_FILE, "what\t7\n", "train", ["line 1: question", "'what' is not a word index"]),
        (TRAIN_FILE, "idx_1\tseven\n", "train", ["line 1: answer labels", "'seven' is not an answer label"]),
        (TRAIN_FILE, "\t7\n", "train", ["line 1: question", "no words"]),
        (TRAIN_FILE, "\n", "train", ["empty"]),
        (DEV_FILE, "8\tidx_1\t9 x\n", "dev", ["line 1: pool", "'x'"]),
        (DEV_FILE, "8\tidx_1\t9 55\n", "dev", ["line 1", "the answer 55"]),
        ("answers.label.token_idx", "7\tidx_1\n7\tidx_2\n", "dev", ["line 2", "7 occurs twice"]),
        ("vocabulary", "idx_1 what\n", "dev", ["vocabulary: line 1", "not 2 (index, word)"]),
    ],
)
def test_faults_are_named_by_file_line_and_field(tmp_path, file, text, split, parts):
    folder = version_one(tmp_path, **{file: text})
    with pytest.raises(DataError) as caught:
        open_source(f"insuranceqa:{folder}:{split}")
    for part in (file, *parts):
        assert part in str(caught.value)


def test_what_is_not_there(tmp_path):
    folder = version_one(tmp_path)
    for source, message in [
        (f"insuranceqa:{folder}/none:train", "no such folder"),
        (f"insuranceqa:{folder}:valid", r"no split 'valid' \(known: train, dev, test1, test2\)"),
        ("insuranceqa:train", "write insuranceqa:FOLDER:SPLIT"),
        (f"insuranceqa:{folder}:dev@100", "version 1 has a single pool size; leave out @100"),
        (f"insuranceqa:{folder}:test1", r"question\.test1\.label\.token_idx\.pool: no such file"),
    ]:
        with pytest.raises(DataError, match=message):
            open_source(source)
    (folder / "answers.label.token_idx").write_bytes(gzip.compress(ANSWERS.encode())[:-12])
    with pytest.raises(DataError, match="cannot be read"):
        open_source(f"insuranceqa:{folder}:dev")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "counts"), [("train", (12_887, 18_540, 92_095)), ("dev", (1_000, 1_454, 7_158))]
)
def test_the_published_counts(real_data, name, counts):
    split = insuranceqa.parse(f"{real_data}/insuranceqa:{name}")
    assert tuple(insuranceqa.statistics(insuranceqa.read(split)).as_dict().values()) == counts

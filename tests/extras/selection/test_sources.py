"""Data sources of candidates and classes: identity, sets that cannot be joined, wrong kinds."""

import json

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.sources import identity, open_passages
from qa_arch.errors import DataError
from qa_arch.extras.selection.sets import TYPES, load_splits
from qa_arch.training.jobs import require_files

FILES = {
    "t.label": "NUM:date When ?\n",
    "v1/vocabulary": "idx_1\twhat\nidx_2\tis\n",
    "v1/answers.label.token_idx": "7\tidx_1\n8\tidx_2\n",
    "v1/question.train.token_idx.label": "idx_1 idx_2\t7 8\n",
    "v1/question.dev.label.token_idx.pool": "8\tidx_1\t8 7\n",
}
READ = {
    "types:t.label": ["t.label"],
    "insuranceqa:v1:dev": [name for name in FILES if name.startswith("v1/") and "train" not in name],
}
DIFFERENT = [*READ, "types:synthetic:train", "types:synthetic:dev", "insuranceqa:v1:train"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An InsuranceQA set and a set of classes in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v1").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_different_sources_have_different_identities(folder):
    identities = [identity(source) for source in DIFFERENT]
    assert len(set(identities)) == len(DIFFERENT)
    assert str(folder) not in str(identities)
    for missing in ("types:none", "insuranceqa:none:dev", "insuranceqa:v1:test1"):
        with pytest.raises(DataError):
            identity(missing)


@pytest.mark.parametrize("source", READ)
def test_identity_depends_on_file_contents_not_paths(folder, source, monkeypatch):
    before = identity(source)
    moved = folder.rename(folder.parent / f"{folder.name}-moved")
    monkeypatch.chdir(moved)
    assert identity(source) == before
    for name in READ[source]:
        (moved / name).write_text(FILES[name] + "\n")
        assert identity(source) != before, name
        (moved / name).write_text(FILES[name])
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
def test_questions_that_are_trained_on_are_not_scored(folder, again):
    (folder / "copy.label").write_text(FILES["t.label"])
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

"""Publishing a run: its record and question rows without local paths."""

import json
from dataclasses import replace

import pytest

from qa_arch.errors import RunError
from qa_arch.records import QUESTIONS, RECORD, read_record, write_questions, write_record
from qa_arch.results.columns import select_columns
from qa_arch.results.publish import local, publish
from qa_arch.results.tables import Table, fill


@pytest.fixture
def run(tmp_path, make_record, monkeypatch):
    """A finished run whose config names files in the data folder and the working folder, and a hub set."""
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    config = {
        "name": "trial",
        "data": {
            "train": [str(tmp_path / "data" / "squad" / "train.json")],
            "dev": "hub:rajpurkar/squad_v2:train",
        },
        "features": {"cache_dir": str(tmp_path / ".cache")},
    }
    folder = tmp_path / "runs" / "bert-s13-c0ffee00"
    write_record(folder, make_record(config=config, scores={"calibration": {}, "dev": {}}))
    write_questions(folder, {"id": ["q1"], "f1": [0.5]})
    write_questions(folder / "sets" / "calibration", {"id": ["q2"], "f1": [0.0]})
    write_questions(folder / "sets" / "never-recorded", {"id": ["q3"], "f1": [0.0]})
    (folder / "predictions.json").write_text("{}")
    return folder


def test_publish_copies_record_and_rows_with_portable_paths(run, tmp_path) -> None:
    target = publish(run, tmp_path / "records")
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert files == [QUESTIONS, RECORD, f"sets/calibration/{QUESTIONS}"]
    assert str(tmp_path) not in (target / RECORD).read_text()
    config = read_record(target).config
    assert config["data"] == {
        "train": ["$QA_ARCH_DATA/squad/train.json"],
        "dev": "hub:rajpurkar/squad_v2:train",
    }
    assert config["features"]["cache_dir"] == "./.cache"
    before, after = (json.loads((folder / RECORD).read_text()) for folder in (run, target))
    assert {**before, "config": None} == {**after, "config": None}


def test_local_inverts_portable_paths(run, tmp_path, monkeypatch) -> None:
    config = {**read_record(run).config, "types": f"types:{tmp_path}/data/t.json"}
    write_record(run, replace(read_record(run), config=config))
    published = read_record(publish(run, tmp_path / "records")).config
    assert local(published) == {**config, "features": {"cache_dir": "./.cache"}}
    monkeypatch.delenv("QA_ARCH_DATA")
    assert local(published)["data"]["train"] == ["data/squad/train.json"]


def test_other_paths_are_refused_by_config_key(run, tmp_path, make_record) -> None:
    write_record(run, make_record(config={"glove": {"path": "/somewhere/glove.txt"}}))
    with pytest.raises(RunError, match=r"config\.glove\.path: /somewhere/glove\.txt .* set QA_ARCH_DATA"):
        publish(run, tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_error_of_a_failed_run_has_no_local_path(run, tmp_path) -> None:
    error = f"DataError: {tmp_path}/runs/x.json and /mnt/alice/disk/b.json are gone"
    write_record(run, replace(read_record(run), status="failed", error=error))
    copy = publish(run, tmp_path / "records")
    published = read_record(publish(copy, tmp_path / "again"))
    assert published.error == "DataError: runs/x.json and …/disk/b.json are gone"


@pytest.mark.parametrize("change", [{"run_hash": "e" * 64}, {"created": "2031-01-01T00:00:00+00:00"}])
def test_publish_refuses_to_replace_another_run(run, tmp_path, change) -> None:
    target = publish(run, tmp_path / "records")
    before = (target / RECORD).read_bytes()
    write_record(run, replace(read_record(run), **change))
    with pytest.raises(RunError, match=rf"{target}: holds another run \(.*\) than {run} .* remove {target}"):
        publish(run, tmp_path / "records")
    assert (target / RECORD).read_bytes() == before


def test_rescored_run_replaces_its_published_copy(run, tmp_path) -> None:
    target = publish(run, tmp_path / "records")
    write_record(run, replace(read_record(run), scores={"dev": {}}))
    assert publish(run, tmp_path / "records") == target
    assert read_record(target).scores == {"dev": {}}
    assert sorted(path.name for path in target.iterdir()) == [QUESTIONS, RECORD]


def test_run_is_not_published_over_itself(run) -> None:
    """A published copy has neither weights nor predictions."""
    with pytest.raises(RunError, match=r"holds predictions\.json, which is not part of a published copy"):
        publish(run, run.parent)
    assert (run / "predictions.json").is_file()


def test_fill_replaces_only_the_text_between_markers() -> None:
    first, second = (Table("T", select_columns(["model"]), [{"model": name}]) for name in ("one", "two"))
    other = "<!-- table: other -->\nkept\n<!-- end -->\n"
    again = "<!-- table: demo 2 -->\n<!-- end -->\n"
    page = f"# x\n<!-- table: demo -->\nold\n<!-- end -->\n| old |\n{other}{again}"
    filled = fill(page, "demo", [first, second])
    assert filled == page.replace("old\n<!--", "\n| model |\n|---|\n| one |\n\n<!--").replace(
        again, again.replace("-->\n<!--", "-->\n\n| model |\n|---|\n| two |\n\n<!--")
    )
    assert fill(filled, "demo", [first, second]) == filled
    assert fill(page, "demo", [first]).endswith(f"{other}{again}")

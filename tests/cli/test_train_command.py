"""``qa-arch train``: run folders, what is refused and when, several models side by side."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import yaml
from kills import killed_at_sizes

import qa_arch.training.run as training
from qa_arch.config.files import write_atomic
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import validate
from qa_arch.records import RunRecord, read_questions, read_record, write_record


@pytest.fixture
def stub_training(monkeypatch):
    """Training that only leaves a record; ``stub.failing`` names models that raise."""

    class Stub:
        calls: list[tuple[str, bool]]
        failing: tuple[str, ...] = ()

        def __init__(self):
            self.calls = []

        def train(self, config, *, folder, resume=False, trusted=()):
            name = str(config.model["name"])
            self.calls.append((name, resume))
            record = RunRecord(
                status="ok",
                name=config.name,
                model=name,
                seed=config.seed,
                config=asdict(config),
                config_hash="-",
            )
            if name in self.failing:
                write_record(folder, replace(record, status="failed", error="ValueError: no"))
                raise ValueError("no")
            write_record(folder, record)
            return record

    stub = Stub()
    monkeypatch.setattr(training, "train", stub.train)
    return stub


def test_run_folder(trained):
    files = {"config.yaml", "run.json", "questions.parquet", "predictions.json", "null_odds.json"}
    assert files | {"nbest_predictions.json", "model"} <= {path.name for path in trained.iterdir()}
    record = read_record(trained)
    assert record.status == "ok"
    assert record.data["dev"].questions == len(read_questions(trained)["id"])
    assert set(record.scores) == {"calibration", "dev"}
    assert trained.name == f"bert-s13-{config_hash(record.config)[:8]}"
    assert not [path for path in trained.rglob("*") if path.suffix in {".pkl", ".bin", ".pt"}]


def test_refuses_a_folder_in_use(qa_arch, trained, stub_training, feature_cache):
    code, _, err = qa_arch("train", "--config-from", trained, "--folder", trained)
    assert code == 5
    assert "--if-exists resume" in err
    assert not stub_training.calls


def test_replace(qa_arch, run_folder, stub_training):
    code, *_ = qa_arch("train", "--config-from", run_folder, "--folder", run_folder, "--if-exists", "replace")
    assert code == 0
    assert stub_training.calls == [("bert", False)]
    assert {path.name for path in run_folder.iterdir()} == {"config.yaml", "run.json"}


def test_a_run_that_was_killed_before_its_config_was_written_begins_anew(
    qa_arch, settings, tmp_path, stub_training
):
    """Else every --if-exists would refuse the folder: it is there, and holds no run."""
    folder = tmp_path / "run"
    (died,) = killed_at_sizes(lambda: write_atomic(folder / "config.yaml", "x" * 99), [9])
    assert died
    assert len(list(folder.iterdir())) == 1
    assert qa_arch("train", "model=bert", *settings, "--folder", folder)[0] == 0
    assert stub_training.calls == [("bert", False)]
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "run.json"}


def test_replace_spares_what_is_no_run(qa_arch, settings, tmp_path, stub_training):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    arguments = ("--folder", tmp_path / "thesis", "--if-exists", "replace")
    code, _, err = qa_arch("train", "model=bert", *settings, *arguments)
    assert (code, stub_training.calls) == (5, [])
    assert "not a run" in err
    assert (tmp_path / "thesis" / "chapter.tex").exists()


def test_resume(qa_arch, run_folder, stub_training):
    again = ("train", "--config-from", run_folder, "--folder", run_folder, "--if-exists", "resume")
    assert qa_arch(*again)[0] == 0
    assert stub_training.calls == []  # it is finished
    write_record(run_folder, replace(read_record(run_folder), status="killed"))
    assert qa_arch(*again)[0] == 0
    assert stub_training.calls == [("bert", True)]
    assert (run_folder / "predictions.json").exists()
    code, _, err = qa_arch(*again, "optim.lr=0.5")
    assert code == 5
    assert "another config" in err


def test_dry_run(qa_arch, settings, tmp_path, stub_training):
    code, out, _ = qa_arch("train", "model=bert", "optim.lr=0.002", *settings, "--dry-run")
    assert code == 0
    assert validate(yaml.safe_load(out)).optim.lr == 0.002
    assert not stub_training.calls
    assert not list(tmp_path.iterdir())


def test_config_from_repeats_the_run(qa_arch, trained, tmp_path):
    code, *_ = qa_arch("train", "--config-from", trained, "--folder", tmp_path / "again")
    first, second = read_record(trained), read_record(tmp_path / "again")
    assert code == 0
    assert second.config_hash == first.config_hash
    assert second.scores == first.scores
    assert second.threshold == first.threshold


def test_config_from_takes_a_published_record(qa_arch, trained, tmp_path, monkeypatch):
    """Its folder has neither config.yaml nor weights, and names the data folder by its variable."""
    record = read_record(trained)
    data = {**record.config["data"], "train": "$QA_ARCH_DATA/train.json"}
    write_record(tmp_path / "published", replace(record, config={**record.config, "data": data}))
    monkeypatch.setenv("QA_ARCH_DATA", "/here")
    for source in (tmp_path / "published", tmp_path / "published" / "run.json"):
        code, out, _ = qa_arch("train", "--config-from", source, "optim.lr=0.5", "--dry-run")
        assert code == 0
        config = yaml.safe_load(out)
        assert config["data"]["train"] == "/here/train.json"
        assert config["optim"]["lr"] == 0.5
        assert config["model"] == record.config["model"]
    code, _, err = qa_arch("train", "--config-from", tmp_path / "none", "--dry-run")
    assert code == 5
    assert "no such config" in err


def test_config_from_takes_single_settings(qa_arch, trained):
    repeat = ("train", "--config-from", trained, "--dry-run")
    assert yaml.safe_load(qa_arch(*repeat, "model.dropout=0.3")[1])["model"]["dropout"] == 0.3
    code, _, err = qa_arch(*repeat, "model=albert")
    assert code == 2
    assert "model.KEY=VALUE" in err
    code, _, err = qa_arch(*repeat, "optim.lrr=1")
    assert code == 2
    assert "did you mean 'optim.lr'" in err


@pytest.mark.slow
def test_several_models(qa_arch, settings, tmp_path, read_json):
    code, out, _ = qa_arch("train", "--models", "bert,proposed", *settings)
    assert code == 0
    table = read_json(tmp_path / "debug" / "table.json")
    rows = {row["model"]: row for row in table["rows"]}
    assert {"bert", "proposed", "always-no-answer", "random-span", "word-overlap"} == set(rows)
    for row in rows.values():
        assert all(isinstance(row[key], float) for key in ("exact", "f1", "HasAns_f1", "NoAns_f1"))
    recorded = read_record(rows["proposed"]["run"])
    assert rows["proposed"]["f1"] == recorded.scores["dev"]["calibrated"].f1
    assert rows["proposed"]["parameters"] == recorded.parameters.total
    assert "always-no-answer" in out
    assert "table.json" in out


def test_one_failing_model_does_not_stop_the_others(qa_arch, settings, tmp_path, stub_training, read_json):
    stub_training.failing = ("albert",)
    code, _, _ = qa_arch("train", "--models", "albert,bert", *settings)
    assert code == 1
    assert stub_training.calls == [("albert", False), ("bert", False)]
    statuses = {row["model"]: row["status"] for row in read_json(tmp_path / "debug" / "table.json")["rows"]}
    assert statuses == {"albert": "failed", "bert": "ok"}


@pytest.mark.parametrize(
    "arguments",
    [("--models", "bert,bert"), ("--models", "bert,"), ("--models", "bert", "--folder", "x")],
    ids=["twice", "blank", "one folder"],
)
def test_models_that_cannot_be_meant(qa_arch, settings, stub_training, arguments):
    code, *_ = qa_arch("train", *arguments, *settings)
    assert (code, len(stub_training.calls)) == ((0, 1) if arguments[1] == "bert," else (2, 0))

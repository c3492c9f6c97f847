"""``qa-arch register``, and runs that ``evaluate --final`` refuses afterwards."""

from dataclasses import replace
from pathlib import Path

import pytest

from qa_arch.errors import ConfigError, RunError
from qa_arch.provenance import DEV_ACCESS_LOG, REGISTERED, read_registration, require_registered
from qa_arch.records import read_record, write_record

CLOSED = "model=bert debug=fast data.open_dev=false"


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """``plan(text)``: write a plan into ``experiments/debug`` and return its path."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments/debug"
    folder.mkdir(parents=True)

    def write(text: str):
        (folder / "plan.yaml").write_text(text)
        return folder / "plan.yaml"

    return write


def test_only_registered_runs_are_scored_on_dev(qa_arch, plan, closed_run, read_json, monkeypatch):
    longer = f"{CLOSED} trainer.epochs=2 model.name='two epochs'"
    path = plan(f"arms:\n  plain: {CLOSED}\n  2: {longer}\nseeds: [13, 14]\n")
    final = ("evaluate", "--run", closed_run, "--final", "--experiments", path.parents[1])
    code, out, err = qa_arch("register", path)
    assert (code, out.split(":")[0]) == (0, "2 arms of 2 seeds"), err
    registered = read_json(path.with_name(REGISTERED))
    assert len({hash_ for seeds in registered["runs"].values() for hash_ in seeds.values()}) == 4
    assert set(registered["sets"]) == {"train", "calibration", "dev"}
    assert qa_arch(*final)[0] == 0

    log, record = path.with_name(DEV_ACCESS_LOG), read_record(closed_run)
    before = log.read_text()
    other = replace(record.data["train"], fingerprint="0")
    for changed, message in (
        ({"settings_hash": "0" * 64}, "other settings or another seed"),
        ({"code": "0"}, "the run was trained by other code than"),
        ({"data": {**record.data, "train": other}}, "other data: train"),
    ):
        write_record(closed_run, replace(record, **changed))
        code, _, err = qa_arch(*final)
        assert code == 2, err
        assert message in err
    write_record(closed_run, record)
    monkeypatch.setattr("qa_arch.provenance.code_hash", lambda: "0")
    code, _, err = qa_arch(*final)
    assert (code, "would be scored by other code than" in err) == (2, True), err
    assert log.read_text() == before
    written = path.with_name(REGISTERED).read_bytes()
    path.write_text(f"arms:\n  plain: {CLOSED}\nseeds: [13, 14]\n")
    assert qa_arch("register", path)[0] == 5
    assert path.with_name(REGISTERED).read_bytes() == written


def test_arm_whose_teacher_is_not_trained_yet_is_registered(qa_arch, plan, read_json):
    student = f"{CLOSED} model.name=taught distillation=soft_targets distillation.teacher=runs/debug/plain"
    path = plan(f"arms: {{plain: {CLOSED}, taught: {student}}}\nseeds: [13]\n")
    code, _, err = qa_arch("register", path)
    assert code == 0, err
    assert set(read_json(path.with_name(REGISTERED))["runs"]) == {"plain", "taught"}


EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("folder", [plan.parent for plan in EXPERIMENTS.glob(f"*/{REGISTERED}")], ids=str)
def test_committed_records_of_a_registered_experiment_are_the_registered_runs(folder):
    """By their stored hashes; other settings and other data make other runs."""
    registration, planned = read_registration(folder), set()
    dev = registration.sets["dev"]["fingerprint"]
    for path in folder.glob("records/*/run.json"):
        record = read_record(path.parent)
        require_registered(folder, record, dev)
        assert record.settings_hash == registration.runs[record.model][str(record.seed)], path
        planned.add((record.model, str(record.seed)))
        train = replace(record.data["train"], fingerprint="0")
        for changed in ({"settings_hash": record.run_hash}, {"data": {**record.data, "train": train}}):
            with pytest.raises(ConfigError, match="the run is not registered"):
                require_registered(folder, replace(record, **changed), dev)
        with pytest.raises(ConfigError, match="other data: dev"):
            require_registered(folder, record, "0")
    assert planned == {(arm, seed) for arm, seeds in registration.runs.items() for seed in seeds}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms: [", "is not valid YAML"),
        ("seeds: [13]", "needs arms"),
        (f"arms: {{a: {CLOSED}}}\nseeds: 13", "needs seeds"),
        (f"arms: {{a: {CLOSED}, b: {CLOSED} data.split_seed=4}}\nseeds: [13]", "differ in name or data"),
        (f"arms: {{a: {CLOSED}}}\nseeds: [13, 13]", "seeds lists a seed twice"),
        (f"arms: {{a: {CLOSED} seed=5}}\nseeds: [13]", "arm a: contains seed="),
        (f"arms: {{a: '{CLOSED} name=\"b'}}\nseeds: [13]", "arm a: No closing quotation"),
    ],
)
def test_invalid_plan_is_refused(qa_arch, plan, text, message):
    code, _, err = qa_arch("register", path := plan(text))
    assert code == 2
    assert message in err
    assert not path.with_name(REGISTERED).exists()


@pytest.mark.parametrize(
    "content", ['{"date": "2026"}', '{"date": "", "commit": "", "sets": {}, "runs": {"a": 1}}']
)
def test_damaged_registration_is_reported(tmp_path, content):
    (tmp_path / REGISTERED).write_text(content)
    with pytest.raises(RunError, match=r"registered\.json: not a registration"):
        read_registration(tmp_path)

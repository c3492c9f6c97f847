"""Commands of experiments: ``register``, with what ``evaluate --final`` then refuses, and ``suite``."""

import json
import sys
from dataclasses import replace

import pytest
import yaml
from scripts import EXPERIMENTS

from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError
from qa_arch.files import write_atomic, write_json
from qa_arch.provenance import DEV_ACCESS_LOG, REGISTERED, new_record, read_registration, require_registered
from qa_arch.records import FORCED, ORACLE, read_record, write_record

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
        assert (code, message in err) == (2, True), err
    write_record(closed_run, record)
    monkeypatch.setattr("qa_arch.provenance.code_hash", lambda _: "0")
    code, _, err = qa_arch(*final)
    assert (code, "would be scored by other code than" in err) == (2, True), err
    assert log.read_text() == before
    written = path.with_name(REGISTERED).read_bytes()
    path.write_text(f"arms:\n  plain: {CLOSED}\nseeds: [13, 14]\n")
    assert qa_arch("register", path)[0] == 5
    assert path.with_name(REGISTERED).read_bytes() == written


def test_code_of_an_own_package_is_registered_with_the_arm_that_names_it(
    qa_arch, plan, closed_run, monkeypatch, tmp_path
):
    monkeypatch.setattr(sys, "path", sys.path[:])
    source = write_atomic(tmp_path / "conf/near/model.py", "a = 1")
    write_atomic(tmp_path / "conf/optim/slow.yaml", "lr: 1e-5\n")
    path = plan(f"arms: {{plain: {CLOSED}, near: {CLOSED} model._target_=near.model.Near}}\nseeds: [13]\n")
    code, _, err = qa_arch("register", path)
    assert (code, "there is no package near; name the folder" in err) == (2, True), err
    code, _, err = qa_arch("register", path, "--config-dir", "conf", "--trust", "near")
    assert code == 0, err
    registration, plain = read_registration(path.parent), read_record(closed_run)
    assert [*registration.own] == ["near"]
    config = {**plain.config, "model": {**plain.config["model"], "_target_": "near.model.Near"}}

    def require(code: str | None) -> None:
        record = replace(plain, config=config, code=code, settings_hash=registration.runs["near"]["13"])
        require_registered(path.parent, record, registration.sets["dev"]["fingerprint"])

    trained = new_record(config, status="ok").code
    require(trained)
    source.write_text("a = 2")
    for code in (trained, new_record(config, status="ok").code):
        with pytest.raises(ConfigError, match=r"other code .* with near as registered"):
            require(code)
    require_registered(path.parent, plain, registration.sets["dev"]["fingerprint"])


def test_arm_whose_teacher_is_not_trained_yet_is_registered(qa_arch, plan, read_json):
    student = f"{CLOSED} model.name=taught distillation=soft_targets distillation.teacher=runs/debug/plain"
    path = plan(f"arms: {{plain: {CLOSED}, taught: {student}}}\nseeds: [13]\n")
    code, _, err = qa_arch("register", path)
    assert code == 0, err
    assert set(read_json(path.with_name(REGISTERED))["runs"]) == {"plain", "taught"}


@pytest.mark.parametrize(
    ("change", "differs"), [({"test": {"fingerprint": "0"}}, "test"), ({"dev": {}}, "dev"), (None, "dev")]
)
def test_registration_of_other_sets_than_a_run_has_is_of_other_data(tmp_path, read_json, change, differs):
    """Also one without the set to score, as somebody may have edited it."""
    source = EXPERIMENTS / "decision"
    content, record = read_json(source / REGISTERED), read_record(source / "records/plain-s13")
    dev = content["sets"]["dev"]["fingerprint"]
    if change is None:
        del content["sets"]["dev"]
    content["sets"] |= change or {}
    write_json(tmp_path / REGISTERED, content)
    with pytest.raises(ConfigError, match=rf"is not registered in .* \(other data: {differs}\)"):
        require_registered(tmp_path, record, dev)


@pytest.mark.parametrize("folder", [plan.parent for plan in EXPERIMENTS.glob(f"*/{REGISTERED}")], ids=str)
def test_committed_records_of_a_registered_experiment_are_the_registered_runs(folder):
    """By their stored hashes."""
    registration, planned = read_registration(folder), set()
    dev = registration.sets["dev"]["fingerprint"]
    for path in folder.glob("records/*/run.json"):
        record = read_record(path.parent)
        require_registered(folder, record, dev)
        assert record.settings_hash == registration.runs[record.model][str(record.seed)], path
        planned.add((record.model, str(record.seed)))
    with pytest.raises(ConfigError, match="other data: dev"):
        require_registered(folder, record, "0")
    assert planned == {(arm, seed) for arm, seeds in registration.runs.items() for seed in seeds}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms: [", "is not valid YAML"),
        (f"arms: {{a: {CLOSED}}}\nseeds: 13", "seeds: expected a list"),
        (f"arms: {{1: {CLOSED}, '1': {CLOSED} loss=twins}}\nseeds: [13]", "arms: '1' is given twice"),
        (f"arms:\n  a: {CLOSED}\n  a: {CLOSED}\nseeds: [13]", "line 3, column 3: 'a' is given twice"),
        (f"arms: {{a: {CLOSED}, b: {CLOSED} data.split_seed=4}}\nseeds: [13]", "differ in name or data"),
        (f"arms: {{a: {CLOSED} seed=5}}\nseeds: [13]", "arm a: contains seed="),
    ],
)
def test_invalid_plan_is_refused(qa_arch, plan, text, message):
    code, _, err = qa_arch("register", path := plan(text))
    assert code == 2
    assert message in err
    assert not path.with_name(REGISTERED).exists()


@pytest.fixture
def suite(tmp_path):
    """A suite of two sets: one with unanswerable questions, one without, scored as German."""
    mixed = generate(3, 4, 1, "dev")
    spans = question_set("spans", [example for example in mixed.examples if example.answers], "1.1")
    write_json(tmp_path / "mixed.json", write(mixed))
    write_json(tmp_path / "spans.json", write(spans))
    sets = {
        "mixed": {"data": str(tmp_path / "mixed.json"), "unit": "passage"},
        "german": {"data": f"{tmp_path}/spans.json", "language": "de", "published": {"people": 91.0}},
    }
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump({"sets": sets}, sort_keys=False))
    return file


def test_set_without_intervals_and_one_given_twice_are_named(tmp_path, qa_arch):
    """Two questions of one passage have no interval over passages."""
    first = generate(3, 4, 1, "dev").examples[0]
    examples = [replace(first, id=str(number)) for number in range(2)]
    write_json(tmp_path / "tiny.json", write(question_set("tiny", examples, "2.0")))
    write_json(tmp_path / "answers.json", {example.id: "wrong" for example in examples})
    arguments = ("--predictions", tmp_path / "answers.json", "--data", tmp_path / "tiny.json", "--name", "x")
    assert qa_arch("adopt", *arguments, "--folder", tmp_path / "x")[0] == 0
    sets = {"small": {"data": str(tmp_path / "tiny.json"), "unit": "passage"}}
    write_json(tmp_path / "mine.yaml", {"sets": sets})
    code, _, err = qa_arch("suite", tmp_path / "mine.yaml", tmp_path / "x")
    assert (code, "small: an interval over passages needs several" in err) == (5, True), err
    write_json(tmp_path / "mine.yaml", {"sets": sets | {"again": {"data": [str(tmp_path / "tiny.json")]}}})
    code, _, err = qa_arch("suite", tmp_path / "mine.yaml", tmp_path / "x")
    assert (code, "sets.small and sets.again hold the same questions" in err) == (2, True), err


@pytest.fixture
def adopted(suite, tmp_path, qa_arch):
    """An adopted system with correct answers to the German set only."""
    source = f"{tmp_path}/spans.json"
    texts = {example.id: example.answers[0].text for example in open_passages(source).examples}
    (tmp_path / "right.json").write_text(json.dumps(texts))
    arguments = ("--predictions", tmp_path / "right.json", "--data", source, "--language", "de")
    code, _, err = qa_arch("adopt", *arguments, "--name", "right", "--folder", tmp_path / "right")
    assert code == 0, err
    return tmp_path / "right"


def test_trained_run_and_adopted_system_on_two_sets(suite, adopted, run_folder, qa_arch, caplog):
    """Existing scores are reused; a set that shares articles with the training data is left out."""
    code, out, err = qa_arch("suite", suite, run_folder, adopted, "--baseline", "right", "--json")
    assert code == 0, err
    grid, details = json.loads(out)
    by_model = {row["model"]: row for row in grid["rows"]}
    record = read_record(run_folder)
    splits = {record.facts(split).name: split for split in record.scores}
    german, mixed = splits["spans"], splits["mixed"]
    assert by_model["bert"]["german_mean"] == pytest.approx(record.point(german, FORCED).f1, abs=1e-6)
    assert by_model["bert"]["mixed_mean"] == pytest.approx(record.compared_point(mixed).f1, abs=1e-6)
    assert by_model["right"]["german_mean"] == 100
    assert "mixed_mean" not in by_model["right"]
    assert by_model["bert"]["own_dev_mean"] == pytest.approx(record.compared_point("dev").f1, abs=1e-6)
    assert "own_dev_mean" not in by_model["right"]
    assert by_model["people (published)"]["german_mean"] == 91
    assert any("by the rules of language de" in note for note in grid["notes"])
    rows = {(row["set"], row["model"]): row for row in details["rows"]}
    assert set(rows) == {("mixed", "bert"), ("german", "bert"), ("german", "right")}
    lost = record.point(mixed, ORACLE).f1 - record.compared_point(mixed).f1
    assert rows["mixed", "bert"]["threshold_loss"] == pytest.approx(lost, abs=1e-6)
    drop = record.point(german, FORCED).f1 - record.point("dev", FORCED).metric("HasAns_f1")
    assert rows["german", "bert"]["from_dev"] == pytest.approx(drop, abs=1e-6)
    difference = by_model["bert"]["german_mean"] - 100
    assert rows["german", "bert"]["delta"] == pytest.approx(difference, abs=1e-5)
    assert any("passages or articles" in note for note in details["notes"])
    content = yaml.safe_load(suite.read_text())
    content["sets"]["seen"] = {"data": "synthetic:train"}
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    (run_folder / "model").rename(run_folder / "elsewhere")
    caplog.clear()
    code, out, _ = qa_arch("suite", suite, run_folder, adopted, "--baseline", "right", "--json")
    assert (code, json.loads(out)[1]["rows"]) == (0, details["rows"])
    scored, left_out = caplog.messages
    assert scored == f"scoring {run_folder} on seen"
    assert left_out.startswith(f"left out: {run_folder} on seen: ")
    assert "training and calibration data" in left_out
    new = write_json(suite.with_name("new.json"), write(generate(1, 99, 1, "dev")))
    content["sets"]["seen"] = {"data": str(new)}
    suite.write_text(yaml.safe_dump(content, sort_keys=False))
    assert qa_arch("suite", suite, run_folder, adopted, "--json")[0] == 0
    assert f"left out: {run_folder} on seen: {run_folder}: has no weights" in caplog.text


def test_consistency_on_contrast_sets(tmp_path, qa_arch, caplog):
    """a and its contrasts are right, b's contrast is wrong: 1 of 2 groups, 50%.

    c has no contrasts, d's original is not in the set, and e is faulty.
    """
    context = "Ada Stone built the mill."
    offset = {"a": 0, "a1": 0, "a2": 0, "b": 0, "b1": 0, "c": 0, "d": 0, "e": 1}
    originals = {"a1": "a", "a2": "a", "b1": "b", "d": "x"}
    records = [
        {"id": id_, "title": id_, "context": context, "question": "Who?", "original_id": originals.get(id_)}
        | {"answers": {"text": ["Ada Stone"], "answer_start": [start]}}
        for id_, start in offset.items()
    ]
    data, answers = tmp_path / "set.jsonl", tmp_path / "answers.json"
    data.write_text("\n".join(map(json.dumps, records)))
    answers.write_text(json.dumps({id_: "the mill" if id_ in ("b1", "c") else "Ada Stone" for id_ in offset}))
    file = tmp_path / "contrast.yaml"
    file.write_text(yaml.safe_dump({"sets": {"small": {"data": str(data), "on_error": "skip"}}}))
    system = ("--predictions", answers, "--data", data, "--name", "x", "--folder", tmp_path / "x")
    code, _, err = qa_arch("adopt", *system, "--on-error", "skip")
    assert (code, caplog.text.count("left out: ")) == (0, 1), err
    for show in (("show", tmp_path / "x"), ("report", tmp_path / "x", "-o", tmp_path / "report.html")):
        code, _, err = qa_arch(*show, "--data", data)
        assert (code, "not used" in err) == (0, False), err
    code, out, err = qa_arch("suite", file, tmp_path / "x", "--json")
    assert code == 0, err
    grid, details = json.loads(out)
    assert details["rows"][0]["consistency"] == 50
    assert any("consistency" in note for note in details["notes"])
    assert "small: 7 questions, faulty records left out: 1" in grid["notes"][1]


def test_scored_only_scores_nothing(suite, adopted, run_folder, qa_arch, tmp_path):
    """A set that a run was fitted on is no test set."""
    code, out, _ = qa_arch("suite", suite, run_folder, adopted, "--scored-only", "--json")
    assert code == 0
    assert [row["model"] for row in json.loads(out)[1]["rows"]] == ["right"]
    assert set(read_record(run_folder).scores) == {"calibration", "dev"}
    fitted_on = read_record(run_folder).config["data"]["calibration"]
    write_json(tmp_path / "fitted.yaml", {"sets": {"fitted": {"data": fitted_on}}})
    for file in (suite, tmp_path / "fitted.yaml"):
        code, _, err = qa_arch("suite", file, run_folder, "--scored-only")
        assert (code, "none of the runs was scored on any set" in err) == (5, True), err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sets: {a: {dta: x}}", "unknown setting 'sets.a.dta' (did you mean 'sets.a.data'?)"),
        ("sets: {}", "has no sets"),
        ("sets: {own_dev: {data: x}}", "sets.own_dev: is the column of the runs' dev sets"),
    ],
)
def test_invalid_suite_is_refused(tmp_path, qa_arch, content, message):
    (tmp_path / "s.yaml").write_text(content)
    code, _, err = qa_arch("suite", tmp_path / "s.yaml", tmp_path)
    assert (code, f"{tmp_path}/s.yaml" in err, message in err) == (2, True, True), err

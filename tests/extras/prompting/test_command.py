"""``qa-arch prompt``: from a model to run folders, also after an interruption."""

import json

import pytest
import yaml

from qa_arch.extras.prompting import local
from qa_arch.extras.prompting.prompts import TEMPLATE
from qa_arch.records import CALIBRATED, CALIBRATION, DEV, GIVEN, NEVER_NULL, ORACLE, TRAIN, read_record

pytestmark = pytest.mark.parametrize("model_folder", ["chat"], indirect=True)


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch):
    monkeypatch.setattr(local, "MAX_TOKENS", 3)


@pytest.fixture
def prompt(model_folder, files, tmp_path, qa_arch):
    """``prompt(*options, folder=...)`` -> exit code, stdout, stderr; by default of dev, with two shots."""

    def call(*options, folder="p", data="dev"):
        shots = ("--shots", 2, "--train", files["train"], "--seed", 3)
        command = ("prompt", "--model", model_folder, "--data", files[data], "--name", "tiny", *shots)
        return qa_arch(*command, "--device", "cpu", "--folder", tmp_path / folder, *options)

    return call


def answers(folder, name):
    """Question id -> text and null odds."""
    (file,) = folder.glob(f"{name}-*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["id"]: (row["text"], pytest.approx(row["null_odds"], abs=1e-3)) for row in rows}


def run_of(folder, name):
    (run,) = (path for path in folder.glob(f"{name}-*") if path.is_dir())
    return run


def test_calibrated_run_records_prompt_and_cost(prompt, files, question_sets, tmp_path, qa_arch):
    code, out, err = prompt("--calibration", files["calibration"], "--price", 0.5, 2)
    assert code == 0, err
    run = run_of(tmp_path / "p", "dev")
    record, prompting = read_record(run), json.loads((tmp_path / "p/prompt.json").read_text())
    assert list(record.scores[DEV]) == ["margin_0", CALIBRATED, ORACLE, NEVER_NULL]
    assert record.threshold.fitted_on == CALIBRATION
    assert record.facts(CALIBRATION).fingerprint == question_sets["calibration"].fingerprint
    assert record.config["prompting"]["template"] == TEMPLATE
    shots = [e for id_ in prompting["shots"] for e in question_sets["train"].examples if e.id == id_]
    assert (len(shots), record.facts(TRAIN).extra["shots"]) == (2, prompting["shots"])
    positions = [prompting["prompt"].index(e.context) for e in shots]
    assert positions == sorted(positions)
    assert "Passage: {passage}\n\nQuestion: {question}" in prompting["prompt"]
    text = (run / "run.json").read_text()
    assert not any(json.dumps(e.context)[1:-1] in text for e in shots)
    extra = record.facts(DEV).extra
    tokens = [extra[f"{kind}_tokens_per_1000_answers"] for kind in ("prompt", "answer")]
    assert extra["money_per_1000_answers"] == pytest.approx(
        (tokens[0] * 0.5 + tokens[1] * 2) / 1000, rel=1e-3
    )
    rows = [json.loads(line) for line in next((tmp_path / "p").glob("dev-*.jsonl")).read_text().splitlines()]
    assert tokens[0] == pytest.approx(1000 * sum(r["prompt_tokens"] for r in rows) / len(rows), abs=1)
    assert f"{tokens[0]:,.6g} prompt tokens" in out
    code, out, err = qa_arch("show", run)
    assert (code, f"{tokens[0]:,} prompt tokens per 1000 answers" in " ".join(out.split())) == (0, True), err
    assert prompt("--calibration", files["calibration"], data="other")[0] == 0
    suite = tmp_path / "s.yaml"
    suite.write_text(yaml.safe_dump({"sets": {n: {"data": str(files[n])} for n in ("dev", "other")}}))
    grid, details = json.loads(qa_arch("suite", suite, tmp_path / "p", "--json")[1])
    assert {"dev_mean", "other_mean"} <= grid["rows"][0].keys()
    assert [row["model"] for row in details["rows"]] == ["tiny", "tiny"]  # one system, on two sets
    assert all({"ece", "aurc", "threshold_loss"} <= row.keys() for row in details["rows"])


def test_without_calibration_positive_null_odds_mean_no_answer(prompt, tmp_path):
    assert prompt()[0] == 0
    run = run_of(tmp_path / "p", "dev")
    texts = json.loads((run / "predictions.json").read_text())
    recorded = answers(tmp_path / "p", "dev")
    assert GIVEN in read_record(run).scores[DEV]
    assert texts == {id_: "" if odds.expected > 0 else text for id_, (text, odds) in recorded.items()}


def test_interrupted_call_resumes_and_sets_share_the_calibration(prompt, files, tmp_path, monkeypatch):
    options = ("--calibration", files["calibration"], "--batch-size", 3)
    assert prompt(*options, folder="uninterrupted")[0] == 0
    answer, calls = local.LocalModel.answer, []

    def interrupted(self, examples, prompts):
        calls.append(len(examples))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(self, examples, prompts)

    monkeypatch.setattr(local.LocalModel, "answer", interrupted)
    assert prompt(*options)[0] == 130
    (file,) = (tmp_path / "p").glob("*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 6
    file.write_text("".join(lines[:5]) + lines[5][:20])  # killed while writing
    assert prompt(*options)[0] == 0
    for name in ("dev", "calibration"):
        assert answers(tmp_path / "p", name) == answers(tmp_path / "uninterrupted", name)
    file.write_text(file.read_text().removesuffix("\n"))  # killed before the last byte
    before = len(calls)
    assert prompt(*options)[0] == 0
    assert len(calls) == before
    assert file.read_text().endswith("}\n")
    code, _, err = prompt(*options, "--seed", 4)
    assert (code, "made with another seed, shots, prompt; choose another --folder" in err) == (5, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shots", 0), "--shots K and --train SOURCE: give both"),
        (("--price", 1, 2, 3), "--price: give one or two numbers"),
        (("--url", "http://x", "--reading", "spans"), "--reading spans: needs"),
        (("--batch-size", 0), "--batch-size >= 1"),
        (("--name", ".."), "--name: needs a letter"),
    ],
)
def test_invalid_options_are_refused(prompt, tmp_path, options, message):
    code, _, err = prompt(*options)
    assert (code, message in err, (tmp_path / "p").exists()) == (2, True, False), err


def test_calibration_on_the_scored_set_is_refused(prompt, files, tmp_path):
    code, _, err = prompt("--calibration", files["dev"])
    assert (code, "calibrate on articles that are not scored" in err) == (4, True)
    assert not (tmp_path / "p").exists()

"""A downloaded checkpoint becomes an ordinary run, calibrated if a set is given, and is scored as one."""

import json
import math
import shutil
from pathlib import Path

import pytest
from checkpoints import make_checkpoint

from qa_arch import evaluation, load
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.files import write_json
from qa_arch.records import read_questions, read_record, read_scored

RECORD = Path("runs/checkpoints/tiny-electra")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Folder with a checkpoint and three question sets."""
    folder = tmp_path_factory.mktemp("checkpoint-runs")
    for split, seed in (("dev", 1), ("calibration", 1), ("train", 2)):
        write_json(folder / f"{split}.json", write(generate(1, 4, seed, split)))
    texts = [text for e in generate(1, 4, 1, "dev").examples for text in (e.question, e.context)]
    make_checkpoint("electra", folder / "tiny-electra", texts, max_position_embeddings=96)
    return folder


@pytest.fixture
def work(prepared, tmp_path, monkeypatch) -> Path:
    folder = shutil.copytree(prepared, tmp_path / "work")
    monkeypatch.chdir(folder)
    return folder


def test_checkpoint_gets_record_files_and_table_row(work, qa_arch):
    code, out, err = qa_arch("evaluate", "--json", "--run", "tiny-electra", "--data", "dev.json")
    assert code == 0, err
    record = read_record(RECORD)
    assert (record.status, record.name, record.model) == ("ok", "checkpoints", "tiny-electra")
    assert {name: point.flat() for name, point in record.scores["dev"].items()} == json.loads(out)
    assert (record.threshold.value, record.threshold.fitted_on) == (0.0, "nothing")
    assert record.precision == "fp32"
    assert record.parameters.total == sum(record.parameters.blocks.values()) > 1000
    assert set(record.references["dev"]) == {"always-no-answer", "random-span", "word-overlap"}
    assert not {"optim", "trainer"} & set(record.config)  # its training is unknown
    predictions = json.loads((RECORD / "predictions.json").read_text())
    assert list(predictions) == read_questions(RECORD)["id"]
    command = ("evaluate", "--data", "dev.json", "--predictions", str(RECORD / "predictions.json"))
    f1 = record.scores["dev"]["calibrated"].f1
    assert json.loads(qa_arch(*command)[1])["f1"] == f1
    table = qa_arch("tables", "--format", "markdown")[1]
    assert f"| tiny-electra | {record.scores['dev']['calibrated'].exact:.1f} | {f1:.1f} |" in table
    assert "downloaded; what it was trained on is not known" in table
    assert qa_arch("show", str(RECORD))[0] == 0


def test_loaded_checkpoint_answers_as_it_was_scored(work, qa_arch):
    """From its record it uses the recorded threshold and windows, from its own folder the defaults."""
    options = ("--folder", "fitted", "--calibration", "calibration.json", "--set", "features.max_length=64")
    for command in (
        ("adopt", "tiny-electra", *options),
        ("evaluate", "--run", "fitted", "--data", "dev.json"),
    ):
        code, _, err = qa_arch(*command)
        assert code == 0, err
    record, predictions = read_record("fitted"), json.loads(Path("fitted/predictions.json").read_text())
    qa = load("fitted", device="cpu")
    assert qa.null_threshold == record.threshold.value != 0
    examples = generate(1, 4, 1, "dev").examples
    answers = qa([e.question for e in examples], [e.context for e in examples])
    assert {e.id: answer.text for e, answer in zip(examples, answers, strict=True)} == predictions
    plain = load("tiny-electra", device="cpu")
    assert plain.null_threshold == 0
    assert plain.config.features.max_length == 96
    answer = plain(examples[0].question, examples[0].context, null_threshold=math.inf)
    assert examples[0].context[answer.start : answer.end] == answer.text != ""


def test_threshold_is_fitted_on_the_calibration_set(work, qa_arch):
    assert qa_arch("adopt", "tiny-electra", "--calibration", "calibration.json")[0] == 0
    assert qa_arch("evaluate", "--run", str(RECORD), "--data", "dev.json")[0] == 0
    record = read_record(RECORD)
    assert record.threshold.fitted_on == "calibration"
    fitted, plain = (record.scores["calibration"][name] for name in ("calibrated", "threshold_0"))
    assert fitted.threshold == record.threshold.value == record.scores["dev"]["calibrated"].threshold
    assert fitted.f1 == max(point.f1 for point in (fitted, plain))
    assert record.facts("calibration").titles == tuple(sorted(generate(1, 4, 1, "calibration").titles))
    assert not (RECORD / "sets" / "calibration" / "predictions.json").exists()
    code, _, err = qa_arch("evaluate", "--run", "tiny-electra", "--data", "calibration.json")
    assert (code, "settings or calibration" in err) == (5, True)
    code, _, err = qa_arch("evaluate", "--run", str(RECORD), "--data", "calibration.json")
    assert (code, "shares 1 article" in err) == (4, True)


def test_first_sets_of_a_checkpoint_scored_at_once_are_both_recorded(work, qa_arch, monkeypatch):
    """The first commands on a checkpoint: each would make its set the dev set."""
    reference_scores, others = evaluation.reference_scores, iter(["train.json"])

    def interrupted(*arguments):
        for file in others:
            assert qa_arch("evaluate", "--run", "tiny-electra", "--data", file)[0] == 0
        return reference_scores(*arguments)

    monkeypatch.setattr(evaluation, "reference_scores", interrupted)
    assert qa_arch("evaluate", "--run", "tiny-electra", "--data", "dev.json")[0] == 0
    record = read_scored(RECORD)
    scored = {record.fingerprint(split) for split in record.scores}
    assert scored == {open_passages(file).fingerprint for file in ("dev.json", "train.json")}


@pytest.mark.parametrize("options", [["--precision", "bf16"], ["--calibration", "calibration.json"]])
def test_other_settings_need_another_record(work, qa_arch, options):
    qa_arch("evaluate", "--run", "tiny-electra", "--data", "dev.json")
    before = (RECORD / "run.json").read_bytes()
    command = ("adopt", "tiny-electra", *options)
    code, _, err = qa_arch(*command)
    assert (code, "holds the record of tiny-electra" in err) == (5, True)
    assert (RECORD / "run.json").read_bytes() == before
    assert qa_arch(*command, "--folder", "runs/checkpoints/other")[0] == 0
    assert qa_arch("evaluate", "--run", "runs/checkpoints/other", "--data", "dev.json")[0] == 0
    assert qa_arch("compare", "runs", "--baseline", "no-such")[2].count("tiny-electra") == 2  # two systems

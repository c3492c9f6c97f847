"""Fits on calibration, the same scores after training and by ``evaluate --run``, and checkpoints as runs."""

import json
import math
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import make_checkpoint

from qa_arch import load
from qa_arch.adopt import adopt_model
from qa_arch.config.compose import compose
from qa_arch.config.schema import Calibration, validate
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError
from qa_arch.evaluation import calibrate, evaluate_run, read_set, score
from qa_arch.files import write_json
from qa_arch.metrics.abstention import fit_answerability, fit_threshold
from qa_arch.qa import task
from qa_arch.qa.loading import load_predictor
from qa_arch.records import (
    CALIBRATION,
    DEV,
    QUESTIONS,
    Confidence,
    RunRecord,
    SplitFacts,
    questions_folder,
    read_questions,
    read_record,
    write_record,
)
from qa_arch.results.columns import runs_table
from qa_arch.results.systems import load_questions
from qa_arch.training.run import train
from qa_arch.types import Candidate, Prediction

INVENTED = generate(4, 5, 1, "calibration")
TABLE = type("Table", (), {"__len__": lambda self: 9, "truncated_questions": 0, "lost_answers": 0})()


def predictions(questions) -> list[Prediction]:
    """Gold spans or the first letter, with null odds correlated with answerability."""
    rng, results = np.random.default_rng(0), []
    for example in questions.examples:
        gold = example.answers[0] if example.answers and rng.random() < 0.7 else None
        start, end = (gold.start, gold.end) if gold else (0, 1)
        best = Candidate(example.context[start:end], start, end, 0.0, 0.5)
        results.append(Prediction(example.id, best, rng.normal(-1 if example.answerable else 1, 2), 1))
    return results


def calibrated_record(folder, prior, questions=INVENTED, fit="exact"):
    """Record of a span model with these predictions, calibrated for ``prior``."""
    config = validate(compose(["experiment=demo"]))
    config = replace(config, calibration=Calibration(prior, fit), references={})
    outputs = SimpleNamespace(
        best_predictions=predictions(questions),
        fit_temperature=lambda right, threshold: 1.0,
        confidence=lambda threshold, temperature: np.ones(len(questions)),
    )
    predictor = SimpleNamespace(
        config=config, engine="torch fp32", null_threshold=0.0, temperature=1.0, rank=lambda *_, **__: outputs
    )
    reading = read_set(predictor, questions, table=TABLE)
    fits = calibrate(predictor, reading)
    points, rows = score(predictor, reading, folder, split=CALIBRATION)
    record = RunRecord(
        status="ok",
        name="trial",
        model="made",
        seed=1,
        config={},
        settings_hash="c",
        run_hash="c",
        data={CALIBRATION: SplitFacts(fingerprint="f", protocol="2.0", questions=len(questions))},
        scores={CALIBRATION: points},
        rows={CALIBRATION: rows},
        **vars(fits),
    )
    write_record(folder, record)
    return read_record(folder)


@pytest.mark.parametrize(("prior", "fit"), [(None, "exact"), (0.9, "exact"), (0.5, "smooth")])
def test_threshold_and_probability_are_fitted_for_the_prior(prior, fit, tmp_path):
    record = calibrated_record(tmp_path, prior, fit=fit)
    rows = load_questions(tmp_path, record, CALIBRATION)
    columns = rows.null_odds.tolist(), rows.span_f1.tolist(), rows.answerable.tolist()
    width = 0.15 if fit == "smooth" else None
    assert record.threshold.value == pytest.approx(fit_threshold(*columns, prior, width))
    assert width is None or record.threshold.value != pytest.approx(fit_threshold(*columns, prior))
    fitted = fit_answerability(rows.null_odds, rows.answerable, prior)
    assert (record.answerability.slope, record.answerability.intercept) == pytest.approx(fitted, rel=1e-3)
    assert (record.threshold.prior, record.answerability.prior, record.threshold.width) == (
        prior,
        prior,
        width,
    )
    assert (record.threshold.fitted_on, record.answerability.fitted_on) == (CALIBRATION, CALIBRATION)
    note = "" if prior is None else f", its unanswerable questions counted as {prior:.0%}"
    note += ", F1 smoothed over 0.15 s.d. of the null odds" if width else ""
    table = runs_table([(tmp_path, record)], split=CALIBRATION)
    assert f"null threshold fitted on calibration{note}" in table.notes


@pytest.mark.parametrize(("answerable", "kind"), [(True, "answerable"), (False, "unanswerable")])
def test_threshold_fitted_on_a_single_kind_of_question_says_so(tmp_path, caplog, answerable, kind):
    """In log, record and table. It has no prior, and no probability of an answer."""
    examples = tuple(example for example in INVENTED.examples if example.answerable == answerable)
    record = calibrated_record(tmp_path, 0.5, replace(INVENTED, examples=examples))
    assert record.threshold.fitted_on == f"calibration, all {kind}"
    assert (record.threshold.prior, record.answerability) == (None, None)
    assert f"the questions are all {kind}, so the null threshold" in caplog.text
    table = runs_table([(tmp_path, record)], split=CALIBRATION)
    assert f"null threshold fitted on calibration, all {kind}" in table.notes


def test_forced_auc_is_span_f1_plus_auroc():
    outputs = SimpleNamespace(best_predictions=predictions(INVENTED))
    scores = task.validation_scores(INVENTED, outputs)
    assert {*scores, "calibration_loss"} == set(task.MONITORED)
    odds = np.array([prediction.null_odds for prediction in outputs.best_predictions])
    answerable = np.array([example.answerable for example in INVENTED.examples])
    ordered = odds[answerable][:, None] < odds[~answerable][None]
    assert scores["calibration_auroc"] == pytest.approx(100 * ordered.mean())
    total = scores["calibration_forced_f1"] + scores["calibration_auroc"]
    assert scores["calibration_forced_auc"] == pytest.approx(total)
    examples = tuple(e for e in INVENTED.examples if e.answerable)
    all_answerable = replace(INVENTED, examples=examples, protocol="1.1")
    outputs = SimpleNamespace(best_predictions=predictions(all_answerable))
    scores = task.validation_scores(all_answerable, outputs)
    assert scores["calibration_forced_auc"] == scores["calibration_f1"]


RUNS = {
    "span": ["model=bert", "encoder.initializer_range=0.3", "trainer.precision=bf16"],
    "sequence": ["model=match_lstm/sequence", "glove=none", "encoder.width=8", "model.hidden=6"],
}
FILES = ["predictions.json", "null_odds.json"]


@pytest.fixture(scope="module", params=RUNS)
def trained(request, few_questions, tmp_path_factory) -> tuple[str, Path]:
    """Name of each task and a finished run of it."""
    name = request.param
    settings = [
        "debug=fast",
        *RUNS[name],
        *few_questions,
        "features.cache_dir=null",
        "trainer.progress=false",
    ]
    folder = tmp_path_factory.mktemp(name) / "run"
    assert train(validate(compose(settings)), folder=folder).status == "ok"
    return name, folder


def unwatched():
    return nullcontext(lambda done, total: None)


def evaluate(folder: Path, **options):
    """Points of ``evaluate --run`` in the precision the run was trained in."""
    precision = read_record(folder).precision
    load = partial(load_predictor, folder, device="cpu", precision=precision)
    record, split = evaluate_run(folder, load, unwatched, **options)
    return record.scores[split]


def test_evaluate_reproduces_the_results_of_training(trained):
    _, folder = trained
    record = read_record(folder)
    files = {file: (folder / file).read_bytes() for file in FILES}
    rows = read_questions(folder)
    data = {**record.data, DEV: replace(record.data[DEV], name="first name")}
    scores = {CALIBRATION: record.scores[CALIBRATION]}
    write_record(folder, replace(record, scores=scores, references={}, data=data))
    for file in (*FILES, QUESTIONS):
        (folder / file).unlink()
    points = evaluate(folder)
    rescored = read_record(folder)
    assert points == rescored.scores[DEV] == record.scores[DEV]
    assert rescored.references.get(DEV, {}) == record.references[DEV]
    assert len(record.references[DEV]) > 1
    assert rescored.data == data
    assert rescored.threshold == record.threshold
    assert {file: (folder / file).read_bytes() for file in FILES} == files
    assert read_questions(folder) == rows
    rows = questions_folder(folder, CALIBRATION)  # calibration has rows but no prediction files
    assert [path.name for path in rows.iterdir()] == [QUESTIONS]
    assert len(read_questions(rows)["id"]) == read_record(folder).data[CALIBRATION].questions
    assert read_record(folder).threshold is not None


def test_references_of_another_task_are_refused_before_training(few_questions, tmp_path):
    for setting, message in (
        (
            "+references.mine._target_=qa_arch.nn.losses.SpanLoss",
            "references.mine: SpanLoss has no method predict",
        ),
        ("+references.random-span.sead=1", "unknown setting 'references.random-span.sead'"),
    ):
        config = validate(compose(["debug=fast", "model=bert", *few_questions, setting]))
        with pytest.raises(ConfigError, match=re.escape(message)):
            train(config, folder=tmp_path)


def test_another_decoder_has_its_own_threshold(trained, tmp_path):
    """It finds other spans, to whose null odds the run's threshold does not apply."""
    name, folder = trained
    if name == "sequence":  # has no search
        return
    greedy, original = tmp_path / "greedy", read_record(folder)
    load = partial(load_predictor, folder, device="cpu", precision=original.precision)
    decode = "greedy", compose(["decode=greedy"])["decode"]
    adopt_model([str(folder)], greedy, load, unwatched, decode=decode)
    points = evaluate(greedy)
    record = read_record(greedy)
    predictor = load_predictor(folder, device="cpu", precision=original.precision)
    predictor.config = validate(record.config)
    calibration = open_passages(predictor.config.data.calibration)
    outputs = predictor.rank(calibration)
    fits = task.fit_calibration(calibration, outputs)
    fitted = fits.threshold.value
    assert record.null_threshold == points["calibrated"].threshold == fitted != original.null_threshold
    assert record.temperature == fits.confidence.value != original.temperature
    assert record.threshold.fitted_on == CALIBRATION
    assert record.answerability is not None


def test_temperature_is_fitted_on_calibration_at_the_threshold(trained):
    """It is fitted to the answers given at the threshold, and the rows hold the resulting confidence."""
    _, folder = trained
    record = read_record(folder)
    rows = read_questions(questions_folder(folder, CALIBRATION))
    predictor = load_predictor(folder, device="cpu", precision=record.precision)
    calibration = open_passages(predictor.config.data.calibration)
    outputs = predictor.rank(calibration)
    correct = np.array(rows["exact"]) > 0
    expected = outputs.fit_temperature(correct, predictor.null_threshold)
    assert record.confidence == Confidence(method="temperature", value=expected, fitted_on=CALIBRATION)
    assert predictor.temperature == expected != 1.0
    confidence = outputs.confidence(predictor.null_threshold, expected)
    assert rows["confidence"] == pytest.approx(confidence.tolist(), abs=1e-5)
    answers = [answer.at(predictor.null_threshold) for answer in outputs.predictions()]
    assert [answer is None for answer in answers] == rows["abstained"]


RECORD = Path("runs/checkpoints/tiny-electra")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Folder with a checkpoint and two question sets."""
    folder = tmp_path_factory.mktemp("checkpoint-runs")
    for split in ("dev", "calibration"):
        write_json(folder / f"{split}.json", write(generate(1, 4, 1, split)))
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
    """From its record it uses the fitted threshold and windows, from its own folder the defaults."""
    options = ("--calibration", "calibration.json", "--set", "features.max_length=64")
    assert qa_arch("adopt", "tiny-electra", *options)[0] == 0
    assert qa_arch("evaluate", "--run", RECORD, "--data", "dev.json")[0] == 0
    record, predictions = read_record(RECORD), json.loads((RECORD / "predictions.json").read_text())
    qa = load(RECORD, device="cpu")
    assert qa.null_threshold == record.threshold.value != 0
    examples = generate(1, 4, 1, "dev").examples
    answers = qa([e.question for e in examples], [e.context for e in examples])
    assert {e.id: answer.text for e, answer in zip(examples, answers, strict=True)} == predictions
    plain = load("tiny-electra", device="cpu")
    assert (plain.null_threshold, plain.config.features.max_length) == (0, 96)
    answer = plain(examples[0].question, examples[0].context, null_threshold=math.inf)
    assert examples[0].context[answer.start : answer.end] == answer.text != ""
    assert record.threshold.fitted_on == "calibration"
    fitted, unfitted = (record.scores["calibration"][name] for name in ("calibrated", "threshold_0"))
    assert fitted.threshold == record.threshold.value == record.scores["dev"]["calibrated"].threshold
    assert fitted.f1 >= unfitted.f1
    assert record.facts("calibration").titles == tuple(sorted(generate(1, 4, 1, "calibration").titles))
    code, _, err = qa_arch("evaluate", "--run", "tiny-electra", "--data", "calibration.json")
    assert (code, "settings or calibration" in err) == (5, True)
    code, _, err = qa_arch("evaluate", "--run", RECORD, "--data", "calibration.json")
    assert (code, "shares 1 article" in err) == (4, True)


def test_other_settings_need_another_record(work, qa_arch):
    qa_arch("evaluate", "--run", "tiny-electra", "--data", "dev.json")
    before = (RECORD / "run.json").read_bytes()
    command = ("adopt", "tiny-electra", "--precision", "bf16")
    code, _, err = qa_arch(*command)
    assert (code, "holds the record of tiny-electra" in err) == (5, True)
    assert (RECORD / "run.json").read_bytes() == before
    assert qa_arch(*command, "--folder", "runs/checkpoints/other")[0] == 0
    assert qa_arch("evaluate", "--run", "runs/checkpoints/other", "--data", "dev.json")[0] == 0
    assert qa_arch("compare", "runs", "--baseline", "no-such")[2].count("tiny-electra") == 2  # two systems

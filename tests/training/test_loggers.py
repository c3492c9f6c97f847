"""Loggers in whole runs: what each service receives, and that a failing service never harms a run."""

import csv
import json
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from unittest.mock import Mock

import pytest
import stub_loggers
import torch
import wandb
from training.wandb_files import offline_runs
from wandb.sdk.lib import wbauth
from wandb.sdk.lib.urls import DEFAULT_BASE_URL

from qa_arch.config import target as extras
from qa_arch.config.target import TRUSTED
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, RunError, UnavailableError
from qa_arch.files import write_atomic
from qa_arch.records import find_runs, read_record
from qa_arch.training import loggers
from qa_arch.training.loggers import COLUMNS, MAX_SUMMARY, WANDB_RUN, Outcome
from qa_arch.training.module import TrainingModule
from qa_arch.training.progress import History
from qa_arch.training.run import train

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("offline_wandb"),
]
STUBS = (*TRUSTED, "stub_loggers")
WANDB = {"_target_": "qa_arch.training.loggers.WandbLogger", "project": "x"}
LIGHTNING = "pytorch_lightning.loggers"
CSV = {"_target_": f"{LIGHTNING}.CSVLogger", "save_dir": "x"}


@pytest.fixture
def calls(monkeypatch):
    """Calls received by the loggers of ``stub_loggers``."""
    calls: list = []
    monkeypatch.setattr(stub_loggers, "calls", calls)
    return calls


@pytest.fixture
def train_with_stub(configure, tmp_path, calls):
    """Train with a logger of ``stub_loggers``."""

    def run(*overrides: str, target: str = "Recorder", name: str = "run", resume: bool = False, **arguments):
        section = {"_target_": f"stub_loggers.{target}", **arguments}
        config = replace(configure(*overrides), logger=section)
        return train(config, folder=tmp_path / name, resume=resume, trusted=STUBS)

    return run


def curve(run, name):
    return [row[name] for row in run.history if name in row]


def raise_after_epoch(monkeypatch, error: BaseException) -> None:
    """Make runs fail with ``error`` once their first epoch is logged."""
    on_train_epoch_end = History.on_train_epoch_end

    def log_and_raise(self, trainer, pl_module):
        on_train_epoch_end(self, trainer, pl_module)
        raise error

    monkeypatch.setattr(History, "on_train_epoch_end", log_and_raise)


@pytest.mark.parametrize("error", [RuntimeError("broke"), KeyboardInterrupt()], ids=str)
def test_logger_receives_the_status_of_a_run_that_ended_early(train_with_stub, monkeypatch, calls, error):
    """With a stub of MLflow, which needs no package."""
    monkeypatch.delitem(extras.LOGGERS, "MLFlowLogger")
    raise_after_epoch(monkeypatch, error)
    with pytest.raises(type(error)):
        train_with_stub("trainer.epochs=1", "trainer.log_every=0", target="NoMLFlow")
    assert calls[-1] == ("set_terminated", "FAILED")
    assert step_entries(calls) == []


def test_resumed_run_continues_its_mlflow_run(train_with_stub, monkeypatch, calls):
    """Only in the same store."""
    monkeypatch.delitem(extras.LOGGERS, "MLFlowLogger")
    for uri in ("a", "a", "b"):
        train_with_stub("trainer.epochs=1", target="NoMLFlow", resume=True, tracking_uri=uri)
    assert [value for call, value in calls if call == "start"] == [None, "new", None]
    assert [value for call, value in calls if call == "update_run"] == 3 * ["RUNNING"]
    assert [value for call, value in calls if call == "set_terminated"] == 3 * ["FINISHED"]


def test_csv_files_have_a_row_per_epoch_and_logged_step(run_training, monkeypatch):
    """Also of a run that failed; the resumed run writes beside them."""
    settings = ("logger=csv", "trainer.epochs=2", "trainer.log_every=2")
    with monkeypatch.context() as patch:
        raise_after_epoch(patch, RuntimeError("broke"))
        with pytest.raises(RuntimeError):
            run_training(*settings)
    done = run_training(*settings, resume=True)
    failed, rows = (
        list(csv.DictReader((done.folder / f"csv/version_{start}/metrics.csv").open(newline="")))
        for start in (0, 1)
    )
    assert [row["step"] for row in failed if row["step/loss"]] == ["2", "4", "6"]
    epochs = done.record.epochs  # the first was trained twice: it was lost with its checkpoint
    for name in ("train_loss", "calibration_f1", "calibration_loss"):
        actual = [float(value) for row in rows if (value := row[name.replace("_", "/", 1)])]
        assert actual == pytest.approx([epoch.value(name) for epoch in epochs])
    assert not [name for name in rows[0] if name.startswith("calibration_")]  # Lightning's own names
    steps = [row for row in rows if row["step/loss"]]
    assert [int(row["step"]) for row in steps] == [*range(2, epochs[-1].step + 1, 2)]
    assert all(float(row["step/gradient_norm"]) > 0 for row in steps)
    assert float(rows[-1]["dev/f1"]) == pytest.approx(done.record.scores["dev"]["calibrated"].f1)


def test_tensorboard_has_grouped_curves_and_few_scores(run_training):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = run_training("logger=tensorboard", "trainer.epochs=3", "trainer.log_every=2")
    events = event_accumulator.EventAccumulator(str(done.folder / "tensorboard"))
    events.Reload()
    record = done.record
    for name in ("train_loss", "calibration_loss", "calibration_f1"):
        actual = events.Scalars(name.replace("_", "/", 1))
        assert [event.value for event in actual] == pytest.approx([e.value(name) for e in record.epochs])
        assert [event.step for event in actual] == [epoch.step for epoch in record.epochs]
    tags = events.Tags()
    summary = [tag for tag in tags["scalars"] if len(events.Scalars(tag)) == 1]
    assert {tag.partition("/")[0] for tag in tags["scalars"]} == {
        *("train", "calibration", "step", "dev", "best", "epoch", "seconds", "parameters", "peak_memory_mb")
    }
    assert len(summary) <= MAX_SUMMARY
    for name, split in (("dev/f1", "dev"), ("best/calibration/f1", "calibration")):
        (score,) = events.Scalars(name)
        assert score.value == pytest.approx(record.scores[split]["calibrated"].f1)
    assert "table/text_summary" in tags["tensors"]
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_wandb_has_curves_predictions_and_tables(run_training, few_questions, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "sweep-1")
    given = {"entity": "team", "job_type": "trial", "notes": "why", "id": "mine", "tags": "[mine]"}
    settings = [f"logger.wandb.{key}={value}" for key, value in given.items()]
    settings += ["logger.wandb.texts=true", "+logger.wandb.save_code=false"]
    settings += ["trainer.epochs=2", "trainer.log_every=2", "optim.head_lr=1e-2", "name=trial"]
    done = run_training("logger=[wandb,csv]", *settings)
    (file,) = (option.partition("=")[2] for option in few_questions if option.startswith("data.dev="))
    questions = open_passages(file, name="")
    (run,) = offline_runs(done.folder)
    assert run.exit_code == 0
    given |= {"run_id": given.pop("id"), "project": "qa_arch", "tags": ["mine"]}
    assert run.given == {"display_name": "bert-s13", "run_group": "sweep-1", **given}
    *_, last = csv.DictReader((done.folder / "csv/version_0/metrics.csv").open(newline=""))
    assert run.config["trainer"]["epochs"] == 2
    for name in ("train_loss", "calibration_loss", "calibration_f1"):
        actual = curve(run, name.replace("_", "/", 1))
        assert actual == pytest.approx([epoch.value(name) for epoch in done.record.epochs])
    scores = done.record.scores["dev"]["calibrated"]
    assert run.summary["dev/f1"] == float(last["dev/f1"]) == pytest.approx(scores.f1)
    outcome = Outcome(done.record, done.folder, questions)
    assert run.summary["predictions"]["nrows"] == len(questions)
    shown = {key for key in run.summary if not key.startswith(("_", "predictions"))}
    assert {"calibration/f1", "dev/threshold_0_f1", "dev/forced_f1", "seconds/fit", "parameters"} <= shown
    assert shown == set(outcome.summary())
    assert len(shown) <= MAX_SUMMARY
    assert json.loads((done.folder / WANDB_RUN).read_text())["mode"] == "offline"
    for place in (done.folder, done.folder.parent):
        assert [path for path, _ in find_runs([place])] == [done.folder], "wandb's files are no records"
    (table,) = [row for row in run.history if "predictions/nrows" in row]
    assert (table["predictions/nrows"], table["predictions/ncols"]) == (len(questions), len(COLUMNS))
    assert "model" not in run.artifacts
    assert run.artifacts["record"] == ["questions.parquet", "run.json", "sets/calibration/questions.parquet"]
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in outcome.predictions()]
    assert [row["id"] for row in rows] == [example.id for example in questions.examples]
    assert 100 * sum(row["f1"] for row in rows) / len(rows) == pytest.approx(scores.f1)
    assert all(row["exact"] for row in rows if row["prediction"] and row["prediction"] == row["gold"])
    assert replace(outcome, questions=None).predictions() == []
    require_panels_of(run)


def require_panels_of(run):
    """The panels of the workspace in docs/ are of what a run logs."""
    pytest.importorskip("wandb_workspaces")
    script = Path(__file__).resolve().parents[2] / "docs" / "wandb_workspace.py"
    panels = str(run_path(str(script))["workspace"]("team")._to_model().spec.section.panel_bank_config)
    drawn = set(re.findall(r"'(?:summary:)?(\w+/[\w/]+|epoch|peak_\w+)'", panels))
    assert len(drawn) == 18
    assert drawn <= {name for row in run.history for name in row} | {*run.summary}
    settings = set(re.findall(r"'(?:config:)?(\w+)\.value\.(\w+)'", panels))
    assert settings == {("model", "name"), ("trainer", "batch_size"), ("optim", "lr")}
    assert all(key in run.config[section] for section, key in settings)


def test_resumed_run_continues_its_wandb_run(tmp_path, monkeypatch):
    """Only one of its folder, online and in the same project: wandb cannot resume offline runs."""
    started = []

    def init(**settings):
        started.append((settings["id"], settings.get("resume")))
        return Mock(id=settings.get("id") or f"new{len(started)}", url=None)

    def start(folder="a", **settings):
        loggers.WandbLogger(folder=tmp_path / folder, save_dir=str(tmp_path), **settings)

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.delenv("WANDB_MODE")
    places = [("online", "a", "a"), ("online", "a", "a"), ("online", "a", "b"), ("online", "b", "a")]
    for mode, project, folder in (
        *places,
        ("offline", "b", "a"),
        ("offline", "b", "a"),
        ("online", "b", "a"),
    ):
        start(folder, project=project, mode=mode)
    new = (None, None)
    assert started == [new, ("new1", "allow"), new, new, new, new, new]
    start(project="b", mode="online", id="mine")
    start(project="b", mode="online", id="mine", resume="must")
    assert started[-2:] == [("mine", "allow"), ("mine", "must")]
    monkeypatch.setenv("WANDB_RUN_ID", "of-an-agent")
    start(project="b", mode="online")
    assert started[-1] == new, "wandb reads the variable itself"


@pytest.mark.parametrize("content", ["{", "[]", '{"id": 3}'])
def test_damaged_file_of_a_wandb_run_is_named(tmp_path, monkeypatch, content):
    monkeypatch.delenv("WANDB_MODE")
    file = write_atomic(tmp_path / WANDB_RUN, content)
    with pytest.raises(RunError, match=rf"^{file}: .*; restore it, or delete it to log a new run$"):
        loggers.WandbLogger(folder=tmp_path, project="p", mode="online")


def test_runs_that_log_into_one_folder_have_a_subfolder_each(configure, tmp_path):
    config = configure("logger=csv", f"logger.save_dir={tmp_path}/logs")
    for run in ("a/bert", "b/bert", "a/bert"):
        with loggers.open_loggers(config, tmp_path / run) as (logger,):
            logger.log_metrics({"x": 1.0}, 1)
    places = sorted((tmp_path / "logs").iterdir())
    assert [place.name.rpartition("-")[0] for place in places] == ["bert", "bert"]
    assert all(any((place / "csv").rglob("*.*")) for place in places)


def test_wandb_gets_no_text_of_the_data_set_unless_asked(run_training, few_questions, monkeypatch):
    """Nor a title of an article, of which the record has many; also if it gets the model. Offline it looks up
    no host."""
    monkeypatch.setattr(socket, "getaddrinfo", hosts := Mock(wraps=socket.getaddrinfo))
    done = run_training("logger=wandb", "logger.log_model=true", "trainer.epochs=1")
    (file,) = (option.partition("=")[2] for option in few_questions if option.startswith("data.dev="))
    examples = open_passages(file, name="").examples
    texts = {text for e in examples for text in (e.question, e.context, e.title)}
    texts |= {answer.text for e in examples for answer in e.answers}
    texts |= done.record.trained_titles
    assert len(texts) > 20
    (run,) = offline_runs(done.folder)
    assert run.summary["dev/f1"] == pytest.approx(done.record.scores["dev"]["calibrated"].f1)
    model = [path for path in (done.folder / "model").rglob("*") if path.is_file()]
    names = {path.relative_to(done.folder / "model").as_posix() for path in model}
    assert {kind: {*files} for kind, files in run.artifacts.items()} == {"model": names}
    assert "model.safetensors" in names
    logged = b"".join(path.read_bytes() for path in done.folder.glob("wandb/**/*") if path.is_file())
    assert b"dev/f1" in logged
    words = [text for text in texts if len(text) > 3 and not text.isdigit()]  # numbers meet by chance
    assert [text for text in words if text.encode() in logged] == []
    hosts.assert_not_called()


@pytest.fixture
def wandb_home(monkeypatch, tmp_path):
    """wandb without mode, login or settings; forgets a login of the test when it ends."""

    def forget() -> None:
        wandb.teardown()
        wbauth.unauthenticate_session(update_settings=False)

    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def test_wandb_stays_offline_without_a_login(wandb_home, monkeypatch):
    """A login is what this version of wandb writes; a key that it refuses is an error in one line.

    What the run prints is captured with ``texts`` only: an error may cite a question.
    """
    starts = []

    def init(mode: str, settings: dict[str, str] | None = None, **_) -> Mock:
        starts.append((mode, settings["console"] if settings else "captured"))
        return Mock(id="1", url=None)

    monkeypatch.setattr(wandb, "init", init)

    def start(mode: str = "auto", **settings: bool) -> None:
        loggers.WandbLogger(folder=wandb_home, project="tests", mode=mode, **settings)

    start()
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(UnavailableError, match=r"logger=wandb: .*API key must have 40"):
        start()
    monkeypatch.delenv("WANDB_API_KEY")
    wbauth.write_netrc_auth(host=DEFAULT_BASE_URL, api_key="0" * 40)
    start("offline")
    start(texts=True)
    assert starts == [("offline", "off"), ("offline", "off"), ("online", "captured")]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"_target_": "os.path.Path"}, "is outside qa_arch, baselines, pytorch_lightning.loggers"),
        ({"_target_": "stub_loggers.Recorder"}, "if you trust it, add --trust stub_loggers"),
        ({**CSV, "nmae": "y"}, r"unknown setting 'logger\.nmae' \(did you mean 'logger\.name'\?\)"),
        ({**CSV, "save_dir": 3}, r"logger\.save_dir: 3 is not a string or"),
        ({**WANDB, "mode": "of"}, r"logger\.mode: 'of' is not a choice \(known: auto, offline, online\)"),
        ({"wandb": {**WANDB, "resume_form": 1}}, r"'logger\.wandb\.resume_form' \(did you mean .*_from'\?\)"),
        ({**WANDB, "dir": "x"}, r"unknown setting 'logger\.dir'"),
        ({**WANDB, "_target_": f"{LIGHTNING}.WandbLogger", "job_typ": "x"}, r"mean 'logger\.job_type'\?"),
        ({**WANDB, "log_model": "all"}, r"logger\.log_model: expected true or false, got 'all'"),
        ({**WANDB, "settings": {"console": "wrap"}}, r"console: 'wrap': .*; add logger\.texts=true"),
    ],
)
def test_invalid_logger_is_refused(section, message):
    with pytest.raises(ConfigError, match=message):
        loggers.check_loggers(section)


def test_mistyped_wandb_mode_is_refused(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(ConfigError, match=r"WANDB_MODE: 'onlin' .* \(did you mean 'online'\?\)"):
        loggers.check_loggers(WANDB)


def test_logger_that_cannot_start_ends_the_run_before_training(train_with_stub, calls):
    remedy = "try logger=none with --if-exists resume"
    with pytest.raises(UnavailableError, match=rf"Recorder could not .* \(the service is gone\); {remedy}"):
        train_with_stub(fails=["start"])
    assert [call for call, _ in calls] == ["start"]


def test_of_several_loggers_one_that_keeps_failing_is_disabled(configure, calls, caplog, tmp_path):
    """One that cannot start ends the others."""
    recorder = {"_target_": "stub_loggers.Recorder"}
    failing = {**recorder, "fails": ["log_hyperparams", "log_metrics"]}
    config = replace(configure("trainer.epochs=4"), logger={"failing": failing, "other": recorder})
    done = train(config, folder=tmp_path / "run", trusted=STUBS)
    warnings = [line for line in caplog.messages if "the service is gone" in line]
    assert warnings[0] == "Recorder: the service is gone; the run continues, and its record is complete"
    assert len(warnings) == loggers.MAX_FAILURES
    assert warnings[-1].endswith("; nothing more will be logged")
    logged = [call for call, _ in calls].count("log_metrics")
    assert logged == loggers.MAX_FAILURES - 1 + len(done.epochs) + 1
    assert calls[-2:] == 2 * [("finalize", "success")]
    calls.clear()
    config = replace(config, logger={"first": recorder, "second": {**recorder, "fails": ["start"]}})
    with pytest.raises(UnavailableError, match="the service is gone"):
        train(config, folder=tmp_path / "ended", trusted=STUBS)
    assert [call for call, _ in calls] == ["start", "log_hyperparams", "start", "finalize"]
    assert calls[-1] == ("finalize", "failed")


def step_entries(calls) -> list[tuple[int, dict[str, float]]]:
    """(step, values) of each entry logged inside an epoch."""
    logged = [value for call, value in calls if call == "log_metrics"]
    return [(step, values) for step, values in logged if "step/loss" in values]


def duration_bounds(times: list[float], step: int) -> tuple[float, float]:
    """Bounds on the seconds that the two steps up to ``step`` took."""
    first, last = times[step - 2], times[step - 1]
    before = times[step - 3] if step > 2 else first - 60
    after = times[step] if step < len(times) else last + 60
    return last - first, after - before


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_logged_steps_have_loss_gradient_norm_and_learning_rates(
    train_with_stub, run_training, calls, monkeypatch, tmp_path, clip
):
    """Placeholders in a logger's arguments are filled in as well. No logger changes the training."""
    optim = ("optim.head_lr=4e-3", "optim.schedule=constant", "optim.warmup=0.0", "model.dropout=0.3")
    settings = ("trainer.epochs=1", "trainer.log_every=2", f"optim.clip={clip}", *optim)
    without = run_training(*settings, "logger=none", name="without")
    take_step, clip_gradients = TrainingModule.training_step, TrainingModule.on_before_optimizer_step
    sums: list[list[float]] = []
    norms: list[float] = []
    times: list[float] = []

    def training_step(self, batch, batch_idx):
        before = self.train_sums[0].clone() if batch_idx else torch.zeros(2)
        loss = take_step(self, batch, batch_idx)
        sums.append((self.train_sums[0] - before).tolist())
        times.append(time.perf_counter())
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms.append(torch.cat([p.grad.flatten() for p in self.parameters()]).norm().item())
        clip_gradients(self, optimizer)

    monkeypatch.setattr(TrainingModule, "training_step", training_step)
    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", on_before_optimizer_step)
    record = train_with_stub(*settings, folder="{folder}/x", note="{name} of {group}")
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == without.weights
    assert calls[0] == ("start", {"folder": f"{tmp_path}/run/x", "note": "bert-s13 of debug"})
    hyperparameters = [value for call, value in calls if call == "log_hyperparams"]
    assert [value["trainer"]["epochs"] for value in hyperparameters] == [1]
    assert read_record(tmp_path / "run").config["logger"]["folder"] == "{folder}/x"
    logged = step_entries(calls)
    recorded = record.epochs[0].metrics["train_loss_by_step"]
    assert recorded == {str(step): values["step/loss"] for step, values in logged}
    assert [step for step, _ in logged] == list(range(2, len(norms) + 1, 2))
    for step, values in logged:
        (loss_1, windows_1), (loss_2, windows_2) = sums[step - 2 : step]
        windows = windows_1 + windows_2
        assert values["step/loss"] == pytest.approx((loss_1 + loss_2) / windows)
        assert values["step/gradient_norm"] == pytest.approx(norms[step - 1], rel=1e-5)
        slowest, fastest = sorted(windows / seconds for seconds in duration_bounds(times, step))
        assert slowest <= values["step/windows_per_second"] <= fastest
        rates = {key: value for key, value in values.items() if key.startswith("step/lr/")}
        assert rates == pytest.approx({"step/lr/encoder": 1e-3, "step/lr/head": 4e-3})


def test_unwritable_csv_folder_ends_the_run_before_training(run_training, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"CSVLogger could not be started .*Not a directory"):
        run_training("logger=csv", f"logger.save_dir={tmp_path}/file")


def test_logger_does_not_change_training(train_with_stub, run_training, calls):
    dropout = ("trainer.epochs=2", "model.dropout=0.3", "trainer.log_every=1")
    without = run_training(*dropout, "logger=none", name="without")
    train_with_stub(*dropout, name="with")
    weights = (without.folder.parent / "with/model/model.safetensors").read_bytes()
    assert weights == without.weights
    assert len([call for call, _ in calls if call == "log_metrics"]) > without.record.epochs[-1].step

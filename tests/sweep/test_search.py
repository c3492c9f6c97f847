"""Search by Optuna, with points that train nothing: trials, continuation, and objective values."""

import json
import re
from pathlib import Path

import pytest

from qa_arch.config.compose import OverridesParser
from qa_arch.errors import ConfigError, RunError
from qa_arch.launchers import PENDING
from qa_arch.records import RECORD
from qa_arch.sweep import MANIFEST, STUDY, read_manifest

optuna = pytest.importorskip("optuna")
search = pytest.importorskip("qa_arch.search").search
space_of = pytest.importorskip("qa_arch.search").space_of
Between, Choice = optuna.distributions.FloatDistribution, optuna.distributions.CategoricalDistribution
SPACE = {"optim.lr": Between(1e-5, 1e-3, log=True), "model.dropout": Choice(("0.0", "0.3"))}


class Launcher:
    """Records the points it receives; ``value`` gives the objective for the settings of a point."""

    def __init__(self, value=lambda settings: 50.0):
        self.batches, self.value = [], value

    def __call__(self, points):
        self.batches.append([tuple(point) for point in points])
        return [self.value(dict(override.split("=") for override in point)) for point in points]

    @property
    def points(self):
        return [point for batch in self.batches for point in batch]


def run_search(folder, launcher, space=SPACE, *, trials, at_a_time=1, seed=3, dry=False):
    search(folder, space, launcher, n_trials=trials, n_jobs=at_a_time, seed=seed, dry=dry)


def study_in(folder):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / STUDY)))
    return optuna.load_study(study_name="calibration", storage=storage)


def test_longer_search_continues(tmp_path):
    """3 points, then 2 more, then none; a sampler that started over would draw the first ones again."""
    first, second, third = Launcher(), Launcher(), Launcher()
    run_search(tmp_path, first, trials=3)
    run_search(tmp_path, second, trials=5)
    run_search(tmp_path, third, trials=5)
    assert [len(launcher.points) for launcher in (first, second, third)] == [3, 2, 0]
    assert len({*first.points, *second.points}) == 5
    assert [trial.value for trial in study_in(tmp_path).trials] == [50.0] * 5


def test_point_without_a_value_counts_as_a_trial(tmp_path):
    launcher = Launcher(lambda settings: None)
    run_search(tmp_path, launcher, trials=2)
    assert [trial.state.name for trial in study_in(tmp_path).trials] == ["FAIL", "FAIL"]
    again = Launcher()
    run_search(tmp_path, again, trials=3)
    assert len(again.points) == 1


def test_point_that_has_not_ended_comes_first_in_the_next_call(tmp_path):
    """It keeps its place among the trials, and is not tried again by the same call."""
    first = Launcher(lambda settings: PENDING if len(first.points) == 1 else 50.0)
    run_search(tmp_path, first, trials=3)
    assert [trial.state.name for trial in study_in(tmp_path).trials] == ["RUNNING", "COMPLETE", "COMPLETE"]
    second = Launcher()
    run_search(tmp_path, second, trials=3)
    assert second.points == first.points[:1]
    assert [trial.state.name for trial in study_in(tmp_path).trials] == ["COMPLETE"] * 3


def test_fail_fast_ends_the_search_at_a_failure(tmp_path):
    launcher = Launcher(lambda settings: None)
    search(tmp_path, SPACE, launcher, n_trials=3, n_jobs=1, seed=3, fail_fast=True, dry=False)
    assert len(launcher.points) == 1


@pytest.mark.parametrize(
    ("values", "low", "high", "step"), [("shuffle(range(1,5))", 1, 4, 1), ("range(16,3,-4)", 4, 16, 4)]
)
def test_range_in_any_order_is_the_same_space(values, low, high, step):
    (override,) = OverridesParser.create().parse_overrides([f"trainer.batch_size={values}"])
    assert space_of([override]) == {
        "trainer.batch_size": optuna.distributions.IntDistribution(low, high, step=step)
    }


def test_invalid_point_counts_as_a_trial(tmp_path):
    def refuse(points):
        raise ConfigError("model.dropout: must be below 1")

    run_search(tmp_path, Launcher(), trials=1)
    with pytest.raises(ConfigError, match="below 1"):
        run_search(tmp_path, refuse, trials=2)
    run_search(tmp_path, Launcher(), trials=3)
    assert [trial.state.name for trial in study_in(tmp_path).trials] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_interrupted_point_runs_first(tmp_path):
    def interrupted(settings):
        raise KeyboardInterrupt

    (tmp_path / MANIFEST).write_text("{}")  # the point was accepted
    first, second = Launcher(interrupted), Launcher()
    with pytest.raises(KeyboardInterrupt):
        run_search(tmp_path, first, trials=2)
    run_search(tmp_path, second, trials=2)
    assert second.points[0] == first.points[0]
    assert len(set(second.points)) == 2


@pytest.mark.parametrize("chosen", [(), ("optim.lr",)])
def test_point_of_a_search_killed_while_it_was_chosen_is_left_out(tmp_path, chosen):
    """The journal gets a trial first, then one setting at a time."""
    run_search(tmp_path, Launcher(), trials=1)
    study_in(tmp_path).ask({name: SPACE[name] for name in chosen})
    run_search(tmp_path, launcher := Launcher(), trials=3)
    assert len(launcher.points) == 2


def test_fewer_trials_leave_interrupted_points(tmp_path):
    def interrupted(points):
        raise KeyboardInterrupt

    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        run_search(tmp_path, interrupted, trials=4, at_a_time=4)
    run_search(tmp_path, launcher := Launcher(), trials=1, at_a_time=4)
    assert len(launcher.points) == 1


def test_duplicates_in_a_batch_run_once(tmp_path):
    launcher = Launcher()
    run_search(tmp_path, launcher, {"model.dropout": Choice(("0.3",))}, trials=3, at_a_time=3)
    assert launcher.batches == [[("model.dropout=0.3",)]]
    assert [trial.value for trial in study_in(tmp_path).trials] == [50.0] * 3


def test_other_search_space_is_refused(tmp_path):
    run_search(tmp_path, Launcher(), trials=1)
    with pytest.raises(ConfigError, match=r"its own sweep\.folder"):
        run_search(tmp_path, Launcher(), {"optim.lr": SPACE["optim.lr"]}, trials=2)
    with pytest.raises(ConfigError, match=r"its own sweep\.folder"):
        run_search(tmp_path, Launcher(), {**SPACE, "model.dropout": Choice(("0.1", "0.2"))}, trials=2)
    run_search(tmp_path, again := Launcher(), trials=2)
    assert len(again.points) == 1, "the refused searches left a trial"


def test_search_through_hydra(stubbed, train_m, monkeypatch, caplog):
    """``train -m hydra/sweeper=qa_optuna`` with our launcher: all points in one growing sweep."""

    def train(trials: int) -> str:
        arguments = ["hydra/sweeper=qa_optuna", f"hydra.sweeper.n_trials={trials}", "seed=range(1,50)"]
        space = ["optim.lr=tag(log,interval(1e-5,1e-3))", "model.dropout=choice(0.0,0.2)"]
        code, out, _ = train_m(*arguments, *space)
        assert code == 0
        return out

    assert [train(2).count("2 points: 2 ok") for _ in range(2)] == [1, 1]
    out = train(3)
    entries = read_manifest(stubbed.folder).points
    assert len(entries) == len(stubbed.started()) == 3
    assert all(re.fullmatch(r"optim.lr=[-.e\d]+", next(o for o in e.overrides if "lr" in o)) for e in entries)
    assert [trial.value for trial in study_in(stubbed.folder).trials] == [
        50.0 + trial.params["seed"] for trial in study_in(stubbed.folder).trials
    ]
    assert "50." not in out.partition("\n")[0]
    for point in entries[:2]:
        record = json.loads((stubbed.folder / point.name / RECORD).read_text()) | {"commit": "a" * 40}
        (stubbed.folder / point.name / RECORD).write_text(json.dumps(record))
    monkeypatch.setattr("qa_arch.provenance.commit", lambda: ("b" * 40, False))
    train(3)
    assert "kept the results of 2 points run with other code (commit aaaaaaaa, now bbbbbbbb)" in caplog.text


def test_search_whose_data_has_changed_is_refused(stubbed, train_m, few_questions, tmp_path):
    """Its values would be compared with others; points without a value are no hindrance."""
    file = tmp_path / "set.json"
    *settings, dev = few_questions
    content = Path(settings.pop().partition("=")[2]).read_text()
    settings += [f"data.calibration={file}", dev]
    command = ["hydra/sweeper=qa_optuna", "data=files", *settings, "seed=range(1,50)"]

    def train(trials: int) -> tuple[int, str]:
        code, _, err = train_m(*command, f"hydra.sweeper.n_trials={trials}")
        return code, err

    file.write_text(content)
    stubbed.set_actions(**{f"seed{n}": "failed" for n in range(50)})
    assert train(1)[0] == 1
    file.write_text(content.replace("was", "wos"))
    stubbed.set_actions()
    assert train(2)[0] == 0
    journal = (stubbed.folder / STUDY).read_bytes()
    file.write_text(content)
    code, err = train(3)
    assert (code, str(file) in err, "has changed since the sweep began; restore it" in err) == (5, True, True)
    assert (stubbed.folder / STUDY).read_bytes() == journal
    file.write_text(content.replace("was", "wos"))
    assert train(3)[0] == 0
    assert len(stubbed.started()) == 3


HPARAMS_SEARCH = """\
# @package _global_
defaults:
  - override /hydra/sweeper: qa_optuna
hydra:
  mode: MULTIRUN
  sweeper: {n_trials: 2, seed: 7, params: {optim.lr: 'interval(1e-4,1e-3)', seed: 'range(1,50)'}}
"""


def test_search_in_a_yaml(stubbed, train_m, tmp_path):
    """The pattern of lightning-hydra-template: sweeper and space in one file."""
    path = tmp_path / "conf/hparams_search/mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(HPARAMS_SEARCH)
    chosen = ["hparams_search=mine", "--config-dir", tmp_path / "conf"]
    code, out, err = train_m(*chosen, "seed=8,9")
    assert (code, "2 points: 2 ok" in out) == (0, True), err
    assert [trial.params.keys() for trial in study_in(stubbed.folder).trials] == [{"optim.lr", "seed"}] * 2
    assert {trial.params["seed"] for trial in study_in(stubbed.folder).trials} <= {"8", "9"}
    path.write_text(HPARAMS_SEARCH.replace("hydra:", "optim: {warmup: 0.3}\nhydra:"))
    code, _, err = train_m(*chosen, "seed=8,9", "hydra.sweeper.n_trials=3")
    assert (code, "or its config has changed since the sweep began" in err) == (5, True), err
    path.write_text(HPARAMS_SEARCH.replace("seed: 7", "sampler: null"))
    code, _, err = train_m(*chosen)
    assert (code, "hydra.sweeper.sampler" in err, len(err.splitlines())) == (2, True, 1), err


@pytest.mark.parametrize("values", ["interval(1e-1,1e-4)", "tag(log,interval(0,1))", "range(5,1)"])
def test_invalid_range_is_named(train_m, values):
    code, _, err = train_m("hydra/sweeper=qa_optuna", f"optim.lr={values}")
    assert (code, err.startswith(f"qa-arch: optim.lr={values}: ")) == (2, True), err


@pytest.mark.slow
def test_value_is_the_mean_over_seeds(stubbed, train_m):
    """The mean of 55 and 56; no value if one of the runs fails."""
    arguments = ["hydra/sweeper=qa_optuna", "seed=5", "optim.lr=interval(1e-5,1e-3)", "sweep.seeds=2"]
    stubbed.set_actions(seed6="failed")
    train_m(*arguments, "hydra.sweeper.n_trials=1")
    stubbed.set_actions()
    assert train_m(*arguments, "hydra.sweeper.n_trials=2")[0] == 0
    assert [trial.value for trial in study_in(stubbed.folder).trials] == [None, 55.5]
    entries = read_manifest(stubbed.folder).points
    assert len({entry.name for entry in entries}) == len(stubbed.started()) == 4
    assert [entry.overrides[-1] for entry in entries][1::2] == ["seed=6"] * 2
    code, _, err = train_m(*arguments[:-1], "hydra.sweeper.n_trials=4")
    assert code == 2
    assert "means over sweep.seeds=2, not 1" in err


@pytest.mark.parametrize("line", ["{bad", "[1]", '{"op_code": 99}'])
def test_damaged_study_is_named(tmp_path, line):
    run_search(tmp_path, Launcher(), trials=1)
    with (tmp_path / STUDY).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"study\.journal: cannot be read .* its own sweep\.folder=DIR$"):
        run_search(tmp_path, Launcher(), trials=2)


def test_dry_run_writes_nothing_and_names_no_best_point(tmp_path, caplog):
    run_search(tmp_path, Launcher(), trials=1)
    journal = (tmp_path / STUDY).read_bytes()
    caplog.clear()
    caplog.set_level("INFO")
    for folder, points in ((tmp_path, 1), (tmp_path / "new", 2)):
        run_search(folder, launcher := Launcher(), trials=2, dry=True)
        assert len(launcher.points) == points
    assert "best of" not in caplog.text
    assert (tmp_path / STUDY).read_bytes() == journal
    assert [path.name for path in tmp_path.iterdir()] == [STUDY]


@pytest.mark.usefixtures("jobs_to_run")
def test_grid_with_seeds(stubbed, train_m):
    train_m("sweep.seeds=2", "seed=5", "model.dropout=0.0,0.2")
    labels = [list(entry.overrides) for entry in read_manifest(stubbed.folder).points]
    assert labels == [
        [f"model.dropout={share}", f"seed={seed}"] for share in ("0.0", "0.2") for seed in (5, 6)
    ]
    code, _, err = train_m("sweep.seeds=2", "seed=1,2")
    assert code == 2
    assert "seed is swept as well" in err

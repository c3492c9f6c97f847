"""The mirror of a run in wandb: offline, one folder a run, finished whatever happens."""

from __future__ import annotations

import pytest

from qa_arch.config.schema import Logger
from qa_arch.errors import UnavailableError
from qa_arch.training import loggers

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("offline_wandb"),
]


def open_logger(tmp_path, name: str):
    settings = Logger(name="wandb", mode="auto", project="tests", tags=[])
    return loggers.wandb_logger(settings, tmp_path, name=name, group="tests", config={"seed": 1})


def test_a_run_is_finished_after_success_and_after_failure(tmp_path, monkeypatch):
    codes, ids = [], set()

    def mirror(name: str, error: Exception | None = None) -> None:
        with open_logger(tmp_path, name) as logger:
            run = logger.experiment
            monkeypatch.setattr(run, "finish", _counting(run.finish, codes))
            ids.add(run.id)
            logger.log_metrics({"loss": 1.0}, step=1)
            if error:
                raise error

    mirror("good")
    with pytest.raises(RuntimeError, match="broke"):
        mirror("bad", RuntimeError("broke"))
    assert codes == [None, 1]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == len(ids) == 2


def _counting(finish, codes: list):
    def counted(exit_code=None):
        codes.append(exit_code)
        finish(exit_code)

    return counted


def test_only_rank_0_starts_one(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers.rank_zero_only, "rank", 1)
    monkeypatch.setattr(loggers.wandb, "init", lambda **_: pytest.fail("a run was started"))
    with open_logger(tmp_path, "other"):
        pass


def test_a_wandb_that_cannot_be_reached_is_told_with_the_remedy(tmp_path, monkeypatch):
    def refuses(**_):
        raise loggers.wandb.errors.CommError("it timed out\n(90 seconds)")

    monkeypatch.setattr(loggers.wandb, "init", refuses)
    with pytest.raises(UnavailableError, match=r"mode offline \(it timed out \(90 .*logger=none$"):
        open_logger(tmp_path, "none").__enter__()


def test_without_a_login_it_stays_offline(tmp_path, monkeypatch):
    modes = []
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(loggers.wandb, "init", lambda mode, **_: modes.append(mode))
    with open_logger(tmp_path, "offline"):
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with open_logger(tmp_path, "online"):
        pass
    assert modes == ["offline", "online"]

